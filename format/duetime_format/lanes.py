"""Lanes in RocketMQ's files: the queues of two topics whose messages wait to fall due.

    level n    1 to 256                  queue n - 1 of SCHEDULE_TOPIC_XXXX: all wait equally long
    1000 + q   TIMER_LANE_FIRST + q      queue q of rmq_sys_wheel_timer: each has its own due time

A lane's number names it in the contract, in DT_ENTRY and in DT_CANCELLED.
"""

from typing import NamedTuple

from duetime_format.levels import LEVEL_COUNT_MAX
from duetime_format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

TIMER_LANE_FIRST = 1_000
TIMER_LANES_MAX = 16
LANE_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
LANE_TOPIC_NAMES = frozenset(topic.encode() for topic in LANE_TOPICS)
# Messages in them are known by their destination topic (REAL_TOPIC).
BOUND_TOPICS = LANE_TOPICS | {HALF_TOPIC}
BOUND_TOPIC_NAMES = frozenset(topic.encode() for topic in BOUND_TOPICS)


class LanePlace(NamedTuple):
    """The place of an entry in a lane: entries fall due in this order."""

    due_at_ms: int
    entry: int


def queue_of(level: int) -> int:
    """The queue of a level's lane."""
    return level - 1


def level_of(queue: int) -> int:
    """The level of the lane with this queue."""
    return queue + 1


def lane_of(topic: str, queue: int) -> int | None:
    """The number of the lane whose entries a queue holds; None: it is not a lane's."""
    if topic == SCHEDULE_TOPIC:
        return level_of(queue) if 0 <= queue < LEVEL_COUNT_MAX else None
    if topic == TIMER_TOPIC:
        return TIMER_LANE_FIRST + queue if 0 <= queue < TIMER_LANES_MAX else None
    return None


def place_of(lane: int) -> tuple[str, int]:
    """The topic and queue of a lane."""
    return (TIMER_TOPIC, lane - TIMER_LANE_FIRST) if lane >= TIMER_LANE_FIRST else (SCHEDULE_TOPIC, queue_of(lane))


def is_timer_lane(lane: int) -> bool:
    """Whether each message of the lane has a due time of its own."""
    return lane >= TIMER_LANE_FIRST
