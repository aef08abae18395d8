r"""Pending timers as JSON lines, for resending to brokers without timers.

    {"topic":"orders","queue":3,"dueAtMs":1700000000000,"id":"7F..","keys":"k1 k2","tags":"t","body":"aGVsbG8=",
     "isCompressed":false,"flag":0,"bornAtMs":1690000000000,"properties":{"colour":"red"}}

One line for each message, in order of due time. `body` is base64 of the bytes as stored: zlib's (or another kind, by
`sysFlag`) if `isCompressed`. `properties` are the sender's own.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any

from duetime_format import layout, record
from duetime_format.lanes import is_timer_lane
from duetime_format.properties import decode_properties, number_of
from duetime_format.record import Record
from duetime_shard.pending import PendingLane
from duetime_shard.records import message
from duetime_shard.shard import DirectoryState


def lines(state: DirectoryState, lanes: dict[int, PendingLane]) -> Iterator[str]:
    """A line, with its end, for each pending timer with a readable record."""
    found = sorted(
        (due_at_ms, number, entry, position)
        for number, lane in lanes.items()
        if is_timer_lane(number)
        for entries, units in lane.pending()
        for entry, (position, _, due_at_ms) in zip(entries.tolist(), units.tolist(), strict=True)
    )
    for due_at_ms, _, _, position in found:
        timer = message(state, position)
        if timer is not None:
            yield json.dumps(_fields(timer, due_at_ms), ensure_ascii=False, separators=(",", ":")) + "\n"


def _fields(timer: Record, due_at_ms: int) -> dict[str, Any]:
    properties = decode_properties(timer.properties)
    own = {name: value for name, value in properties.items() if name not in record.RESERVED_PROPERTIES}
    return {
        "topic": properties.get(record.REAL_TOPIC),
        "queue": number_of(properties.get(record.REAL_QID), 10) or 0,
        "dueAtMs": due_at_ms,
        "id": properties.get(record.UNIQ_KEY),
        "keys": properties.get(record.KEYS),
        "tags": properties.get(record.TAGS),
        "body": base64.b64encode(timer.body).decode(),
        "isCompressed": bool(timer.sys_flag & layout.SYS_COMPRESSED),
        "sysFlag": timer.sys_flag,
        "flag": timer.flag,
        "bornAtMs": timer.born_at_ms,
        "properties": own,
    }
