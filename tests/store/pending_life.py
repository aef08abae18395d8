"""A life in which pending messages are cancelled, rescheduled, replaced by key, listed and moved (life.py).

Calls are the store's own, with its index and its reader. They run while other steps are taken. A crash ends unanswered
calls: each then has taken effect completely or not at all. `Truth.check` checks the state.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from duetime.v1 import pending_pb2, store_pb2
from duetime_core.clock import turn
from duetime_core.errors import DiskFull, DueTimeError
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import is_timer_lane, place_of
from duetime_format.properties import decode_properties
from duetime_format.restore import PulledEntry, quarantine, restore
from duetime_format.units import dues_of
from duetime_store.finding.finder import MessageFinder
from duetime_store.finding.index import Shape
from duetime_store.finding.indexer import Indexer
from duetime_store.finding.search import LogSearch
from duetime_store.lanes.lane import RESTORED
from duetime_store.pending.cancelling import MessageCanceller
from duetime_store.pending.endnames import EndNamer
from duetime_store.pending.keys import UpsertKeys
from duetime_store.pending.listing import PendingList
from duetime_store.pending.replacing import MessageReplacer
from duetime_store.pending.targets import PendingTargets
from duetime_store.reading.turns import ScanTurns
from duetime_store.recovery.cutting import LogCut
from duetime_store.recovery.moving import PendingMover
from duetime_store.recovery.retention import Cleaner, Policy, SegmentDropper
from duetime_store.writing.staging import OK

from tests.power_disk import PowerCut
from tests.store.conftest import HandClock, reader_of, sent, timer
from tests.store.counted import check_counts
from tests.store.life import DELAYS_MS, Life
from tests.store.life_lanes import TIMERS
from tests.store.pending_truth import Place, Seen, Truth, check_order

TIMER_LANES = 2
LANES = (1, 2, TIMERS, TIMERS + 1)
KEYS = ("cart-1", "cart-2", "cart-3")
PAGE_COUNT = 7
# Callbacks that a call needs at most, when nothing holds it up.
TURNS = 12


class ReadyClock(HandClock):
    """Never lets a waiter wait."""

    async def sleep(self, delay_ms: float) -> None:
        await turn()

    async def wait_for(self, future: "asyncio.Future[Any]", timeout_ms: float) -> bool:
        await turn()
        return future.done()


@dataclass
class Call:
    """A call that is not answered yet. `aims`: messages that it may end; `answered` takes its answer."""

    task: "asyncio.Task[Any]"
    answered: Callable[[Any], None]
    aims: set[str]
    # The message that it would store, and its body.
    body: str = ""


@dataclass
class Sent:
    """An unanswered put; `restored`: it replaces entries."""

    durable: "asyncio.Future[None]"
    entries: dict[Place, Seen] = field(default_factory=dict)
    restored: dict[Place, str] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)


class PendingLife(Life):
    def __init__(self, root: Path, dice: random.Random, *, mode: str = "sync") -> None:
        self.truth = Truth(loses=mode == "async")
        # Async mode: the part of the truth that survives a power cut.
        self.certain = deepcopy(self.truth)
        self.calls: list[Call] = []
        self.sends: list[Sent] = []
        # Ids of messages with a delay, and of those sent with `replace`, by key: calls may name them.
        self.named: list[str] = []
        self.of_key: dict[str, list[str]] = {key: [] for key in KEYS}
        super().__init__(root, dice, mode=mode, timer_lanes=TIMER_LANES)

    def make_clock(self) -> HandClock:
        return ReadyClock()

    # --- lives ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        super()._begin()
        if not self.sync:
            self._note_flushes()
        store, turns = self.store, ScanTurns(lambda: 1.0)
        reader = reader_of(store, self.metrics, turns)
        assert self.directory
        assert self.disk
        # Index files are full with a few messages.
        self.indexer = Indexer(store, self.worker, self.clock, shape=Shape(16, 60))
        finder = MessageFinder(store, self.indexer, self.metrics, turns, shard=0)
        search = LogSearch(store, finder)
        names = EndNamer(store.queues, store.log, store.indexed, reader, finder, turns)
        targets = PendingTargets(store.log, store.lanes, store.queues.deletions, search, turns)
        self.cancelling = MessageCanceller(store, targets, self.flusher, self.metrics)
        self.keys = UpsertKeys(search, turns)
        self.replacing = MessageReplacer(store, targets, self.keys, self.flusher, turns, self.metrics, names)
        self.listing = PendingList(store.lanes, store.ledger, reader, turns)
        mover = PendingMover(store, reader, self.flusher, self.metrics, turns)
        dropping = mover, self.checkpointer, self.worker, turns, self._dropped
        dropper = SegmentDropper(store.log, store.queues, *dropping, LogCut(store, self.flusher, self.committer, ()))
        used = mover, dropper, self.disk, self.metrics, turns
        self.cleaner = Cleaner(store, *used, policy=Policy(age_ms=0), unread=lambda _: iter(()))
        with suppress(OSError):
            self.run(self.indexer._open())

    def _note_flushes(self) -> None:
        flush_written = self.flusher.flush_written

        async def noted() -> None:
            await flush_written()
            self._all_flushed()

        self.flusher.flush_written = noted  # type: ignore[method-assign] # whoever flushes

    def _all_flushed(self) -> None:
        super()._all_flushed()
        if not self.sync:
            self.certain = deepcopy(self.truth)

    def _lose(self) -> None:
        super()._lose()
        if not self.sync:
            self.truth.go_back_to(self.certain)

    def _dropped(self, position: int) -> Any:
        self.indexer.drop_before(position)
        return iter(())

    def _end(self) -> None:
        for call in self.calls:
            call.task.cancel()
            self.truth.aimed_at |= call.aims
        if self.calls:
            self.loop.run_until_complete(asyncio.gather(*(call.task for call in self.calls), return_exceptions=True))
        self.calls.clear()
        self.sends.clear()
        if hasattr(self, "indexer"):
            for file in self.indexer.files:
                file.close()
        super()._end()

    # --- sending and restoring ----------------------------------------------------------------------------------------

    def send(self, count: int, topic: str, queue: int, level: int, body_bytes: int) -> None:
        """`level`: any lane's number, 0: none."""
        ids, records = [], []
        for _ in range(count):
            self._count += 1
            ids.append(f"m{self._count}")
            body = f"{ids[-1]}.".encode() * (body_bytes // (len(ids[-1]) + 1) + 1)
            if is_timer_lane(level):
                where = {"topic": topic, "queue": queue, "lane": place_of(level)[1]}
                records.append(timer(ids[-1], self.dice.choice(DELAYS_MS), body=body, **where))
            else:
                records.append(sent(ids[-1], topic=topic, queue=queue, level=level, body=body))
        self.named += ids if level else []
        self.run(self._send_all(ids, b"".join(records), level))

    async def _send_all(self, ids: list[str], records: bytes, level: int) -> None:
        try:
            outcome = self.store.put(records)
        except DiskFull:
            self.truth.refused |= set(ids)
            return
        except DueTimeError:
            return
        assert outcome.statuses == [OK] * len(ids)
        places = zip(ids, outcome.queue_offsets, outcome.due_at_ms, strict=True)
        entries = {(level, offset): Seen(one, one, due_at_ms) for one, offset, due_at_ms in places if level}
        self._wait(Sent(self._future(), entries, plain=set() if level else set(ids)))

    def _wait(self, one: Sent) -> None:
        self.sends.append(one)
        self._settle()

    def restore(self, level: int, count: int, early: bool) -> None:
        """Restores the lane's head as a scheduler does; `early`: also entries that are not due."""
        lane, now_ms = self.store.lanes[level], self.store.clock.now_ms()
        head = lane.head(b"", count)
        records, entries, ids = [], [], []
        for entry, unit, due_at_ms in zip(
            head.entries.tolist(), head.units.tolist(), dues_of(head.units["tags"]).tolist(), strict=True
        ):
            if not early and due_at_ms > now_ms:
                break
            data = self.store.read_record(*unit[:2])
            try:
                ids.append(_id_of(record.decode(data)))
                records.append(restore(PulledEntry(level, entry, due_at_ms, data)))
            except DamagedBytes:
                ids.append("")
                records.append(quarantine(PulledEntry(level, entry, due_at_ms, b""), "torn"))
            entries.append(entry)
        if records:
            self.run(self._restore_all(level, records, entries, ids))

    async def _restore_all(self, level: int, records: list[bytes], entries: list[int], ids: list[str]) -> None:
        lane = self.store.lanes[level]
        try:
            outcome = self.store.restore(self.store.admit(b"".join(records)), lane, np.array(entries))
        except DueTimeError:
            return
        taken = [index for index, status in enumerate(outcome.statuses) if status == OK]
        if taken:
            self._wait(Sent(self._future(), restored={(level, entries[index]): ids[index] for index in taken}))

    def _settle(self) -> None:
        """Records the answers."""
        truth, waiting = self.truth, []
        for one in self.sends:
            if not one.durable.done():
                waiting.append(one)
            elif one.durable.exception() is None:
                truth.entries |= one.entries
                truth.sent |= {seen.message_id for seen in one.entries.values()}
                truth.plain |= one.plain
                for place, message_id in one.restored.items():
                    truth.gone[place] = RESTORED
                    assert not message_id or truth.delivered.setdefault(message_id, place) == place
            elif isinstance(one.durable.exception(), DiskFull):
                truth.refused |= {seen.body for seen in one.entries.values()} | one.plain
        self.sends = waiting

    # --- calls --------------------------------------------------------------------------------------------------------

    def cancel(self, count: int, by_place: bool) -> None:
        if not self.named:
            return
        ids = self._choose(count)
        refs = [self._ref(one, by_place) for one in ids]

        def answered(answer: pending_pb2.CancelResponse) -> None:
            for message_id, result in zip(ids, answer.results, strict=True):
                if result.status == pending_pb2.CANCEL_STATUS_CANCELLED:
                    # Without a due time it had ended before, or was replaced.
                    (self.truth.cancelled if result.due_at_ms else self.truth.stopped).add(message_id)
                    self.truth.aimed_at.add(message_id)
                else:
                    self._note_refusal(message_id, result.status == pending_pb2.CANCEL_STATUS_ALREADY_FIRED)

        self._call(self.cancelling.cancel(pending_pb2.CancelRequest(messages=refs)), answered, set(ids))

    def reschedule(self, delay_ms: int, is_delay: bool, by_place: bool, with_body: bool) -> None:
        if not self.named:
            return
        (message_id,) = self._choose(1)
        asked = pending_pb2.Reschedule(message=self._ref(message_id, by_place))
        if is_delay:
            asked.delay_ms = delay_ms
        else:
            asked.deliver_at_ms = self.clock.now_ms() + delay_ms
        body = ""
        if with_body:
            self._count += 1
            body = f"{message_id}-{self._count}"
            asked.body = f"{body}.".encode()
            self.truth.bodies.setdefault(message_id, set()).add(body)

        def answered(answer: store_pb2.ReplaceResponse) -> None:
            (result,) = answer.results
            if result.status == pending_pb2.RESCHEDULE_STATUS_RESCHEDULED:
                self.truth.aimed_at.add(message_id)
                self._note_place(message_id, result, body)
            else:
                self._note_refusal(message_id, result.status == pending_pb2.RESCHEDULE_STATUS_ALREADY_FIRED)

        self._replace(store_pb2.Replacement(reschedule=asked), answered, {message_id}, body)

    def upsert(self, key: str, lane: int, delay_ms: int, max_wait_ms: int) -> None:
        self._count += 1
        message_id = f"m{self._count}"
        # Messages of the key that it may end.
        others = set(self.of_key[key])
        self.of_key[key].append(message_id)
        self.named.append(message_id)
        own = timer(message_id, delay_ms, key=key, lane=place_of(lane)[1], body=f"{message_id}.".encode())

        def answered(answer: store_pb2.ReplaceResponse) -> None:
            (result,) = answer.results
            if result.status != pending_pb2.RESCHEDULE_STATUS_RESCHEDULED:
                return
            self.truth.sent.add(message_id)
            if result.replaced_id:
                assert result.replaced_id in others
                self.truth.replaced.add(result.replaced_id)
                self.truth.aimed_at.add(result.replaced_id)
            self._note_place(message_id, result, message_id)

        self._replace(store_pb2.Replacement(record=own, max_wait_ms=max_wait_ms), answered, others, message_id)

    def _replace(self, one: store_pb2.Replacement, answered: Callable[[Any], None], aims: set[str], body: str) -> None:
        self._call(self.replacing.replace(store_pb2.ReplaceRequest(replacements=[one])), answered, aims, body)

    def _choose(self, count: int) -> list[str]:
        """Mostly of the newest."""
        among = self.named[-40:] if self.dice.random() < 0.8 else self.named
        return list(dict.fromkeys(self.dice.choice(among) for _ in range(count)))

    def _ref(self, message_id: str, by_place: bool) -> pending_pb2.PendingRef:
        """A reference by the receipt of any of the message's places, or by its id alone."""
        places = [place for place, seen in self.truth.entries.items() if seen.message_id == message_id]
        if not by_place or not places:
            return pending_pb2.PendingRef(message_id=message_id, topic=self.dice.choice(("", "orders")))
        lane, entry = self.dice.choice(places)
        return pending_pb2.PendingRef(message_id=message_id, lane=lane, entry=entry)

    def _note_refusal(self, message_id: str, has_fired: bool) -> None:
        if has_fired:
            self.truth.fired.add(message_id)

    def _note_place(self, message_id: str, result: store_pb2.ReplaceResult, body: str) -> None:
        """Records the message's present place; the rest of its record is checked there."""
        place = result.lane, result.entry
        (unit,) = self.store.lanes[result.lane].units(np.array([result.entry])).tolist()
        found = record.decode(self.store.read_record(*unit[:2]))
        assert _id_of(found) == message_id
        assert not body or result.duplicate or found.body.startswith(f"{body}.".encode())
        assert dues_of(np.array(unit[2:])).tolist() == [result.due_at_ms], place

    def _call(
        self, call: Coroutine[Any, Any, Any], answered: Callable[[Any], None], aims: set[str], body: str = ""
    ) -> None:
        self.calls.append(Call(self.loop.create_task(call), answered, aims, body))
        self.go_on()

    def go_on(self, turns: int = TURNS) -> None:
        """Runs calls as far as they can proceed."""

        async def turned() -> None:
            for _ in range(turns):
                await turn()

        self.run(turned())
        calls, self.calls = self.calls, []
        try:
            while calls:
                call = calls.pop(0)
                if call.task.done():
                    self._end_call(call)
                else:
                    self.calls.append(call)
        finally:
            # Power may be cut in the middle.
            self.calls += calls

    def _end_call(self, call: Call) -> None:
        error = call.task.exception()
        if isinstance(error, DiskFull):
            self.truth.refused |= {call.body} - {""}
            return
        try:
            if error is None:
                call.answered(call.task.result())
                return
        except PowerCut:
            self.truth.aimed_at |= call.aims
            raise
        self.truth.aimed_at |= call.aims
        if not isinstance(error, DueTimeError):
            raise error

    def flush(self, meanwhile: int = 0) -> None:
        super().flush(0)
        self._settle()
        self.go_on()

    def answer_all(self) -> None:
        """Until all calls are answered."""
        while self.calls or not self.store.is_idle:
            before = len(self.calls), self.store.published_end
            self.flush()
            self.commit(all_of_them=True)
            self.go_on(100)
            if before == (len(self.calls), self.store.published_end):
                break

    # --- background work of the store ---------------------------------------------------------------------------------

    def index(self, steps: int) -> None:
        with suppress(OSError, DamagedBytes):
            if not self.indexer.opened.is_set():
                self.run(self.indexer._open())
            for _ in range(steps):
                if self.indexer.behind_bytes:
                    self.run(self.indexer._step())
            self.run(self.indexer._mark())

    def retain(self) -> None:
        """Retention clears and deletes everything that it may, except the newest file."""
        self.answer_all()
        if self.calls or not self.store.is_idle:
            return
        self.truth.check(self.store)
        cleaning = self.loop.create_task(self.cleaner.clean())
        try:
            while not cleaning.done():
                self.go_on(2)
                super().flush(0)
        finally:
            cleaning.cancel()
            (error,) = self.loop.run_until_complete(asyncio.gather(cleaning, return_exceptions=True))
        if error is not None and not isinstance(error, (OSError, DueTimeError)):
            raise error

    def check(self) -> None:
        self.truth.check(self.store)
        self._all_flushed()
        self.check_rest()
        self.look()

    def look(self) -> None:
        """Heads, ranks, counts and the list are those of a sorted list; where ends are staged, not all know of them."""
        if not self.store.is_idle:
            return
        rows = check_order(self.store)
        units = {number: self.store.lanes[number].units for number in LANES}
        listed = []
        token = b""
        while True:
            request = pending_pb2.ListPendingRequest(max_count=PAGE_COUNT, page_token=token, omit_bodies=True)
            page = self.run(self.listing.page(request))
            listed += [(one.message.due_at_ms, one.lane, one.message.offset) for one in page.messages]
            if not (token := page.next_page_token):
                break
        intact = []
        for due_at_ms, lane, entry in rows:
            (unit,) = units[lane](np.array([entry])).tolist()
            with suppress(DamagedBytes):
                record.decode(self.store.read_record(*unit[:2]))
                intact.append((due_at_ms, lane, entry))
        assert listed == intact

    # --- random steps -------------------------------------------------------------------------------------------------

    def random_step(self) -> None:
        dice = self.dice
        to = "orders", 0, dice.choice((0, *LANES))
        steps: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = [
            (14, self.send, (dice.randint(1, 10), *to, dice.choice((10, 100, 3_000)))),
            (3, self.send, (dice.randint(1, 8), *to, 60_000)),
            (10, self.cancel, (dice.randint(1, 4), dice.random() < 0.5)),
            (12, self.reschedule, (dice.choice(DELAYS_MS), *(dice.random() < 0.5 for _ in range(3)))),
            (10, self.upsert, self.random_upsert()),
            (12, self.restore, (dice.choice(LANES), dice.randint(1, 10), dice.random() < 0.2)),
            (16, self.flush, ()),
            (10, self.fall_due, (dice.choice(LANES), dice.randint(1, 10))),
            (6, self.pass_time, (dice.choice((1, 500, 1_000, 5_000, 40_000, -3_000)),)),
            (5, self.index, (dice.randint(1, 3),)),
            (4, self.checkpoint, ()),
            (3, self.flush_written, ()),
            (4, self.retain, ()),
            (2, self.write_late, ()),
            (1, self.fill_disk, (dice.choice((0, 8_192, 100_000, 400_000)),)),
            (2, self.free_disk, ()),
            (2, self.restart, ()),
            (2, self.kill, ()),
            (4, self.cut_power, ()),
            (4 * self.is_delayed, self.depose, ()),
        ]
        if dice.random() < 0.08:
            self.cut_power_in(dice.randint(1, 30), next_life=dice.random() < 0.3)
        (_, work, given) = dice.choices(steps, [weight for weight, *_ in steps])[0]
        self.step(work, *given)
        self.step(lambda: check_counts(self.store))

    def random_upsert(self) -> tuple[str, int, int, int]:
        dice = self.dice
        lane = TIMERS + dice.randrange(TIMER_LANES)
        return dice.choice(KEYS), lane, dice.choice(DELAYS_MS), dice.choice((0, 0, 1_000, 5_000))


def _id_of(found: record.Record) -> str:
    return decode_properties(found.properties)[record.UNIQ_KEY]
