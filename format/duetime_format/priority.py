"""Priorities of messages, as in RocketMQ: a topic of type PRIORITY has a queue for each. Pure.

Source: RocketMQ 5.4 MessageConst.PROPERTY_PRIORITY.
"""

from collections.abc import Mapping

PRIORITY = "_SYS_MSG_PRIORITY_"
PRIORITY_MAX = 2**31 - 1
# The number of a topic's type in duetime.v1.TopicType.
PRIORITY_TYPE = 6
_DIGITS_MAX = 10


def queue_of(priority: int, queue_count: int) -> int:
    """The queue of a priority: the higher, the higher its number."""
    return min(priority, queue_count - 1)


def parse(text: str) -> int | None:
    """The value of the property; None: there is none, or it is no number from 0 to the most."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        return None
    priority = int(text)
    return priority if priority <= PRIORITY_MAX else None


def of(properties: Mapping[str, str]) -> int | None:
    """The priority among a message's properties."""
    return parse(properties.get(PRIORITY, ""))
