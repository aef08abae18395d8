"""Finds open half messages of a directory, and the ends of the others: from the log, whether DueTime or a broker wrote
it.

    its unit has a mark (duetime_format.halves)                    ended, as the mark says
    an op record names it                                          ended, as the record says: a broker's does not
    a record with COMMIT names it, by DT_HALF or by its place      committed: a kill may have kept back the op record
    its message is in TRANS_CHECK_MAX_TIME_TOPIC                   given up
    a broker's progress has passed it                              ended
    all others                                                     open

A broker appends a half message again at each check, with TRANSACTION_CHECK_TIMES, or with TRAN_PREPARED_QUEUE_OFFSET
during its immunity. All of these are one transaction: the end of one ends all; otherwise the newest is open and
represents the others. A broker only looks for op records that name the newest: if the producer ended an older one, by
its place, the broker would check and commit a second time.

If consumerOffset.json is missing, or its progress is beyond the queue's end because a power cut has shortened the log,
the log alone decides.

Source: RocketMQ 4.9.3, 5.3.3 TransactionalMessageServiceImpl.check, TransactionalMessageBridge.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from duetime_format import halves, layout, record
from duetime_format.columns import Ints, RecordRun
from duetime_format.errors import DamagedBytes
from duetime_format.names import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from duetime_format.properties import as_text, number_of, value_of
from duetime_format.record import Record
from duetime_format.units import FILLER_SIZE, Mask, Units, joined

from duetime_shard import configs
from duetime_shard.brokers import halves as rocksdbhalves
from duetime_shard.disk import ShardFiles
from duetime_shard.facts import may_decide
from duetime_shard.files import LogFiles
from duetime_shard.shard import DirectoryState
from duetime_shard.walk import scan_runs

# Group of the brokers' own progress in the half queue and in that of op records.
GROUP = "CID_RMQ_SYS_TRANS"
# Offset of the first of the half messages that a broker appended during an immunity.
PREPARED_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"

_HALF = HALF_TOPIC.encode()
_REAL_TOPIC, _PREPARED = record.REAL_TOPIC.encode(), PREPARED_OFFSET.encode()


class OpenHalf(NamedTuple):
    """A half message that has not ended."""

    offset: int
    position: int
    size: int
    # Producer group; empty: none named.
    group: str
    # Number of checks by producers.
    checks: int
    stored_at_ms: int
    # Requested immunity; 0: none.
    immunity_ms: int


class UnmarkedHalves(NamedTuple):
    """The half messages of a queue without a mark."""

    # Sorted by offset.
    open: list[OpenHalf]
    # Offsets of the ended ones, ascending, and the tagsCodes that mark their units.
    ended: Ints
    tags: Ints


class _Key(NamedTuple):
    """The key shared by a half message and its copies."""

    id: str
    topic: bytes
    group: str


@dataclass(slots=True)
class _Half:
    offset: int
    position: int
    size: int
    key: _Key
    checks: int
    # Offset of the first one, from its copy; None: not such a copy.
    first: int | None
    born_at_ms: int
    stored_at_ms: int
    immunity_ms: int
    # Positions of all its records: retention appends an open one again, at its offset.
    positions: list[int] = field(default_factory=list)

    @property
    def is_copy(self) -> bool:
        return self.checks > 0 or self.first is not None


def of_state(state: DirectoryState, queue: int = 0) -> UnmarkedHalves:
    """The half messages of a directory whose log has been walked."""
    known = state.queues.get((HALF_TOPIC, queue))
    parts = list(known.read()) if known is not None else []
    offsets = np.concatenate([np.empty(0, np.int64), *(part for part, _ in parts)])
    return judge(state.files, offsets, joined(units for _, units in parts), queue=queue, end=state.end)


def judge(files: ShardFiles, offsets: Ints, units: Units, *, queue: int = 0, end: int | None = None) -> UnmarkedHalves:
    """Judges half messages.

    Args:
        offsets, units: all half messages of the queue, ascending; a filler or a size of 0 means a gone one.
        end: of the log; None: that of its files.
    """
    there = (units["size"] > 0) & (units["size"] != FILLER_SIZE)
    unmarked = there & ~halves.are_ended(units["tags"])
    passed = offsets < (progress_of(files, queue, int(offsets[-1]) + 1 if len(offsets) else 0) or 0)
    ended = dict.fromkeys(offsets[unmarked & passed].tolist(), halves.end_tag(halves.ENDED, 0))
    chosen = unmarked & ~passed
    log = LogFiles(files)
    candidates = {}
    for offset, (position, size, _) in zip(offsets[chosen].tolist(), units[chosen].tolist(), strict=True):
        found = _read(log, position, size)
        if found is None:
            # Damaged: it cannot be committed.
            ended[offset] = halves.end_tag(halves.ENDED, 0)
        else:
            candidates[offset] = found
    walk = _HalfWalk(queue)
    if candidates:
        for item in scan_runs(log, _start(log, candidates, int(offsets[-1])), end):
            walk.see(item)
    log.close()
    left = []
    for offset, tag in walk.ends(candidates):
        if tag is not None:
            ended[offset] = tag
        else:
            left.append(_opened(candidates[offset]))
    rows = sorted(ended.items())
    numbers, tags = (np.array([row[column] for row in rows], np.int64) for column in range(2))
    return UnmarkedHalves(left, numbers, tags)


def progress_name(topic: str) -> str:
    """The key of brokers' progress in a topic, in consumerOffset.json."""
    return f"{topic}@{GROUP}"


def progress_of(files: ShardFiles, queue: int, end: int) -> int | None:
    """A broker's progress in the half queue, which ends at `end`; None: unknown."""
    table = configs.table_of(configs.load_from(files, configs.CONSUMER_OFFSETS).value, "offsetTable")
    found = configs.table_of(table, progress_name(HALF_TOPIC)).get(str(queue))
    return found if isinstance(found, int) and found <= end else None


def _read(log: LogFiles, position: int, size: int) -> _Half | None:
    try:
        found = record.decode(log.read(position, size), check_crc=False)
    except DamagedBytes:
        return None
    return _half(found) if found.position == position and found.topic == HALF_TOPIC else None


def _half(found: Record) -> _Half:
    properties = found.properties
    return _Half(
        found.queue_offset,
        found.position,
        found.size,
        _key(found),
        halves.checks_of(properties),
        number_of(value_of(properties, _PREPARED)),
        found.born_at_ms,
        found.stored_at_ms,
        halves.immunity_ms(properties, 0),
        [found.position],
    )


def _key(found: Record) -> _Key:
    properties = found.properties
    # Other fields shared by copies, if there is no id.
    message_id = halves.message_id_of(properties) or f"{found.born_at_ms} {found.body_crc} {found.flag}"
    return _Key(message_id, value_of(properties, _REAL_TOPIC), halves.group_of(properties))


def _opened(half: _Half) -> OpenHalf:
    return OpenHalf(
        half.offset, half.position, half.size, half.key.group, half.checks, half.stored_at_ms, half.immunity_ms
    )


def _start(log: LogFiles, candidates: dict[int, _Half], last: int) -> int:
    """The position from which the log may refer to these. An export may have appended the last of the queue again,
    after the record that ended it."""
    start = min(half.position for half in candidates.values())
    born_at_ms = [half.born_at_ms for offset, half in candidates.items() if half.is_copy or offset == last]
    return min(start, log.first_by(min(born_at_ms))) if born_at_ms else start


class _HalfWalk:
    """Reads the log, and collects the ends of half messages."""

    def __init__(self, queue: int) -> None:
        self._queue = queue
        self._halves: dict[int, _Half] = {}
        # Code and position of the op record, by offset of the half message.
        self._ops: dict[int, tuple[int, int]] = {}
        # Positions of committed records, by the position and by the offset of the half message.
        self._committed_at: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        # Positions of the messages given up.
        self._given_up: dict[_Key, int] = {}

    def see(self, item: object) -> None:
        """Takes an item; ignores items other than intact records."""
        if isinstance(item, RecordRun):
            for index in np.flatnonzero(_chosen(item)).tolist():
                self._see(item.record(index))

    def _see(self, found: Record) -> None:
        if found.topic == HALF_TOPIC:
            self._see_half(found)
        elif found.topic == OP_TOPIC:
            self._see_op(found)
        elif found.topic == GIVEN_UP_TOPIC:
            self._given_up.setdefault(_key(found), found.position)
        elif found.sys_flag & layout.SYS_TRANSACTION == layout.SYS_TRANSACTION_COMMIT:
            offset = halves.commits(found.sys_flag, found.properties)
            if offset is not None:
                self._committed.setdefault(offset, found.position)
            elif found.prepared_transaction_offset:
                self._committed_at.setdefault(found.prepared_transaction_offset, found.position)

    def _see_half(self, found: Record) -> None:
        if found.queue != self._queue or found.sys_flag & layout.SYS_TRANSACTION_PREPARED:
            return
        known = self._halves.get(found.queue_offset)
        if known is None:
            self._halves[found.queue_offset] = _half(found)
        else:
            known.positions.append(found.position)

    def _see_op(self, found: Record) -> None:
        if found.queue != self._queue:
            return
        try:
            offsets = halves.ended_by(found.body)
        except DamagedBytes:
            return
        code = halves.decision_of(found.properties)
        for offset in offsets:
            # A given-up one may be ended later.
            if self._ops.get(offset, (halves.GIVEN_UP, 0))[0] == halves.GIVEN_UP:
                self._ops[offset] = code, found.position

    def ends(self, candidates: dict[int, _Half]) -> Iterator[tuple[int, int | None]]:
        """Offsets of candidates, ascending, with the tags of their ends; None: open."""
        known = {**candidates, **self._halves}
        chains: dict[int, list[_Half]] = {}
        newest: dict[_Key, list[_Half]] = {}
        for offset in sorted(known):
            half = known[offset]
            chain = newest.get(half.key)
            if chain is None or not (half.is_copy or half.born_at_ms == chain[-1].born_at_ms):
                chain = newest[half.key] = []
            chain.append(half)
            chains[offset] = chain
        for offset in sorted(candidates):
            end = self._end_of(chains[offset])
            if end is None and chains[offset][-1].offset != offset:
                end = halves.end_tag(halves.ENDED, 0)
            yield offset, end

    def _end_of(self, chain: list[_Half]) -> int | None:
        """The tag of a transaction, from the half message and its copies."""
        ops = [self._ops[offset] for half in chain for offset in (half.offset, half.first) if offset in self._ops]
        code, position = ops[0] if ops else (None, 0)
        real = next(filter(None, map(self._real, chain)), 0)
        if real and code in (None, halves.ENDED, halves.GIVEN_UP, halves.COMMITTED):
            return halves.end_tag(halves.COMMITTED, real)
        if code == halves.COMMITTED:
            # A power cut has lost the real record: nothing was acknowledged, and nothing is delivered.
            code = None
        copy = self._given_up.get(chain[-1].key, -1)
        if copy > chain[0].position and code in (None, halves.GIVEN_UP):
            return halves.end_tag(halves.GIVEN_UP, copy)
        return halves.end_tag(code, position) if code is not None else None

    def _real(self, half: _Half) -> int:
        """The position of the record stored by its commit; 0: none."""
        places = (self._committed_at.get(position, 0) for position in half.positions)
        return self._committed.get(half.offset, 0) or next(filter(None, places), 0)


def _chosen(run: RecordRun) -> Mask:
    """Mask of the records that may concern half messages."""
    return run.within((_HALF,)) | may_decide(run)


def described(state: DirectoryState, *, listed: bool) -> dict[str, object]:
    """The open half messages, with names used by RocketMQ's tools; `listed`: one by one."""
    queues = sorted(queue for topic, queue in state.queues if topic == HALF_TOPIC)
    found = [(queue, half) for queue in queues for half in of_state(state, queue).open]
    in_rocksdb = rocksdbhalves.of_state(state)
    counted: dict[str, object] = {"pending": len(found) + len(in_rocksdb)}
    if not listed:
        return counted
    checks = rocksdbhalves.checks_of_state(state) if in_rocksdb else {}
    others = [
        _described(half.record, rocksdbhalves.KEY[1], half.offset, checks.get(half.record.position, 0))
        for half in in_rocksdb
    ]
    return counted | {"messages": [*(_described_in(state, *row) for row in found), *others]}


def _described_in(state: DirectoryState, queue: int, half: OpenHalf) -> dict[str, object]:
    found = record.decode(state.log.read(half.position, half.size), check_crc=False)
    return _described(found, queue, half.offset, half.checks)


def _described(found: Record, queue: int, offset: int, checks: int) -> dict[str, object]:
    return {
        "queueId": queue,
        "queueOffset": offset,
        "physicalOffset": found.position,
        "topic": as_text(value_of(found.properties, _REAL_TOPIC)) or None,
        "uniqKey": halves.message_id_of(found.properties) or None,
        "producerGroup": halves.group_of(found.properties) or None,
        "bornTimestamp": found.born_at_ms,
        "checks": checks,
    }
