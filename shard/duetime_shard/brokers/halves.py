"""Finds open half messages of a broker from 5.4 that keeps its transactions in RocksDB: from the log alone.

    half record   RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC      as in the half topic; a check appends nothing
    op record     RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC   TRANS_OFFSET: the log position of the half record that it ends

    an op record or a committed record names its place       ended
    its message is in TRANS_CHECK_MAX_TIME_TOPIC             given up
    the half topic has its message                           represented there: by a broker that writes both, or because
                                                             a store has moved it
    all others                                               open

Checks are counted in RocksDB alone: family `trans` of `rocksdbstore` has a key for each open
one, i64 position and `@topic@id`, with the value i32 checks, i32 size. Without it they begin at 0.

Source: RocketMQ 5.5.1 TransactionalMessageRocksDBService (transRocksDBEnable, transWriteOriginTransHalfEnable).
"""

from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from duetime_format import halves, layout, record
from duetime_format.columns import Ints, RecordRun
from duetime_format.errors import DamagedBytes
from duetime_format.names import GIVEN_UP_TOPIC, HALF_TOPIC, ROCKSDB_HALF_TOPIC, ROCKSDB_OP_TOPIC
from duetime_format.properties import VALUE_END, as_text, encode_properties, number_of, value_of
from duetime_format.record import Record
from duetime_format.units import FILLER_SIZE, Units, joined

from duetime_shard import configs
from duetime_shard.brokers import rocks
from duetime_shard.brokers.engines import STORE_FOLDER, TRANSACTIONS
from duetime_shard.disk import ShardFiles
from duetime_shard.facts import are_committed
from duetime_shard.files import LogFiles
from duetime_shard.shard import DirectoryState
from duetime_shard.walk import scan_runs

KEY = (ROCKSDB_HALF_TOPIC, 0)
# Key in duetimeStore.json: all half messages before this offset have ended, or were moved into the half topic.
MOVED = "rocksdbHalves"
_ENDED_AT = b"TRANS_OFFSET"
_REAL_TOPIC = record.REAL_TOPIC.encode()
_TOPICS = {topic.encode() for topic in (HALF_TOPIC, ROCKSDB_OP_TOPIC, GIVEN_UP_TOPIC)}
_POSITION, _COUNT = Struct(">q"), Struct(">i")
_KEY_MARK = b"@"
# Id, topic and group.
_Key = tuple[str, bytes, str]


class RocksdbHalf(NamedTuple):
    """An open half message."""

    offset: int
    record: Record


def of_state(state: DirectoryState, first: int = 0) -> list[RocksdbHalf]:
    """The open half messages of a directory whose log has been walked, from an offset on."""
    queue = state.queues.get(KEY)
    if queue is None:
        return []
    parts = list(queue.read(first))
    offsets = np.concatenate([np.empty(0, np.int64), *(part for part, _ in parts)])
    return open_halves(state.files, offsets, joined(units for _, units in parts), state.end)


def open_halves(files: ShardFiles, offsets: Ints, units: Units, end: int | None = None) -> list[RocksdbHalf]:
    """The open ones of these half messages.

    Args:
        offsets, units: half messages of the queue, ascending.
        end: of the log; None: that of its files.
    """
    log, waiting = LogFiles(files), _HalfSearch()
    for offset, (position, size, _) in zip(offsets.tolist(), units.tolist(), strict=True):
        found = _read(log, position, size) if 0 < size != FILLER_SIZE else None
        if found is not None:
            waiting.add(RocksdbHalf(offset, found))
    if waiting.open:
        stored_at_ms = min(half.record.stored_at_ms for half in waiting.open.values())
        for item in scan_runs(log, min(min(waiting.open), log.first_by(stored_at_ms)), end):
            waiting.see(item)
    log.close()
    return [waiting.open[position] for position in sorted(waiting.open)]


def _read(log: LogFiles, position: int, size: int) -> Record | None:
    try:
        found = record.decode(log.read(position, size))
    except DamagedBytes:
        return None
    return found if (found.position, found.topic) == (position, ROCKSDB_HALF_TOPIC) else None


class _HalfSearch:
    """Half messages whose ends are looked for; `open` has the others by position."""

    def __init__(self) -> None:
        self.open: dict[int, RocksdbHalf] = {}
        self._positions: dict[_Key, list[int]] = {}

    def add(self, half: RocksdbHalf) -> None:
        self.open[half.record.position] = half
        self._positions.setdefault(_key(half.record), []).append(half.record.position)

    def see(self, item: object) -> None:
        """Takes an item of the log; only intact records matter."""
        if isinstance(item, RecordRun):
            chosen = item.within(_TOPICS) | are_committed(item)
            for index in np.flatnonzero(chosen).tolist():
                self._end(item.record(index))

    def _end(self, found: Record) -> None:
        if found.topic == ROCKSDB_OP_TOPIC:
            ended_at = number_of(value_of(found.properties, _ENDED_AT))
            if ended_at is not None:
                self.open.pop(ended_at, None)
        elif found.topic in (HALF_TOPIC, GIVEN_UP_TOPIC):
            for position in self._positions.pop(_key(found), ()):
                self.open.pop(position, None)
        elif found.sys_flag & layout.SYS_TRANSACTION == layout.SYS_TRANSACTION_COMMIT:
            self.open.pop(found.prepared_transaction_offset, None)


def _key(found: Record) -> _Key:
    properties = found.properties
    return halves.message_id_of(properties), value_of(properties, _REAL_TOPIC), halves.group_of(properties)


def counted_checks(root: Path) -> dict[int, int]:
    """Numbers of checks by position of the half record, without those not checked yet.

    Raises:
        DamagedBytes: RocksDB can't be read.
        EngineMissing: nor without the library.
    """
    found: dict[int, int] = {}
    if not rocks.is_rocks(root / STORE_FOLDER) or rocks.is_empty(root / STORE_FOLDER):
        return found
    with rocks.opened(root, STORE_FOLDER) as database:
        for key, value in database.items(TRANSACTIONS):
            if key[_POSITION.size :].startswith(_KEY_MARK) and len(value) >= _COUNT.size:
                (position,), (count,) = _POSITION.unpack_from(key), _COUNT.unpack_from(value)
                if count > 0:
                    found[position] = count
    return found


def known_checks(content: Mapping[str, Any] | None) -> dict[int, int]:
    """The same from consumerOffset.json, where an import has put them."""
    found = configs.table_of(content, configs.CHECKS).items()
    return {int(position): count for position, count in found if position.isdecimal() and type(count) is int}


def checks_of_state(state: DirectoryState) -> dict[int, int]:
    """The same of a directory, for people; none if they can't be read."""
    try:
        found = counted_checks(state.root)
    except (DamagedBytes, rocks.EngineMissing):
        found = {}
    return found or known_checks(configs.load_from(state.files, configs.CONSUMER_OFFSETS).value)


def moved_record(found: Record, checks: int = 0) -> bytes:
    """The record of the half topic that represents it from now on."""
    properties = record.without_crc_mark(found.properties)
    if checks > 0:
        properties = encode_properties({record.CHECK_TIMES: str(checks)}) + VALUE_END + properties
    properties = record.with_crc_mark(properties)
    return record.encode(
        Record(
            HALF_TOPIC,
            0,
            found.body,
            properties,
            flag=found.flag,
            sys_flag=found.sys_flag,
            born_at_ms=found.born_at_ms,
            born_host=found.born_host,
            store_host=found.store_host,
            reconsume_times=found.reconsume_times,
        )
    )


def op_record(found: Record, now_ms: int) -> bytes:
    """The record that ends a half message, as the broker writes it; it does not say how."""
    named = {
        record.REAL_TOPIC: as_text(value_of(found.properties, _REAL_TOPIC)),
        record.TRANSACTION_ID: halves.message_id_of(found.properties),
        _ENDED_AT.decode(): str(found.position),
        record.TAGS: "d",
    }
    properties = record.with_crc_mark(encode_properties({name: value for name, value in named.items() if value}))
    host = found.store_host
    return record.encode(
        Record(ROCKSDB_OP_TOPIC, 0, b"\0", properties, born_at_ms=now_ms, born_host=host, store_host=host)
    )
