"""The shard's state, and the only code that changes it. Synchronous, with no I/O but reads; single-threaded: no locks.

    put ──▶ staged ──(Flusher: write, fdatasync, commit)──▶ publish ──▶ readers see it, callers are answered

`put` gives every record its place (queue offset, log position, store time) and stages it. `take` hands the staged
records to the flusher as one FlushBatch; `publish` makes the oldest taken batch visible once it is committed
(committing.py). State that readers see (queue units, watermarks) changes only in `publish`; `undo` reverts all staged
changes.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
from duetime_core.errors import DiskFull, DueTimeError, InvalidArgument, Overloaded, ReadOnly, Violation
from duetime_format import record
from duetime_format.columns import Ints, has_all_ids
from duetime_format.lanes import TIMER_LANE_FIRST
from duetime_format.placing import place, reposition
from duetime_format.units import FILLER_SIZE, UNIT, Units
from duetime_shard.history import LevelHistory

from duetime_store.counting.ledger import Ledger
from duetime_store.files.gate import WriteGate
from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.intake import Intake, parse
from duetime_store.log.journal import Journal, event_records
from duetime_store.log.newkeys import NewKeys
from duetime_store.log.recent import RecentIds
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.halfqueue import HalfQueue
from duetime_store.queues.queues import Queues
from duetime_store.settings import StoreSettings
from duetime_store.writing.batches import among, faults_of, marks_of, refuse_partly_stored, refuse_whole, runs_of
from duetime_store.writing.closing import ClosedTopics
from duetime_store.writing.faults import RecordLimits, restored_faults, sent_faults
from duetime_store.writing.indexed import IndexedJournals
from duetime_store.writing.occurrences import OccurrenceStager
from duetime_store.writing.originals import Originals
from duetime_store.writing.promises import Promises
from duetime_store.writing.repeats import Repeats, answer_twins, find_twins
from duetime_store.writing.runs import runs_in
from duetime_store.writing.staging import (
    CANCELLED,
    DUPLICATE,
    GAP,
    NOT_DUE,
    OK,
    FlushBatch,
    PutOutcome,
    refuse,
    waiter,
    wake,
)
from duetime_store.writing.visible import FirstCopy, VisibleLog


class Store:
    """The state of a shard, built by recovery from the directory."""

    def __init__(
        self,
        log: CommitLog,
        queues: Queues,
        history: LevelHistory,
        clock: ShardClock,
        recent: RecentIds,
        ledger: Ledger,
        settings: StoreSettings,
    ) -> None:
        self.log = log
        self.queues = queues
        self.history = history
        self.levels = history.current
        self._timer_lanes = settings.timer_lanes
        self.clock = clock
        self.recent = recent
        self.ledger = ledger
        self.new_keys = NewKeys(log.end) if settings.index else NewKeys(log.end, 0)
        self.originals = Originals(log, self._refusal)
        self.occurrences = OccurrenceStager(recent, log.record_bytes_max, settings.timer_lanes)
        self.lanes = ShardLanes()
        self.halves = HalfQueue(queues)
        self.repeats = Repeats(history, recent, clock, queues.deletions, self.lanes, self.halves)
        self.closing = ClosedTopics(queues, clock)
        self.gate = WriteGate(clock, settings.flush_stall_ms)
        # Events of consumer groups; the next batch writes them to the log.
        self.journal = Journal()
        self.indexed = IndexedJournals(queues, log)
        self._events_undone = False
        self.undone_count = self.quarantined_count = 0  # how often staged records were taken back
        self._waiting_bytes_max = settings.waiting_bytes_max
        self.promises = Promises(clock.monotonic_ms)
        log.published_end = log.end
        self.recovered_from = 0  # the checkpoint that the start trusted covers records before it
        # Start of the published records that rely on promises. None: all are durable.
        self._owed_from: int | None = None
        self.published_at_ms = 0  # store time of the last published record
        self.staged_end = log.end
        self._waiting_bytes = 0
        self._staged = FlushBatch()
        # Taken, unpublished batches, oldest first.
        self._taken: deque[FlushBatch] = deque()
        self._publish_waiters: list[asyncio.Future[None]] = []

    def put(self, records: bytes, batches: Sequence[int] = ()) -> PutOutcome:
        """Stages records; the outcome holds once the batch is published (`when_durable`). Those that repeat one of the
        newest messages are answered with its place.

        Args:
            batches: first record and count of each run that is stored as a whole or not at all.

        Raises:
            ReadOnly: a write or flush failed before.
            DiskFull, Stalled: the shard takes no sends now (see gate.py).
            Overloaded: too many bytes wait for the flush.
            InvalidArgument: the bytes are not whole records.
        """
        self.gate.check_send()
        intake = self.admit(records)
        if batches:
            intake.batches = runs_of(batches, intake.count)
        return self._put_sent(intake)

    def admit(self, records: bytes) -> Intake:
        """Parses records to be put. Raises as `put`."""
        if not records:
            raise InvalidArgument([Violation("records", "is empty")], reason="RECORDS_INVALID")
        self.gate.check_write()
        if self.queues.late_bytes > self._waiting_bytes_max:
            text = f"{self.queues.late_bytes} bytes of queue units wait for their files"
            raise DiskFull(f"{self.gate.full}; {text}") if self.gate.full else Overloaded(text)
        if self._waiting_bytes + len(records) > self._waiting_bytes_max:
            raise Overloaded(f"{self._waiting_bytes} bytes wait for the flush; the limit is {self._waiting_bytes_max}")
        return parse(records)

    @property
    def read_only_reason(self) -> str:
        """The reason for writing nothing until a restart; empty: the shard accepts writes."""
        return self.gate.failed

    @property
    def timer_lane_count(self) -> int:
        """The number of lanes that new messages for any time are sent to; other existing lanes are emptied."""
        return sum(TIMER_LANE_FIRST + queue in self.lanes for queue in range(self._timer_lanes))

    def _refusal(self, restored: bytes) -> str:
        """The reason to reject a restored record."""
        return next(iter(restored_faults(parse(restored), self.log.record_bytes_max).values()), "")

    def sent_faults(self, intake: Intake, *, replace: bool = False) -> dict[int, str | DueTimeError]:
        """Faults of the records by index, and errors for new queues beyond the shard's limit. Restored records are
        exempt from that limit: their sends were accepted, with their topics."""
        most = RecordLimits(self.levels.highest, self.timer_lane_count, self.log.record_bytes_max)
        own, closed = sent_faults(intake, most, self.clock.now_ms(), replace=replace), self.closing.faults(intake)
        faults: dict[int, str | DueTimeError] = {**own, **closed}
        key_of = intake.key_of.tolist() if faults else []
        # Rejected records create no queues.
        taken = {number for index, number in enumerate(key_of) if index not in faults} if faults else None
        if crowded := self.queues.refuse_new(intake.keys, taken):
            key_of = intake.key_of.tolist()
            faults |= {index: crowded[number] for index, number in enumerate(key_of) if number in crowded}
        return faults

    def _put_sent(self, intake: Intake) -> PutOutcome:
        faults = self.sent_faults(intake)
        if len(intake.batches):
            faults = {**faults_of(intake, self.log.record_bytes_max), **faults}
        asked = self.repeats.among(intake)
        if not faults and not asked:
            return self._stage_all(intake)
        outcome = PutOutcome.of_nothing(intake.count, OK, self.clock.now_ms())
        for index, fault in faults.items():
            outcome.refuse(index, fault)
        refuse_whole(intake, outcome)
        self.repeats.answer(intake, outcome, asked, self.visible_log)
        twins = find_twins(intake, outcome, asked)
        for index in twins:
            outcome.statuses[index] = DUPLICATE
        if not any(outcome.statuses):
            # Only hashes were equal.
            return self._stage_all(intake)
        refuse_partly_stored(intake, outcome, twins)
        chosen = [index for index, status in enumerate(outcome.statuses) if status == OK]
        stored = PutOutcome([], stored_at_ms=outcome.stored_at_ms)
        self.stage_sent(intake.only(chosen, among(intake, chosen)), stored)
        outcome.take_places(chosen, stored)
        answer_twins(intake, outcome, twins)
        return outcome

    def _stage_all(self, intake: Intake) -> PutOutcome:
        outcome = PutOutcome([OK] * intake.count, stored_at_ms=self.clock.now_ms())
        self.stage_sent(intake, outcome)
        return outcome

    def stage_events(self) -> None:
        """Stages the journal so far as records of the batch."""
        batch = self._staged
        events, waiters = self.journal.drain()
        batch.entries += events
        batch.event_waiters += waiters
        batch.settles.append(partial(self.journal.settle, events))
        for encoded in event_records(events, self.clock.now_ms(), self.indexed.groups_since):
            self.stage_own(encoded)

    def stage_own(self, encoded: bytes) -> int:
        """Stages a record of the store's own. Returns its position."""
        self._staged.own_count += 1
        return int(self._stage(parse(encoded), PutOutcome([], stored_at_ms=self.clock.now_ms()))[0])

    @property
    def staged(self) -> FlushBatch:
        """The batch that collects staged records now."""
        return self._staged

    @property
    def unpublished(self) -> list[FlushBatch]:
        """The batches that no reader sees, newest first."""
        return [self._staged, *reversed(self._taken)]

    @property
    def oldest_taken(self) -> FlushBatch | None:
        """The batch to be published next; None: all taken ones are published."""
        return self._taken[0] if self._taken else None

    def first_copies(self, intake: Intake, asked: Sequence[int]) -> dict[int, FirstCopy]:
        """The newest records that some of `asked` repeat, by index; their places hold once all staged is durable."""
        return self.repeats.find(intake, asked, self.visible_log)

    @property
    def visible_log(self) -> VisibleLog:
        """The log, including staged records."""
        return VisibleLog(self.log, self.log.published_end, self.unpublished)

    def stage_sent(self, intake: Intake, outcome: PutOutcome) -> Ints:
        """Stages records without faults (writing/faults.py). Returns their positions."""
        positions, hashes = self._stage(intake, outcome), intake.id_hashes
        named = slice(None) if has_all_ids(intake) else hashes >= 0
        self.recent.add_all(hashes[named], positions[named], outcome.stored_at_ms)
        return positions

    def restore(self, intake: Intake, lane: ShardLane, entries: Ints, *, made_from: Units | None = None) -> PutOutcome:
        """Stages the restored records of `entries`, one of each, strictly in order: after a rejected one all others are
        gaps, except those already restored or cancelled.

        Args:
            made_from: the entries' units, if the store made the records. None: each is compared with its entry.
        """
        outcome = PutOutcome.of_nothing(intake.count, GAP, self.clock.now_ms())
        if lane.are_next(entries):
            self._restore(intake, outcome, lane, np.arange(intake.count), entries, made_from)
        else:
            fence = lane.fence(entries)
            outcome.mark(DUPLICATE, fence.restored)
            outcome.mark(CANCELLED, fence.cancelled)
            if len(chosen := np.flatnonzero(fence.is_next)):
                own = None if made_from is None else made_from[chosen]
                self._restore(intake, outcome, lane, chosen, entries[chosen], own)
        outcome.watermark = lane.reached
        return outcome

    def _restore(
        self, intake: Intake, outcome: PutOutcome, lane: ShardLane, chosen: Ints, entries: Ints, made_from: Units | None
    ) -> None:
        """Stages the records at `chosen`, up to the first that is rejected.

        Each record holds the due time that the reader gave out after comparing it with the entry's record, so it is
        right if the unit has the same."""
        now_ms = outcome.stored_at_ms
        units = lane.units(entries) if made_from is None else made_from
        dues = units["tags"].astype(np.int64)
        fit = dues <= now_ms
        if made_from is None:
            fit &= intake.name_entries(chosen, lane.number, entries, dues)
        faults = restored_faults(intake, self.log.record_bytes_max)
        if faults:
            fit &= ~np.isin(chosen, list(faults))
        stop, mismatch = len(dues) if fit.all() else int(fit.argmin()), ""
        if made_from is None:
            stop, mismatch = self.originals.genuine(intake, chosen[:stop], lane.number, entries[:stop], units[:stop])
        if stop < len(dues):
            index = int(chosen[stop])
            if dues[stop] > now_ms:
                outcome.statuses[index] = NOT_DUE
            else:
                name = f"{record.LANE_ENTRY}={lane.number}:{entries[stop]}:{dues[stop]}"
                outcome.refuse(index, mismatch or faults.get(index) or f"does not end with {name}")
        if stop:
            self._stage_restored(intake, outcome, lane, chosen[:stop].tolist(), entries[:stop], units[:stop])

    def _stage_restored(
        self, intake: Intake, outcome: PutOutcome, lane: ShardLane, chosen: list[int], entries: Ints, units: Units
    ) -> None:
        stored = PutOutcome([], stored_at_ms=outcome.stored_at_ms)
        taken = intake if len(chosen) == intake.count else intake.only(chosen)
        self._staged.is_chained |= self.occurrences.stage(self._stage, taken, stored, lane, self._staged.settles)
        if chosen[-1] - chosen[0] < len(chosen):
            run = slice(chosen[0], chosen[-1] + 1)
            outcome.statuses[run], outcome.queue_offsets[run] = [OK] * len(chosen), stored.queue_offsets
        else:
            for index, offset in zip(chosen, stored.queue_offsets, strict=True):
                outcome.statuses[index], outcome.queue_offsets[index] = OK, offset
        lane.stage(entries, units)
        self._staged.restored.append(self.ledger.leaving(lane, taken, entries, units["tags"].astype(np.int64)))
        queues = [self.queues.get_bytes(*key) for key in taken.keys]
        if kept := self.promises.keep(lane, queues, taken.key_of, entries, stored.queue_offsets):
            self._staged.promises += kept
            self._staged.promised_count += len(entries)

    def _stage(self, intake: Intake, outcome: PutOutcome) -> Ints:
        """Gives all records queue offset, position and time, and adds them to the batch. Returns their positions."""
        if not intake.count:
            return np.empty(0, np.int64)
        now_ms = outcome.stored_at_ms
        queues = [self.queues.get_bytes(topic, queue_id) for topic, queue_id in intake.keys]
        lanes = [self.lanes.of(queue) for queue in queues]
        dues = [lane.due_if_stored(now_ms) if lane else 0 for lane in lanes]
        runs, self.staged_end = runs_in(self.log, self.staged_end, intake)
        parts = [intake.starts[start:stop] + shift for start, stop, shift in runs]
        positions = parts[0] if len(parts) == 1 else np.concatenate(parts)
        marks = marks_of(intake, positions)
        placed = place(intake, positions, [queue.next_offset for queue in queues], dues, now_ms, marks)
        outcome.place(placed, dues, intake.key_of)
        batch, at = self._staged, 0
        batch.stored_at_ms = now_ms
        for key, (queue, lane, count) in enumerate(zip(queues, lanes, placed.counts, strict=True)):
            units = placed.units[at : at + count * UNIT.size]
            if lane is not None:
                self.queues.counts.grow(queue.topic, queue.queue + 1)
                rows = self.ledger.arriving(lane, intake, key, queue.next_offset, units)
                lane.arriving(rows.dues)
                batch.added.append(rows)
            queue.next_offset += count
            queue.staged += units
            batch.queues[queue] = batch.queues.get(queue, 0) + count
            at += count * UNIT.size
        self._add_runs(placed.data, intake, runs)
        return positions

    def _add_runs(self, placed: bytearray, intake: Intake, runs: list[tuple[int, int, int]]) -> None:
        """Adds records to the batch, and their index keys."""
        batch = self._staged
        batch.add(placed, intake, runs, self.log.segment_bytes)
        batch.keys.append((batch.end, self.new_keys.of(intake, placed)))
        self._waiting_bytes += len(placed)

    def move(self, queue: ConsumeQueue, offsets: Ints, units: Units, records: bytes) -> None:
        """Stages copies of records that published units name; `units` replace those at `offsets` once they are durable.

        Args:
            units: of the queue, in order of offset; those without a record are fillers.
            records: those of all other units, back to back.

        Raises:
            ReadOnly, OSError: nothing is moved.
        """
        self.gate.check_write()
        if not records:
            queue.repoint(offsets, units)
            return
        intake = parse(records)
        runs, self.staged_end = runs_in(self.log, self.staged_end, intake)
        positions = np.concatenate([intake.starts[start:stop] + shift for start, stop, shift in runs])
        units["position"][units["size"] != FILLER_SIZE] = positions
        self._staged.moved.append((queue, offsets, units))
        self._staged.own_count += intake.count
        self._add_runs(reposition(intake, positions), intake, runs)

    @property
    def is_idle(self) -> bool:
        """Whether everything staged is published."""
        return not self._staged.count and not self._taken

    def when_durable(self) -> "asyncio.Future[None] | None":
        """Done when everything staged so far is published. None: it is."""
        if self._staged.count:
            return waiter(self._staged.done)
        return waiter(self._taken[-1].done) if self._taken else None

    def when_taken(self) -> "asyncio.Future[None] | None":
        """Done when everything staged so far goes to the disk, or is dropped. None: nothing is staged."""
        return waiter(self._staged.taken) if self._staged.count else None

    def when_events_durable(self) -> "asyncio.Future[None] | None":
        """Done when every event so far is durable, also by a second write after a full disk. None: all are durable."""
        if self.journal.entries:
            return waiter(self.journal.waiters)
        batch = next((batch for batch in self.unpublished if batch.entries), None)
        return None if batch is None else waiter(batch.event_waiters)

    def next_publish(self) -> "asyncio.Future[None]":
        """Done at the next publish, when published records become durable, and when all writing ends."""
        return waiter(self._publish_waiters)

    def take(self, *, is_wanted: bool = False) -> FlushBatch | None:
        """The staged batch, for the flusher to make durable; None: nothing is staged, and no empty one `is_wanted`."""
        if self.read_only_reason:
            return None
        if self.journal.waiters or (self.journal.entries and self._staged.count):
            self.stage_events()
        if not self._staged.count and not is_wanted:
            return None
        batch, self._staged = self._staged, FlushBatch()
        self._taken.append(batch)
        wake(batch.taken)
        return batch

    def publish(self, batch: FlushBatch, now_ms: float) -> OSError | None:
        """Publishes the oldest taken batch: readers see it, watermarks move, waiting callers resume. Returns the error
        that kept units from being written, if any; these are then late, and nothing else differs."""
        self.queues.shared.begin_publish()
        trouble = batch.publish_units()
        self.ledger.publish(batch.added, batch.restored, batch.ended)
        self.quarantined_count += batch.publish_entries(now_ms)
        trouble = batch.repoint(self._may_have_ended) or trouble
        trouble = batch.end_entries() or trouble
        self.new_keys.publish(batch.keys)
        oldest = self._taken.popleft()
        assert batch is oldest, "batches are published in the order of the log"
        if batch.is_promised and self._owed_from is None:
            self._owed_from = self.log.published_end
        self.log.published_end, self.published_at_ms = batch.end, batch.stored_at_ms
        self._waiting_bytes -= batch.size
        self._events_undone &= not batch.entries
        for callback in batch.settles:
            callback(True)
        wake((*batch.done, *batch.event_waiters, *self._publish_waiters))
        self._publish_waiters.clear()
        for queue in batch.queues:
            queue.wake()
        return trouble

    def _may_have_ended(self, queue: ConsumeQueue) -> bool:
        return self.lanes.of(queue) is not None or queue is self.halves.queue

    def undo(self) -> "list[asyncio.Future[None]]":
        """Drops everything staged and not published. Returns the waiting callers, to be given an error. The log has to
        be cut back to `published_end` before the next batch is written."""
        callers: list[asyncio.Future[None]] = []
        self.promises.clear()
        for batch in self.unpublished:
            callers += batch.done
            batch.undo()
            callers += self._undo_events(batch)
        wake(self._staged.taken)
        self._taken.clear()
        self._staged = FlushBatch()
        self.staged_end = self.log.published_end
        self.recent.cut(self.staged_end)
        self._waiting_bytes = 0
        self._events_undone = bool(self.journal.entries)
        self.undone_count += 1
        return callers

    def _undo_events(self, batch: FlushBatch) -> "list[asyncio.Future[None]]":
        """Keeps group events: the next batch writes them, and their waiters keep waiting. If this is their second
        failure, returns the waiters."""
        if not batch.entries:
            return []
        refused = batch.event_waiters if self._events_undone or self.gate.failed else []
        self.journal.requeue(batch.entries, [] if refused else batch.event_waiters)
        return refused

    def fail(self, reason: str, cause: BaseException | None = None) -> ReadOnly:
        """Ends all writing, and fails waiting and later callers. Returns their error: `cause`, if that is one."""
        self.gate.fail(reason)
        error = cause if isinstance(cause, ReadOnly) else ReadOnly(f"the shard accepts no writes:  {reason}")
        refuse(self.undo(), error)
        refuse(self.journal.waiters, error)
        self._wake_publish_waiters()
        return error

    @property
    def published_end(self) -> int:
        """See CommitLog."""
        return self.log.published_end

    @property
    def durable_end(self) -> int:
        """The log is flushed (async mode: written) and committed up to here; readers see it up to `published_end`."""
        return self.log.published_end if self._owed_from is None else self._owed_from

    def flushed(self, end: int) -> None:
        """Notes that all published records before `end` are flushed and committed."""
        if self._owed_from is not None and end > self._owed_from:
            self._owed_from = end if end < self.log.published_end else None
            self._wake_publish_waiters()

    def _wake_publish_waiters(self) -> None:
        wake(self._publish_waiters)
        self._publish_waiters.clear()

    def read_record(self, position: int, size: int) -> bytes:
        """As CommitLog.read_record."""
        return self.log.read_record(position, size)
