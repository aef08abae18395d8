"""Half messages of an export, written so that a broker asks about the open ones, and about no other.

A broker reads half messages from its progress in their queue, and counts as ended those named by op records from its
progress in theirs. DueTime's op records have the format of brokers from 5.1 on; older ones can't read them. So a broker
must read none of them, and only open half messages:

             half     0 ......... start ........... end ............... end + n
             open     appended ──────┼─ as it is ────┼──▶ copies ────────────▶
             ended    never read     │ there is none │

A copy is the record that a broker appends when it asks: the half message again, with a new offset and
TRANSACTION_CHECK_TIMES. A later reader of the directory takes the newest copy for the transaction
(duetime_shard.halves).

If only a broker has ended transactions, and the target finds the open ones by its records, all stays as it is. Open
ones of a broker with transactions in RocksDB, which no store has moved yet, are appended too.

A delay would lose the message: a broker that asks defers the half message itself, and discards it when it falls due. So
a copy has none, and its message is delivered on commit.

Source: RocketMQ 4.9.3, 5.3.3 TransactionalMessageServiceImpl.check; CommitLog.asyncPutMessage, HookUtils.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.halves import ENDED, checks_of, decision_of, ended_by
from duetime_format.names import HALF_TOPIC, OP_TOPIC
from duetime_format.properties import NAME_END, VALUE_END, value_of
from duetime_format.record import Record
from duetime_format.timers import java_long
from duetime_format.units import UNIT_TYPE, joined
from duetime_shard import halves
from duetime_shard.brokers import halves as rocksdbhalves
from duetime_shard.disk import LocalFiles
from duetime_shard.files import QueueFiles
from duetime_shard.halves import OpenHalf
from duetime_shard.levels import hash_of_tags
from duetime_shard.shard import DirectoryState

from duetime_store.files import configs
from duetime_store.offline.logend import LogEnd
from duetime_store.offline.queuefiles import all_units
from duetime_store.offline.report import VerifyReport
from duetime_store.transactions import tablefile

KEY = (HALF_TOPIC, 0)
_OPS = (OP_TOPIC, 0)
_CHECKS = record.CHECK_TIMES.encode()
_LEVEL = record.DELAY.encode()
_TIMES = tuple(name.encode() for name in (record.TIMER_DELAY_SEC, record.TIMER_DELAY_MS, record.TIMER_DELIVER_MS))
_NOT_COPIED = frozenset((_LEVEL, *_TIMES, _CHECKS, halves.PREPARED_OFFSET.encode()))


class HalfExport:
    """Writes the open half messages of queue 0 into a copy of the log."""

    def __init__(self, state: DirectoryState, *, reads_many: bool = True) -> None:
        """`reads_many`: the target reads op records of several half messages, as brokers from 5.1 on do."""
        self._state = state
        known = _heard(state.root)
        opened = halves.of_state(state).open
        self.open = [half._replace(checks=max(half.checks, known.get(half.offset, 0))) for half in opened]
        queue = state.queues.get(KEY)
        self.start = self.end = queue.max_offset if queue is not None else 0
        # Units of appended records.
        self.appended = np.empty(0, UNIT_TYPE)
        self._in_rocksdb = [half.record for half in rocksdbhalves.of_state(state)]
        self.count = len(self.open) + len(self._in_rocksdb)
        found = [*map(self._read, self.open), *self._in_rocksdb]
        self.delayed_count = sum(_has_delay(one.properties) for one in found)
        self._stays = not self._in_rocksdb and self._is_a_brokers(reads_many=reads_many)
        if self._stays:
            self.start = self.open[0].offset if self.open else self.end
            return
        for half in reversed(self.open):
            if half.offset != self.start - 1 or not _is_plain(self._read(half).properties, half.checks):
                break
            self.start = half.offset

    def _is_a_brokers(self, *, reads_many: bool) -> bool:
        """Whether a broker that finds its own queues and progress asks about the open ones, and about no other."""
        progress = halves.progress_of(self._state.files, 0, self.end)
        if progress is None or not all(_is_plain(self._read(half).properties, half.checks) for half in self.open):
            return False
        queue, ended = self._state.queues.get(_OPS), set[int]()
        for _, units in queue.read() if queue is not None else ():
            for position, size, _ in units.tolist():
                try:
                    found = record.decode(self._state.log.read(position, size), check_crc=False)
                    ended.update(ended_by(found.body))
                except DamagedBytes:
                    return False
                if decision_of(found.properties) != ENDED or (b"," in found.body and not reads_many):
                    return False
        return [half.offset for half in self.open] == [one for one in range(progress, self.end) if one not in ended]

    def _read(self, half: OpenHalf) -> Record:
        return record.decode(self._state.log.read(half.position, half.size), check_crc=False)

    def append(self, log_end: LogEnd) -> None:
        """Appends those that a broker would not read at their place."""
        units: list[tuple[int, int, int]] = []
        passed = [(self._read(half), half.checks) for half in self.open if half.offset < self.start]
        for found, checks in [*passed, *((found, 0) for found in self._in_rocksdb)]:
            properties = _copied(found.properties, checks)
            moved = replace(found, topic=HALF_TOPIC, queue_offset=self.end + len(units), properties=properties)
            data = record.encode(moved)
            units.append((log_end.append(data, properties), len(data), hash_of_tags(found)))
        self.appended = np.array(units, UNIT_TYPE)

    def progress(self) -> dict[str, dict[int, int]]:
        """A broker's progress, in the form of consumerOffset.json. Empty: there never was a half message, or it
        stays."""
        if self._stays:
            return {}
        queues = self._state.queues
        ops = queues[_OPS].max_offset if _OPS in queues else 0
        known = {HALF_TOPIC: self.start, OP_TOPIC: ops} if KEY in queues or self._in_rocksdb else {}
        return {halves.progress_name(topic): {0: offset} for topic, offset in known.items()}

    def check(self, files: LocalFiles, report: VerifyReport) -> None:
        """Reports half messages that a broker opening the directory would ask about wrongly."""
        if KEY not in self._state.queues and not len(self.appended):
            return
        queue = QueueFiles(files, *KEY)
        units = joined(all_units(queue))
        found = halves.judge(files, np.arange(queue.max_offset - len(units), queue.max_offset), units).open
        kept = [half.offset for half in self.open if half.offset >= self.start]
        expected = [*kept, *range(self.end, self.end + len(self.appended))]
        if [half.offset for half in found] != expected:
            what = f"a broker would find {len(found)} half messages open, {len(expected)} are"
            report.add(f"config/{configs.CONSUMER_OFFSETS}", 0, what)


def _heard(root: Path) -> dict[int, int]:
    """Heard checks by half message, as of the newest checkpoint; empty without the file."""
    try:
        rows = tablefile.decode((root / tablefile.FILE).read_bytes()).rows
    except (OSError, DamagedBytes):
        return {}
    return dict(zip(rows.offsets.tolist(), rows.checks.tolist(), strict=True))


def _has_delay(properties: bytes) -> bool:
    return (java_long(value_of(properties, _LEVEL)) or 0) > 0 or any(value_of(properties, name) for name in _TIMES)


def _is_plain(properties: bytes, checks: int) -> bool:
    """Whether a broker may read it as it is."""
    is_copy = bool(value_of(properties, halves.PREPARED_OFFSET.encode()))
    return not is_copy and not _has_delay(properties) and checks_of(properties) == checks


def _copied(properties: bytes, checks: int) -> bytes:
    parts = [
        part
        for part in record.without_crc_mark(properties).split(VALUE_END)
        if part and part.split(NAME_END, 1)[0] not in _NOT_COPIED
    ]
    if checks:
        parts.append(_CHECKS + NAME_END + b"%d" % checks)
    joined_parts = VALUE_END.join(parts)
    return record.with_crc_mark(joined_parts) if record.has_crc_mark(properties) else joined_parts + VALUE_END
