"""The lives of one shard on a disk that can lose power, and the plain model of that shard.

One life is an opened directory with the store's own flusher and checkpointer, driven step by step without threads. A
step is a send, a restore, a flush, a checkpoint, …; power may be cut in the middle of any of them. The next life begins
with recovery, and checks the recovered shard against the model:

    answered      stored once, at the answered place
    refused       not stored
    else          stored once or not at all
    lanes         every entry before the watermark is restored; every other is pending, and none is early
    timers        the same, by entry; pending entries come in the order of due times
"""

import asyncio
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from duetime_core.errors import DiskFull, DueTimeError, ReadOnly
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import lane_of
from duetime_format.names import PLANS_TOPIC, QUARANTINE_TOPIC, STATE_TOPIC
from duetime_format.properties import decode_properties
from duetime_format.record import Record
from duetime_format.restore import PulledEntry, quarantine, restore
from duetime_format.units import Ints
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.reserve import Reserve
from duetime_store.files.worker import FileWorker
from duetime_store.lanes.alarm import ShardClock
from duetime_store.metrics import StoreMetrics
from duetime_store.queues import queuetable
from duetime_store.queues.queuetable import QueueTableFile
from duetime_store.queues.topics import TopicFile
from duetime_store.recovery.checkpointer import Checkpointer, CheckpointKeeper
from duetime_store.recovery.recovery import open_store
from duetime_store.recovery.saving import keepers_of
from duetime_store.settings import StoreSettings
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.late import LateWriter
from duetime_store.writing.staging import DUPLICATE, OK, PutOutcome
from duetime_store.writing.store import Store
from duetime_store.writing.watch import DiskWatch
from prometheus_client import CollectorRegistry

from tests.faulty_disk import GIB
from tests.power_disk import PowerCut, PowerDisk
from tests.store.conftest import MIB, HandClock, sent, timer
from tests.store.counted import check_counts
from tests.store.here import Here
from tests.store.life_commits import Committing
from tests.store.life_lanes import LEVELS, TIMERS, Found, check_levels, check_timers
from tests.store.life_promises import Promising
from tests.store.life_sends import Message, Put, answered, check_batches, unanswered
from tests.store.life_topics import Making

TOPICS = ("orders", "mail")
QUEUES = 2
# How long messages for any time wait.
DELAYS_MS = (1, 300, 1_000, 1_000, 2_500, 40_000)
RESERVE_BYTES = 256 * 1024


class Life(Promising, Committing, Making):
    """See the module. `check` after each opening is the test. `others`: ids that are not sent again as they are."""

    others: Collection[str] = ()

    def __init__(self, root: Path, dice: random.Random, *, mode: str = "sync", timer_lanes: int = 1) -> None:
        Promising.__init__(self)
        Committing.__init__(self, mode)
        Making.__init__(self)
        self.root, self.dice = root, dice
        self.clock, self.sync = self.make_clock(), mode != "async"
        self.settings = StoreSettings.model_validate(
            {
                "data_dir": root,
                "delay_levels": "1s 5s",
                "segment_bytes": MIB,
                "queue_file_units": 100,
                "flush_mode": "sync" if self.sync else mode,
                "recent_ids_count": 10_000,
                "recent_ids_ms": 86_400_000,
                "queue_files_max": 3,
                "timer_lanes": timer_lanes,
                "flush_stall_ms": 1 << 40,
            }
        )
        self.loop = asyncio.new_event_loop()
        self.messages: dict[str, Message] = {}
        # Watermark of each level: every entry before it was answered as restored.
        self.restored = [0] * (LEVELS + 1)
        # Entries of the lane for any time that were answered as restored.
        self.timers: set[int] = set()
        self.puts: list[Put] = []
        self.batches: list[list[str]] = []
        # Async mode: ids answered since the last flush, which a power cut may take; lanes at that flush.
        self.unflushed: set[str] = set()
        self.flushed = [0] * (LEVELS + 1)
        self.flushed_timers: set[int] = set()
        # Number of crashes, and the effect of each power cut.
        self.points = 0
        self.told: list[str] = []
        self.disk: PowerDisk | None = None
        self._next_cut, self._count = -1, 0
        self.directory: StoreDirectory | None = None
        self._open()

    def make_clock(self) -> HandClock:
        return HandClock()

    # --- lives ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Opens the directory; a power cut during the opening starts another life."""
        while True:
            before, self.disk = self.disk, PowerDisk(self.root, self.dice)
            if before is not None and not before.is_lost:
                self.disk.go_on_from(before)
            self.disk.cut_power_in(self._next_cut)
            self._next_cut = -1
            try:
                self._begin()
                return
            except PowerCut:
                self._end()
                self._lose()

    def _begin(self) -> None:
        directory = self.directory = StoreDirectory(self.root, self.disk)
        self.cut_log()
        opened = self.opened = open_store(directory, self.settings, ShardClock(self.clock), Here())
        self.store: Store = opened.store
        for lane in self.store.lanes.timers():
            # Some memtables are full with a few rows, so that runs are written and merged.
            lane.order._memtable_rows = self.dice.choice((4, 1_000))
        metrics, self.here = StoreMetrics(CollectorRegistry()), Here()
        self.metrics = metrics
        worker = self.worker = FileWorker(directory, self.here)
        reserve = Reserve(self.disk, self.root, RESERVE_BYTES)
        self.late = LateWriter(self.store.queues.shared, worker, self.clock, metrics)
        # Most files are closed when they are wanted, and some publishes open none.
        self.store.queues.shared.opens_at_once = self.dice.choice((0, 1, 16))
        self.watch = DiskWatch(self.store, self.late, worker, reserve, self.clock, metrics, used_max=1)
        used = self.store, self.watch, self.here, self.clock, metrics
        self.flusher = Flusher(*used, sync=self.sync, interval_ms=500, committer=self.new_committer())
        self.topics = TopicFile(*(self.store.queues.counts, self.store.journal, self.store.gate), worker, self.clock)
        table = QueueTableFile(self.disk, self.root / queuetable.FILE, directory.queues, opened.table)
        keepers = [*self.make_keepers(), *keepers_of(self.store, opened.transactions, worker), self.topics]
        self.checkpointer = Checkpointer(
            *(self.store, worker, self.flusher, table, keepers, metrics), interval_ms=1, log_bytes=MIB
        )
        self.run(self.checkpointer.write())
        directory.mark_serving()
        self.run(self.watch.inspect())

    def make_keepers(self) -> list[CheckpointKeeper]:
        """Those of further parts."""
        return []

    def _end(self) -> None:
        """The process dies."""
        self.points += 1
        self.puts.clear()
        self.making.clear()
        self.disk.close_all()
        if self.directory is not None:
            self.directory.close()
            self.directory = None

    def _lose(self) -> None:
        self.told.append(self.disk.lose())
        if not self.sync:
            for message_id in self.unflushed:
                self.messages[message_id].offset = None
            self.made -= self.unflushed_topics
            self.restored = list(self.flushed)
            self.timers = set(self.flushed_timers)

    def close(self) -> None:
        self._end()
        self.loop.close()

    def step(self, work: Callable[..., None], *args: Any) -> None:
        """A step of this life, or its end when power is cut."""
        try:
            work(*args)
        except PowerCut:
            self.cut_power()

    # --- steps ------------------------------------------------------------------------------------------------------

    def send(self, count: int, topic: str, queue: int, level: int, body_bytes: int, is_batch: bool = False) -> None:
        records, ids = [], list[str]()
        body_bytes = min(body_bytes, 40_000) if is_batch else body_bytes
        for _ in range(count):
            self._count += 1
            ids.append(f"m{self._count}")
            self.messages[ids[-1]] = Message(topic, queue, self.dice.choice((0, level)) if is_batch else level)
            body = ids[-1].encode() * (body_bytes // len(ids[-1]) + 1)
            records.append(self._sent(ids[-1], self.messages[ids[-1]], body))
        self.batches += [ids] * is_batch
        self.run(self._send(ids, records))

    def _sent(self, message_id: str, message: Message, body: bytes) -> bytes:
        place: dict[str, Any] = {"topic": message.topic, "queue": message.queue, "body": body}
        if message.level == TIMERS:
            return timer(message_id, self.dice.choice(DELAYS_MS), **place)
        return sent(message_id, level=message.level, **place)

    async def _send(self, ids: list[str], records: list[bytes], retried: bool = False) -> None:
        try:
            outcome = self.store.put(b"".join(records), (0, len(ids)) if ids in self.batches else ())
        except (DiskFull, ReadOnly):
            # The outcome of the first attempt is unknown.
            self._refuse([] if retried else ids)
            return
        assert set(outcome.statuses) <= ({OK, DUPLICATE} if retried else {OK})
        for message_id, status in zip(ids, outcome.statuses, strict=True):
            if status == OK:
                self.messages[message_id].refused = False
            assert not self.messages[message_id].refused
        self._wait_for(Put(self._future(), dict(zip(ids, outcome.queue_offsets, strict=True))))

    def _future(self) -> "asyncio.Future[None]":
        durable = self.store.when_durable()
        if durable is None:
            durable = asyncio.get_running_loop().create_future()
            durable.set_result(None)
        return durable

    def _wait_for(self, put: Put) -> None:
        self.puts.append(put)
        self._settle()

    def _settle(self) -> None:
        """Records the answers."""
        waiting = []
        for put in self.puts:
            if not put.durable.done():
                waiting.append(put)
            elif put.durable.exception() is None:
                for message_id, offset in put.offsets.items():
                    message = self.messages[message_id]
                    assert message.offset in (None, offset)
                    message.offset, message.refused = offset, False
                if not self.sync:
                    self.unflushed |= put.offsets.keys()
                if put.level <= LEVELS:
                    self.restored[put.level] = max(self.restored[put.level], put.watermark)
                self.timers.update(put.entries.tolist())
            elif isinstance(put.durable.exception(), DiskFull):
                self._refuse(put.offsets)
        self.puts = waiting
        self.settle_topics()

    def _refuse(self, ids: Any) -> None:
        for message_id in ids:
            if self.messages[message_id].offset is None:
                self.messages[message_id].refused = True

    def _again(self, ids: list[str]) -> list[bytes]:
        return [self._sent(one, self.messages[one], one.encode()) for one in ids]

    def send_again(self) -> None:
        """Retries unanswered sends as a gateway does: their ids may be stored already."""
        for ids in filter(None, unanswered(self.messages, TOPICS, self.puts, self.batches, self.others)):
            self.run(self._send(ids, self._again(ids), retried=True))

    def repeat(self, count: int) -> None:
        """Repeats some answered sends: nothing is stored twice, and the answer equals the first one."""
        ids = self.dice.sample(known := answered(self.messages, TOPICS, self.others), min(count, len(known)))
        with suppress(DiskFull, ReadOnly):
            outcome = self.store.put(b"".join(self._again(ids))) if ids else PutOutcome([])
            places = zip(outcome.statuses, outcome.queue_offsets, strict=True)
            assert [*places] == [(DUPLICATE, self.messages[one].offset) for one in ids], ids

    def restore(self, level: int, count: int, early: bool) -> None:
        """Restores entries after the watermark as a scheduler does; `early`: also entries that are not due."""
        lane, now_ms = self.store.lanes[level], self.store.clock.now_ms()
        head = lane.head(b"", count)
        entries, units = head.entries, head.units
        if not early:
            entries, units = entries[units["tags"] <= now_ms], units[units["tags"] <= now_ms]
        records = []
        for entry, (position, size, due_at_ms) in zip(entries.tolist(), units.tolist(), strict=True):
            data = self.store.read_record(position, size)
            try:
                record.decode(data)
                records.append(restore(PulledEntry(level, entry, due_at_ms, data)))
            except DamagedBytes:
                records.append(quarantine(PulledEntry(level, entry, due_at_ms, b""), "torn"))
        if records:
            self.run(self._restore(records, level, entries, [int(due) for due in units["tags"]]))

    async def _restore(self, records: list[bytes], level: int, entries: Ints, dues: list[int]) -> None:
        try:
            lane, intake = self.store.lanes[level], self.store.admit(b"".join(records))
            outcome = self.store.restore(intake, lane, entries)
        except DueTimeError:
            return
        taken = [index for index, status in enumerate(outcome.statuses) if status == OK]
        assert all(dues[index] <= outcome.stored_at_ms for index in taken)
        # Entries left out between them were restored ahead.
        assert level == TIMERS or {*outcome.statuses[: len(taken)]} <= {OK, DUPLICATE}
        assert level != TIMERS or taken == [*range(len(taken))]
        if taken:
            done = entries[taken] if level == TIMERS else entries[:0]
            self._wait_for(Put(self._future(), level=level, watermark=outcome.watermark, entries=done))

    def flush(self, meanwhile: int = 0) -> None:
        """Makes staged records durable; sends `meanwhile` messages during the flush."""
        if (batch := self.store.take()) is not None:
            if meanwhile:
                self.here.before = lambda: self._stage_meanwhile(meanwhile)
            self.run(self.flusher._flush(batch))
        self.commit()
        self._settle()
        self.note_seen()

    def _stage_meanwhile(self, count: int) -> None:
        ids = []
        for _ in range(count):
            self._count += 1
            ids.append(f"m{self._count}")
            self.messages[ids[-1]] = Message("orders", 0, 0)
        coroutine = self._send(ids, [sent(message_id) for message_id in ids])
        # It awaits nothing.
        with suppress(StopIteration):
            coroutine.send(None)

    def answer_all(self) -> None:
        """Until all calls are answered."""
        self.flush()
        self.commit(all_of_them=True)
        self._settle()

    def random_step(self) -> None:
        """For runs without a plan; the model decides nothing, the dice all."""
        dice, at = self.dice, self.dice.random()
        if at < 0.30:
            body_bytes = dice.choice([10, 100, 3_000, 60_000]) if dice.random() < 0.9 else 300_000
            topic, queue = dice.choice(TOPICS), dice.randrange(QUEUES)
            level = dice.choice([0, 0, 1, 2, TIMERS])
            self.step(self.send, dice.randint(1, 20), topic, queue, level, body_bytes, dice.random() < 0.4)
        elif at < 0.45:
            self.step(self.flush, dice.choice([0, 0, 3]))
        elif at < 0.62:
            level, count = dice.choice([1, 2, TIMERS]), dice.randint(1, 30)
            self.step(lambda: self.fall_due(level, count) if at < 0.54 else self.restore(level, count, at < 0.57))
        elif at < 0.88:
            plain = [self.write_late, self.flush_written, self.add_topic, self.fold_topics, self.send_again]
            plain += [lambda: self.repeat(10), self.restart, self.kill, self.free_disk]
            plain += 2 * [self.checkpoint, self.cut_power]
            plain += 2 * [self.depose] * self.is_delayed
            self.step(dice.choice(plain))
        elif at < 0.97:
            self.cut_power_in(dice.randint(1, 30), next_life=dice.random() < 0.3)
        elif at < 0.98:
            self.step(self.fill_disk, dice.choice([0, 8_192, 100_000, 400_000]))
        else:
            self.step(self.pass_time, dice.choice([1, 500, 1_000, 5_000]))
        # Reading may open files, and power be cut in that.
        self.step(lambda: check_counts(self.store))

    def flush_written(self) -> None:
        self.run(self.flusher.flush_written())
        self._all_flushed()

    def checkpoint(self) -> None:
        if self.run(self.checkpointer.write()):
            self._all_flushed()

    def _all_flushed(self) -> None:
        """Async mode: every answered record is on disk now."""
        self.unflushed.clear()
        self.unflushed_topics.clear()
        self.flushed, self.flushed_timers = list(self.restored), set(self.timers)

    def write_late(self) -> None:
        with suppress(OSError):
            self.run(self.late.write())

    def pass_time(self, by_ms: int) -> None:
        self.clock.wall_ms += by_ms

    def fill_disk(self, free_bytes: int) -> None:
        self.disk.leave(free_bytes)

    def free_disk(self) -> None:
        self.disk.leave(GIB // 2)
        self.run(self.watch.inspect())
        assert not self.store.gate.full

    def restart(self) -> None:
        """A clean stop."""
        Life.answer_all(self)
        if self.run(self.checkpointer.write()) and self.directory:
            self.directory.mark_stopped()
        self._end()
        self._open()
        self.check()

    def kill(self) -> None:
        """Kills the process: its written data is kept."""
        self._end()
        self._open()
        self.check()

    def cut_power(self) -> None:
        self._end()
        self._lose()
        self._open()
        self.check()

    def cut_power_in(self, operations: int, *, next_life: bool = False) -> None:
        """Cuts power during a later operation; `next_life`: counted from the next opening."""
        if next_life:
            self._next_cut = operations
        else:
            self.disk.cut_power_in(operations)

    # --- checks -------------------------------------------------------------------------------------------------------

    def found(self) -> Iterator[tuple[str, int, int, Record | None]]:
        """Everything that readers are given except plans and changes of state: topic, queue, offset, record; None if it
        was torn."""
        for queue in self.store.queues.all():
            if queue.topic in (PLANS_TOPIC, STATE_TOPIC):
                continue
            for offset in range(queue.min_offset, queue.max_offset):
                position, size, _ = queue.read(offset, 1).tolist()[0]
                try:
                    one = record.decode(self.store.read_record(position, size))
                except DamagedBytes:
                    one = None
                yield queue.topic, queue.queue, offset, one

    def check(self) -> None:
        """Compares the shard with the model, and updates the model with the outcome of unanswered calls."""
        assert self.made <= self.store.queues.counts.keys()
        entries: dict[tuple[int, int], str] = {}
        restored: dict[tuple[int, int], str] = {}
        at: dict[str, int] = {}
        for topic, queue, offset, one in self.found():
            lane = lane_of(topic, queue)
            if one is None:
                if lane is not None:
                    entries[lane, offset] = ""
                continue
            assert (one.topic, one.queue, one.queue_offset) == (topic, queue, offset)
            entry = record.find_lane_entry(one.properties)
            if topic == QUARANTINE_TOPIC:
                assert entry is not None
                assert entry[:2] not in restored
                restored[entry[:2]] = ""
                continue
            message_id = decode_properties(one.properties)["UNIQ_KEY"]
            message = self.messages[message_id]
            assert not message.refused, f"{message_id} was refused and is there"
            if lane is not None:
                assert message_id not in at, f"{message_id} is there twice"
                assert message.level == lane
                at[message_id] = offset
                entries[lane, offset] = message_id
                continue
            assert (message.topic, message.queue) == (topic, queue)
            if entry is None:
                assert message_id not in at, f"{message_id} is there twice"
                assert message.level == 0
                at[message_id] = offset
            else:
                level, number, due_at_ms = entry
                assert (level, number) not in restored, f"entry {number} of lane {level} was restored twice"
                assert one.stored_at_ms >= due_at_ms, f"entry {number} of lane {level} was restored early"
                restored[level, number] = message_id
        for message_id, message in self.messages.items():
            if message.offset is not None:
                assert at.get(message_id) == message.offset, f"{message_id} was answered and is not there: {message}"
        self._check_lanes(entries, restored)
        check_batches(self.batches, at)
        for message_id, offset in at.items():
            self.messages[message_id].offset = offset
        self.check_rest()
        self._all_flushed()

    def _check_lanes(self, entries: Found, restored: Found) -> None:
        check_levels(self, entries, restored)
        check_timers(self, entries, restored)
