"""Lanes of delay levels in RocketMQ's files: level n is queue n - 1 of SCHEDULE_TOPIC_XXXX."""


def queue_of(level: int) -> int:
    """The lane's queue."""
    return level - 1


def level_of(queue: int) -> int:
    """The level whose lane is this queue."""
    return queue + 1
