"""Brings the ends of half messages and the table of open transactions in line with the log.

units      marked with the ends in records after the checkpoint; marks of records that the log has lost are removed
table      that of the checkpoint, less later ends, plus later prepares; without a file, the transactions open in
           the log, found by a walk from the first of them
op records missing ones are staged
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import structlog
from duetime_format import halves, record
from duetime_format.errors import DamagedBytes
from duetime_format.halves import are_ended, ends_of
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import value_of
from duetime_format.record import Record, tags_code
from duetime_format.units import Ints, Units, joined
from duetime_shard import halves as halves_on_disk
from duetime_shard.disk import LocalFiles
from duetime_shard.halves import OpenHalf

from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.halfqueue import HalfOutcome
from duetime_store.recovery.checkloading import load_checks
from duetime_store.recovery.checkpoint import Checkpoint
from duetime_store.recovery.halfreplay import HalfReplay
from duetime_store.transactions import tablefile
from duetime_store.transactions.table import OpenTransactions
from duetime_store.transactions.tablefile import SavedTransactions
from duetime_store.writing.store import Store

log = structlog.get_logger()

_STEP_UNITS = 8_192
_HALF_TOPIC = HALF_TOPIC.encode()
_TAGS = record.TAGS.encode()


def load_transactions(
    store: Store,
    folder: Path,
    point: Checkpoint | None,
    first: int,
    replay: HalfReplay,
    table: OpenTransactions,
    timeout_ms: int,
) -> None:
    """Fills an empty table.

    Args:
        point: the checkpoint to which the queues were brought before the log was read.
        first: the offset after the last half message at that checkpoint.

    Raises:
        OSError.
    """
    if replay.next_offset:
        # A power cut in async mode may lose a half message and keep its end: new ones get no such offset.
        store.queues.get_bytes(_HALF_TOPIC, 0).continue_at(replay.next_offset)
    queue = store.halves.queue
    if queue is None or queue.max_offset == 0:
        return
    started = time.perf_counter()
    ends = replay.ends()
    store.halves.mark(ends)
    saved, reason = tablefile.read(folder, point.position) if point else (None, "the whole log was read")
    loading = _HalfLoader(store, queue, table, timeout_ms, ends, point.position if point else 0)
    if saved is not None:
        loading.bring_up_to_date(saved, first)
    else:
        loading.judge(folder)
        took_ms = int((time.perf_counter() - started) * 1000)
        log.info("open transactions found in the log", reason=reason, transactions=len(table), took_ms=took_ms)
    load_checks(store, table, saved.position if saved is not None else 0)
    try:
        store.halves.write()
    except OSError as error:
        # The marks wait in memory.
        log.error("ends of half messages not written", error=str(error))
    now_ms = store.clock.now_ms()
    for code, offsets in replay.torn().items():
        for body in halves.op_bodies(offsets):
            store.stage_own(halves.op_record(body, code, now_ms))


class _HalfLoader:
    def __init__(
        self,
        store: Store,
        queue: ConsumeQueue,
        table: OpenTransactions,
        timeout_ms: int,
        ends: Mapping[int, HalfOutcome],
        since: int,
    ) -> None:
        """`ends`: all ends in the log from position `since` on."""
        self._ends = np.array(sorted(ends), np.int64)
        self._since = since
        self._store = store
        self._queue = queue
        self._table = table
        self._timeout_ms = timeout_ms

    def bring_up_to_date(self, saved: SavedTransactions, first: int) -> None:
        rows = saved.rows
        kept = self._open(rows.offsets)
        known = np.isin(rows.offsets, kept)
        self._table.add(
            kept,
            [saved.names[number] for number in rows.groups[known].tolist()],
            rows.next_check_at_ms[known],
            rows.stored_at_ms[known],
            rows.checks[known],
        )
        stop = self._queue.max_offset
        for at in range(max(first, self._queue.min_offset), stop, _STEP_UNITS):
            self._add(self._open(np.arange(at, min(at + _STEP_UNITS, stop))))

    def _open(self, offsets: Ints) -> Ints:
        """The open ones of these half messages; removes marks whose records the log has lost."""
        store = self._store
        units = store.halves.units(offsets)
        tags = units["tags"].astype(np.int64)
        ended, there = are_ended(tags), units["size"] > 0
        lost = there & ended & (ends_of(tags).positions >= self._since) & ~np.isin(offsets, self._ends)
        if lost.any():
            store.halves.reopen(offsets[lost], np.array([self._tag_of(unit) for unit in units[lost]], np.int64))
        return offsets[there & (~ended | lost)]

    def _tag_of(self, unit: Units) -> int:
        try:
            found = record.decode(self._store.read_record(int(unit["position"]), int(unit["size"])), check_crc=False)
        except DamagedBytes:
            return 0
        return tags_code(value_of(found.properties, _TAGS))

    def _add(self, offsets: Ints) -> None:
        """Adds half messages by their records; an unreadable one can't be committed either."""
        rows = []
        for offset, (position, size, _) in zip(
            offsets.tolist(), self._store.halves.units(offsets).tolist(), strict=True
        ):
            try:
                half = record.decode(self._store.read_record(position, size))
            except DamagedBytes as error:
                log.warning("half message can't be read", offset=offset, position=position, damage=error.text)
            else:
                rows.append(self._row(offset, half))
        self._table_add(rows)

    def _row(self, offset: int, half: Record) -> OpenHalf:
        properties = half.properties
        group, checks = halves.group_of(properties), halves.checks_of(properties)
        immunity_ms = halves.immunity_ms(properties, 0)
        return OpenHalf(offset, half.position, half.size, group, checks, half.stored_at_ms, immunity_ms)

    def _table_add(self, rows: Sequence[OpenHalf]) -> None:
        if not rows:
            return
        offsets, _, _, groups, checks, stored_at_ms, immunity_ms = zip(*rows, strict=True)
        stored, asked_ms = np.array(stored_at_ms, np.int64), np.array(immunity_ms, np.int64)
        self._table.add(
            np.array(offsets, np.int64),
            groups,
            stored + np.where(asked_ms > 0, asked_ms, self._timeout_ms),
            stored,
            np.array(checks, np.int64),
        )

    def judge(self, folder: Path) -> None:
        """Judges the whole queue by the log, including a broker's half messages."""
        queue, store = self._queue, self._store
        offsets = np.arange(queue.min_offset, queue.max_offset)
        for first in range(0, len(offsets), _STEP_UNITS):
            self._open(offsets[first : first + _STEP_UNITS])
        units = joined(
            store.halves.units(offsets[first : first + _STEP_UNITS]) for first in range(0, len(offsets), _STEP_UNITS)
        )
        judged = halves_on_disk.judge(LocalFiles(folder), offsets, units, end=store.log.end)
        store.halves.mark_tags(judged.ended, judged.tags)
        self._table_add(judged.open)
