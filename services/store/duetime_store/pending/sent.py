"""Distinguishes sends with `replace` and a known id: repeats of the first send, or changes of the message.

A repeat has the body, due time, key and properties of the first send. The properties of tracing differ in each send.
"""

from duetime_format import layout
from duetime_format.properties import VALUE_END
from duetime_format.record import Record
from duetime_format.replacing import DEFERRAL, LATEST_MAX, TRACING, RequestedDueTime, asked_by, latest_of

_NOT_COMPARED = frozenset((*DEFERRAL, *(name.encode() for name in TRACING)))


def is_same_send(sent: Record, again: Record, asked: RequestedDueTime) -> bool:
    """Whether `again`, which asks for this due time, repeats the stored record `sent`."""
    latest = latest_of(sent.properties)
    if latest is None or sent.body != again.body or _flags(sent) != _flags(again):
        return False
    # A due time bounded by max_wait is not stored as requested.
    is_bounded = latest != LATEST_MAX and asked_by(sent.properties) == RequestedDueTime(latest, is_delay=False)
    return (is_bounded or asked_by(sent.properties) == asked) and _own(sent) == _own(again)


def _flags(found: Record) -> int:
    return found.sys_flag & layout.SYS_COMPRESSED


def _own(found: Record) -> set[bytes]:
    parts = found.properties.split(VALUE_END)
    return {part for part in parts if part and part.split(b"\x01", 1)[0] not in _NOT_COMPARED}
