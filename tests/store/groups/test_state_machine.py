"""Groups of a shard that is flushed, torn, killed and reopened, against a plain model of each message.

A shard gives out only messages available in the model, and never redelivers a durably acknowledged one. When everything
is flushed, a reopened shard has exactly its former state, whichever snapshot it starts from.
"""

import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duetime_format import receipts, record
from duetime_format.events import PlaceKey
from duetime_format.properties import decode_properties
from duetime_store.files.worker import FileWorker
from duetime_store.groups import loading, snapshot
from duetime_store.groups.fetch import Fetcher, FetchRequest
from duetime_store.groups.groups import EXPIRED, OK, UNKNOWN, GroupRegistry, OpenMessage
from duetime_store.groups.holds import EXHAUSTED, LEASED, RETURNED, WAITING
from duetime_store.groups.lines import WaiterLines
from duetime_store.groups.offsets import CommittedOffsets
from duetime_store.metrics import StoreMetrics
from duetime_store.reading.filters import Filter
from duetime_store.writing.settling import settle_records
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from prometheus_client import CollectorRegistry

from tests.store.conftest import HandClock, Shard, reader_of, sent, unhurried
from tests.store.groups.by_offsets import ack_by_offsets

GROUP, TOPIC, SHARD = "g", "orders", 3
KEY = PlaceKey(GROUP, TOPIC, TOPIC, 0)
MAX_ATTEMPTS = 3


@dataclass
class Message:
    """The model's state of a message that was given out and is not done."""

    state: int
    attempt: int
    until_ms: int = 0
    received_at_ms: int = 0
    receipt: bytes = b""
    expired: tuple[tuple[int, int], ...] = ()
    history: bytes = b""


class Machine(RuleBasedStateMachine):
    """Each rule is a call; `flush` makes it durable."""

    ordered = False

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp())
        self.clock = HandClock()
        self.shard = Shard(self.folder / "store", self.clock)
        self.sent = 0
        self.messages: dict[int, Message] = {}
        # The next one to be given for the first time.
        self.next = 0
        # Offsets that were done at the last flush.
        self.durable: set[int] = set()
        self.done: set[int] = set()
        # All receipts given, and the receipts whose queue was reset since.
        self.given: list[bytes] = []
        self.answered = 0
        self.was_reset: set[bytes] = set()
        # `is_ahead`: the snapshot counts changes in that the log may never have. `is_needed`: power was cut while it
        # was so.
        self.is_ahead = self.is_needed = False
        self.load()

    def load(self) -> None:
        store = self.shard.store
        self.offsets = CommittedOffsets(FileWorker(self.shard.directory, None), store, self.shard.opened.offsets)  # type: ignore[arg-type]
        self.path = self.shard.root / snapshot.FILE
        state = loading.load(self.path, store, self.offsets)
        state.progress.bound(leases_max=1_000, groups_max=10, places_max=10)
        self.groups = GroupRegistry(
            *(store.queues, store.gate, store.clock, store.journal),
            state.progress,
            state.gone,
            WaiterLines(),
            shard=SHARD,
        )
        reader = reader_of(store, StoreMetrics(CollectorRegistry()))
        self.fetcher = Fetcher(store.queues, store.clock, reader, self.groups)

    def teardown(self) -> None:
        if hasattr(self, "shard"):
            self.shard.crash()
            shutil.rmtree(self.folder)

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms

    # --- the model --------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Applies the passing of time to the model."""
        for one in self.messages.values():
            if one.state == WAITING and one.until_ms <= self.now_ms:
                one.state = RETURNED
        leased = [(offset, one) for offset, one in self.messages.items() if one.state == LEASED]
        # Leases expire in order of time; after the first of an ordered lease, the rest is redelivered uncounted.
        for offset, one in sorted(leased, key=lambda entry: (entry[1].until_ms, entry[0])):
            if one.state == LEASED and one.until_ms <= self.now_ms:
                ended_at_ms = one.until_ms
                self.back(offset, ended_at_ms, counted=True)

    def back(self, offset: int, ended_at_ms: int, *, counted: bool) -> None:
        one = self.messages[offset]
        later = []
        if self.ordered:
            lease = receipts.parse(one.receipt).lease
            later = [
                other
                for other, message in self.messages.items()
                if other > offset and message.state == LEASED and receipts.parse(message.receipt).lease == lease
            ]
        one.state = RETURNED
        if counted:
            one.expired += ((one.received_at_ms, ended_at_ms),)
            if one.attempt >= MAX_ATTEMPTS:
                one.state = EXHAUSTED
            else:
                one.attempt += 1
        for other in later:
            self.messages[other].state = RETURNED

    def open_under(self, receipt: bytes) -> int | None:
        for offset, one in self.messages.items():
            if one.receipt == receipt and one.state == LEASED and one.until_ms > self.now_ms:
                return offset
        return None

    # --- calls ------------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 8))
    def send(self, count: int) -> None:
        self.shard.store.put(b"".join(sent(f"{self.sent + n}") for n in range(count)))
        self.sent += count
        self.flush()

    @rule(count=st.integers(1, 6), invisible_ms=st.sampled_from([10, 50, 200]))
    def receive(self, count: int, invisible_ms: int) -> None:
        self.expire()
        wanted = Filter.parse("")
        asked = FetchRequest(
            GROUP, TOPIC, (0,), (), count, 1 << 20, invisible_ms, 0, wanted, MAX_ATTEMPTS, self.ordered, 0, "m", "host"
        )
        if KEY not in self.groups.progress.places:
            self.groups.new_place(KEY, 0)
        blocked = self.ordered and any(one.state != RETURNED for one in self.messages.values())
        place = self.groups.progress.places[KEY]
        given = self.fetcher.fetch(asked, [place], [], unhurried(), fresh_first=False, peek=False).given
        assert not (blocked and given)
        total = 0
        for run in given:
            names = receipts.pack(SHARD, run.lease.id, run.offsets)
            for offset, attempt, name in zip(run.offsets, run.attempts, names, strict=True):
                assert offset not in self.done
                known = self.messages.get(offset)
                if known is None:
                    assert (offset, attempt) == (self.next, 1)
                    self.next += 1
                    known = self.messages[offset] = Message(LEASED, 1)
                assert (known.state, known.attempt) == (RETURNED if offset < self.next - 1 else known.state, attempt)
                known.state, known.until_ms = LEASED, self.now_ms + invisible_ms
                known.received_at_ms, known.receipt = self.now_ms, name
                self.given.append(name)
                total += 1
            ids = [decode_properties(one.properties)["UNIQ_KEY"] for one in decoded(run)]
            assert ids == [str(offset) for offset in run.offsets]
        if total < count and not self.ordered:
            assert self.next == self.sent
            assert all(one.state != RETURNED for one in self.messages.values())

    @rule(data=st.data(), by_offsets=st.booleans())
    def ack(self, data: st.DataObject, by_offsets: bool) -> None:
        names = self.some(data)
        self.expire()
        expected = []
        offsets = []
        for name in names:
            offset = self.open_under(name)
            offsets.append(offset)
            expected.append(OK if offset is not None else None)
        statuses = ack_by_offsets(self.groups, GROUP, names) if by_offsets else self.groups.ack(GROUP, names)
        for name, offset, status, wanted in zip(names, offsets, statuses, expected, strict=True):
            if wanted is not None:
                assert status == OK
                if self.messages.pop(offset, None):
                    self.done.add(offset)
            elif name in self.was_reset:
                # It had ended before the reset, or by it.
                assert status in (OK, EXPIRED, UNKNOWN)
            elif status == OK:
                assert receipts.parse(name).offset in self.done
            else:
                assert status == EXPIRED

    @rule(data=st.data(), ms=st.sampled_from([0, 20, 100]), counted=st.booleans())
    def change(self, data: st.DataObject, ms: int, counted: bool) -> None:
        names = self.some(data)[:1] if self.ordered else self.some(data)
        self.expire()
        statuses = self.groups.change(GROUP, names, ms, not_attempted=not counted)
        for name, status in zip(names, statuses, strict=True):
            offset = self.open_under(name)
            assert (status == OK) == (offset is not None) or names.count(name) > 1
            if offset is not None and ms:
                self.messages[offset].until_ms = self.now_ms + ms
            elif offset is not None:
                self.back(offset, self.now_ms, counted=counted)

    @rule(data=st.data(), ms=st.sampled_from([0, 30]))
    def defer(self, data: st.DataObject, ms: int) -> None:
        for name in self.some(data)[:1]:
            self.expire()
            offset = self.open_under(name)
            history = name[:4]
            (status,), (at_ms,) = self.groups.defer(GROUP, [(name, ms, history)])
            assert (status == OK) == (offset is not None)
            if offset is not None:
                self.back(offset, 0, counted=False)
                one = self.messages[offset]
                one.state, one.until_ms, one.history = WAITING, at_ms, history
                one.attempt += 1

    @rule(data=st.data(), stored=st.booleans())
    def settle(self, data: st.DataObject, stored: bool) -> None:
        for name in self.some(data)[:1]:
            self.expire()
            offset = self.open_under(name)
            one = self.groups.open_one(GROUP, name)
            assert isinstance(one, OpenMessage) == (offset is not None)
            if not isinstance(one, OpenMessage):
                continue

            def settle(_: int, topic: str, queue: int, at: int, one: OpenMessage = one) -> Any:
                return self.groups.settle(one, (topic, queue, at))

            settle_records(self.shard.store, sent("copy", topic="%RETRY%g"), (), settle)
            assert self.groups.ack(GROUP, [name]) == ack_by_offsets(self.groups, GROUP, [name]) == [EXPIRED]
            if stored:
                self.flush()
                del self.messages[offset]
                self.done.add(offset)
            else:
                self.shard.store.undo()

    @rule(count=st.integers(1, 3))
    def take_exhausted(self, count: int) -> None:
        self.expire()
        self.groups.expire()
        taken = self.groups.take_exhausted(count, 100)
        exhausted = [offset for offset, one in self.messages.items() if one.state == EXHAUSTED]
        assert len(taken) == min(count, len(exhausted))
        for one in taken:
            model = self.messages[one.offset]
            assert (model.state, model.attempt, model.expired) == (EXHAUSTED, one.hold.attempt, one.hold.expired)
            (name,) = receipts.pack(SHARD, one.lease.id, [one.offset])
            assert self.groups.ack(GROUP, [name]) == [OK]
            del self.messages[one.offset]
            self.done.add(one.offset)

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.sent))
        names = [name for name in self.given if self.open_under(name) is not None]
        self.groups.reset(KEY, offset)
        assert self.groups.ack(GROUP, names) == [UNKNOWN] * len(names)
        assert ack_by_offsets(self.groups, GROUP, names) == [UNKNOWN] * len(names)
        self.messages.clear()
        self.was_reset.update(self.given)
        self.done = set(range(offset))
        self.durable &= self.done
        self.next = offset

    @rule(by_ms=st.sampled_from([1, 10, 60, 300, -100]))
    def pass_time(self, by_ms: int) -> None:
        if by_ms < 0:
            # The wall clock steps back; the shard's clock stops until the wall clock catches up.
            self.shard.store.clock.now_ms()
            self.clock.wall_ms += by_ms
            assert self.shard.store.clock.now_ms() == self.clock.wall_ms - by_ms
            by_ms = -by_ms
        self.clock.wall_ms += by_ms

    # --- lives ------------------------------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        if self.shard.store.journal.entries:
            self.shard.store.stage_events()
        self.shard.flush()
        self.durable = set(self.done)
        self.answered = len(self.given)
        self.is_ahead = False

    @rule(ahead=st.booleans())
    def snapshot(self, ahead: bool) -> None:
        """Saves a snapshot before its changes are durable, as a start or stop does, or after."""
        queue = self.shard.store.queues.known(b"DT_GROUPS", 0)
        captured = snapshot.capture(self.groups.progress, self.groups.gone, queue.max_offset if queue else 0)
        if ahead:
            self.is_ahead = True
        else:
            self.flush()
        snapshot.write(self.shard.directory.disk, self.path, captured)

    @rule(lose_snapshot=st.booleans(), checkpoint=st.booleans())
    def open_again(self, lose_snapshot: bool, checkpoint: bool) -> None:
        self.flush()
        self.groups.expire(1 << 30)
        before = self.dump()
        if checkpoint:
            self.shard.checkpoint()
        if lose_snapshot and not self.is_needed:
            self.path.unlink(missing_ok=True)
        self.shard.reopen()
        self.load()
        self.groups.expire(1 << 30)
        now = self.dump()
        assert now == before, f"{now}\n{before}"

    @rule(data=st.data())
    def tear(self, data: st.DataObject) -> None:
        """Cuts power: unflushed data is kept up to an arbitrary byte."""
        store = self.shard.store
        name = next((one for one in reversed(self.given) if self.open_under(one)), None)
        one = self.groups.open_one(GROUP, name) if name else UNKNOWN
        if isinstance(one, OpenMessage):
            # The journal, and a copy behind it that may not get there.
            settle_records(store, sent("copy", topic="%RETRY%g"), (), lambda _, *copy: self.groups.settle(one, copy))
        elif store.journal.entries:
            store.stage_events()
        batch = store.take()
        written = b"".join(bytes(buffer) for _, buffers in (batch.runs if batch else []) for buffer in buffers)
        kept = data.draw(st.integers(0, len(written)))
        copies = store.queues.get_bytes(b"%RETRY%g", 0).max_offset
        if kept and batch and len(batch.runs) == 1:
            store.log.write([(batch.runs[0][0], [written[:kept]])])
        self.shard.reopen()
        self.load()
        if isinstance(one, OpenMessage):
            stored = self.shard.store.queues.get_bytes(b"%RETRY%g", 0).max_offset > copies
            if stored:
                assert one.offset not in self.entries()
        self.is_needed |= self.is_ahead
        self.learn()
        self.flush()

    def learn(self) -> None:
        """Updates the model to the state found after a crash; durably done messages are still done."""
        place = self.groups.progress.places.get(KEY)
        found = {} if place is None else place.entries
        frontier = place.frontier if place else 0
        assert not self.durable & set(found), "what was acknowledged durably comes back"
        assert all(offset < frontier for offset in self.durable)
        # Undurable receipts reached no client.
        del self.given[self.answered :]
        self.next = frontier
        self.done = {offset for offset in range(frontier) if offset not in found}
        self.messages = {}
        for offset, hold in found.items():
            lease = hold.lease
            receipt = receipts.pack(SHARD, lease.id, [offset])[0] if lease else b""
            received = lease.received_at_ms if lease else 0
            self.messages[offset] = Message(
                hold.state, hold.attempt, hold.until_ms, received, receipt, hold.expired, hold.history
            )

    def entries(self) -> set[int]:
        place = self.groups.progress.places.get(KEY)
        return set(place.entries) if place else set()

    def dump(self) -> Any:
        progress = self.groups.progress
        return progress.outstanding, {
            key: (
                place.frontier,
                place.available,
                place.leased,
                {
                    offset: (
                        hold.state,
                        hold.attempt,
                        hold.until_ms if hold.state in (LEASED, WAITING) else 0,
                        hold.lease and (hold.lease.id, hold.lease.open, hold.lease.max_attempts, hold.lease.ordered),
                        hold.expired,
                        hold.history,
                    )
                    for offset, hold in sorted(place.entries.items())
                },
            )
            for key, place in progress.places.items()
        }

    def some(self, data: st.DataObject) -> list[bytes]:
        """Receipts of the last and of older deliveries."""
        if not self.given:
            return []
        return data.draw(st.lists(st.sampled_from(self.given[-12:]), max_size=5))

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "shard"):
            return
        progress = self.groups.progress
        place = progress.places.get(KEY)
        if place is None:
            return
        holds = list(place.entries.values())
        assert progress.outstanding == progress.callers.used == len(holds)
        for caller in progress.callers.holders():
            assert progress.callers.held(caller) == sum(hold.caller == caller for hold in holds)
        assert place.available == sum(hold.state == RETURNED for hold in holds)
        assert place.leased == sum(hold.state == LEASED for hold in holds)
        for hold in set(holds):
            assert hold.open == sum(one is hold for one in holds)
        for lease in progress.leases.values():
            assert lease.open == sum(hold.lease is lease for hold in holds) > 0
        assert set(self.messages) == set(place.entries)
        assert self.next == place.frontier


class OrderedMachine(Machine):
    ordered = True


def decoded(run: Any) -> list[record.Record]:
    found, at = [], 0
    for size in run.sizes:
        found.append(record.decode(run.records, at))
        at += size
    return found


def run(machine: type[Machine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            stateful_step_count=40,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_groups_agree_with_the_model() -> None:
    run(Machine)


def test_ordered_groups_agree_with_the_model() -> None:
    run(OrderedMachine)
