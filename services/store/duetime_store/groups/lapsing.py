"""Expired messages among records to be given to a group (duetime_format.expiry). Pure."""

from collections.abc import Sequence
from itertools import accumulate

from duetime_format import expiry, record
from duetime_format.columns import holds, values
from duetime_format.names import DLQ_PREFIX

from duetime_store.groups.holds import GroupPlace

# A part of the property's name. One search covers all records: few others have it.
_MARK = b"_EX"
_NAMES = (record.EXPIRES.encode(),)


def expired(place: GroupPlace, records: bytes, sizes: Sequence[int], now_ms: int) -> list[int]:
    """The indices of expired messages. Dead letters do not expire for a group that receives their topic."""
    if not holds(records, _MARK) or place.key.queue_topic.startswith(DLQ_PREFIX):
        return []
    (limits,) = values(records, list(sizes), _NAMES)
    return [
        index
        for index, (start, limit) in enumerate(zip(accumulate(sizes, initial=0), limits, strict=False))
        if limit and 0 < expiry.of_record(record.decode(records, start, check_crc=False)) <= now_ms
    ]
