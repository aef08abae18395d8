"""Expired messages among records to be given to a group (duetime_format.expiry). Pure."""

from collections.abc import Sequence
from itertools import accumulate

from duetime_format import expiry, layout, record
from duetime_format.columns import holds, values
from duetime_format.names import DLQ_PREFIX
from duetime_format.properties import number_of

from duetime_store.groups.holds import GroupPlace

# A part of the property's name. One search covers all records: few others have it.
_MARK = b"_EX"
_NAMES = (record.EXPIRES.encode(), record.LANE_ENTRY.encode())


def expired(place: GroupPlace, records: bytes, sizes: Sequence[int], now_ms: int) -> list[int]:
    """The indices of expired messages. Dead letters, and their retries, do not expire for a group that receives their
    topic."""
    if not holds(records, _MARK) or place.key.topic.startswith(DLQ_PREFIX):
        return []
    lengths, entries = values(records, list(sizes), _NAMES)
    found = []
    for index, (start, length, entry) in enumerate(zip(accumulate(sizes, initial=0), lengths, entries, strict=False)):
        if length is None:
            continue
        due_at_ms = number_of(entry.rpartition(b":")[2]) if entry else None
        if 0 < expiry.at_ms(length, _stored_at_ms(records, start) if due_at_ms is None else due_at_ms) <= now_ms:
            found.append(index)
    return found


def _stored_at_ms(records: bytes, at: int) -> int:
    flags = records[at + layout.SYS_FLAG_AT + 3]
    return int(layout.I64.unpack_from(records, at + layout.stored_at(flags))[0])
