"""The expiry of messages: the time from which groups do not receive them any more. Pure.

    DT_EXPIRES    of a sent message    milliseconds after its due time, or after its store time if it was not delayed
                  of a group's copy    Unix milliseconds, TIMER_OUT_MIN or more

A sent message has a length: its due time may change while it waits, and starts with the commit of a transaction. A copy
has a due time of its own, so it names the time that follows from the message.
"""

from collections.abc import Mapping

from duetime_format import record
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.properties import number_of, value_of
from duetime_format.record import EXPIRES, Record

EXPIRES_MS_MAX = DELAY_MS_MAX
_EXPIRES = EXPIRES.encode()


def at_ms(value: str | bytes | None, delivered_at_ms: int) -> int:
    """Unix milliseconds; 0: never. `value`: of the property. `delivered_at_ms`: the due time, or the store time of a
    message that was not delayed."""
    number = number_of(value) or 0
    return delivered_at_ms + number if 0 < number < record.TIMER_OUT_MIN else number


def of(properties: Mapping[str, str], delivered_at_ms: int) -> int:
    """As `at_ms`, of a message with these properties."""
    return at_ms(properties.get(EXPIRES), delivered_at_ms)


def of_record(found: Record) -> int:
    """As `at_ms`, of a record in its topic's queue."""
    value = value_of(found.properties, _EXPIRES)
    if not value:
        return 0
    entry = record.find_lane_entry(found.properties)
    return at_ms(value, entry[2] if entry else found.stored_at_ms)
