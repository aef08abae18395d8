"""The lane of messages for any time, against a plain model."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from duetime_format.lanes import LanePlace
from duetime_format.units import Ints
from duetime_store.lanes.lane import CANCELLED, PENDING, RESTORED, UNKNOWN
from duetime_store.lanes.timerlane import NOTHING
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.store.order.timerbench import TOPICS, Bench, key_of


class Machine(RuleBasedStateMachine):
    """`_pipe`: staged entries, in order; the lane learns of them when they are published. `_events`: the log's
    contents, by position.
    """

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self._bench = Bench(Path(self._folder.name))
        self._bench.threads.at_once = False
        self._lane = self._bench.recover()
        self._dues: dict[int, int] = {}
        self._restored: set[int] = set()
        self._ended: set[int] = set()
        self._pipe: list[tuple[str, Ints]] = []
        self._events: list[tuple[int, str, Ints]] = []
        # As of the checkpoint.
        self._position: int | None = None
        self._place = NOTHING

    def teardown(self) -> None:
        self._bench.threads.work()
        self._lane.order.close()
        self._folder.cleanup()

    def _staged(self, kind: str) -> set[int]:
        return {entry for one, entries in self._pipe if one == kind for entry in entries.tolist()}

    def _open(self) -> list[tuple[int, int]]:
        gone = self._restored | self._ended | self._staged("restore") | self._staged("cancel")
        return sorted((due, entry) for entry, due in self._dues.items() if entry not in gone)

    def _pending(self) -> list[tuple[int, int]]:
        gone = self._restored | self._ended
        return sorted((due, entry) for entry, due in self._dues.items() if entry not in gone)

    def _ripe(self) -> list[tuple[int, int]]:
        """Open ones up to the first staged one's due time."""
        arriving = [int(dues.min()) for kind, dues in self._pipe if kind == "send"]
        return [one for one in self._open() if not arriving or one[0] <= min(arriving)]

    @rule(delays=st.lists(st.integers(1, 50), min_size=1, max_size=12))
    def send(self, delays: list[int]) -> None:
        dues = self._bench.clock.at_ms + np.array(delays)
        self._lane.arriving(dues)
        self._pipe.append(("send", dues))

    @rule(count=st.integers(1, 12), odd=st.integers(0, 5))
    def restore(self, count: int, odd: int) -> None:
        """The head, mixed with restored, cancelled, unknown and out-of-order entries."""
        now_ms = self._bench.clock.at_ms
        ripe = [entry for due, entry in self._ripe() if due <= now_ms][:count]
        gone = sorted(self._restored | self._ended | self._staged("cancel") | self._staged("restore"))
        put = ripe[: odd + 1] + gone[-odd:] * bool(odd) + ripe[odd + 1 :]
        fence = self._lane.fence(np.array(put, np.int64))
        staged = self._staged("cancel")
        assert fence.cancelled.tolist() == [entry in self._ended | staged for entry in put]
        assert fence.restored.tolist() == [entry in self._restored | self._staged("restore") for entry in put]
        assert np.array(put, np.int64)[fence.is_next].tolist() == ripe
        if len(ripe) > 1:
            assert self._lane.fence(np.array(ripe[1:])).is_next.sum() == 0
        if ripe:
            entries = np.array(ripe)
            self._lane.stage(entries, self._lane.units(entries))
            self._pipe.append(("restore", entries))

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self._open()), min_size=1, max_size=5, unique=True))
        entries = np.array(sorted(entry for _, entry in chosen))
        assert (self._lane.states(entries) == PENDING).all()
        self._lane.stage_cancel(entries)
        self._pipe.append(("cancel", entries))

    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        for kind, values in self._pipe[:count]:
            position = len(self._bench.log.data)
            if kind == "send":
                first = self._bench.queue.max_offset
                self._bench.publish(self._lane, values)
                self._dues |= dict(enumerate(values.tolist(), first))
            elif kind == "restore":
                self._lane.publish(values)
                self._restored.update(values.tolist())
            else:
                self._lane.publish_cancel(values)
                self._ended.update(values.tolist())
            self._bench.log.data += b"\0"
            self._events.append((position, kind, values))
        del self._pipe[:count]

    @rule(by_ms=st.integers(0, 30))
    def wait(self, by_ms: int) -> None:
        self._bench.clock.at_ms += by_ms

    @rule(count=st.integers(1, 3))
    def work(self, count: int) -> None:
        self._bench.threads.work(count)

    @rule()
    def undo(self) -> None:
        self._lane.undo()
        self._pipe.clear()

    @rule()
    def checkpoint(self) -> None:
        if not self._lane.is_even:
            return
        order, position = self._lane.order, len(self._bench.log.data)
        place = self._lane.place
        saving = order.capture(position, self._bench.queue.max_offset)
        while not saving.is_ready:
            self._bench.threads.work(1)
            order.tend()
        order.write(saving)
        order.saved(saving)
        self._position, self._place = position, place

    @rule(data=st.data(), is_whole=st.booleans())
    def die_and_come_back(self, data: st.DataObject, is_whole: bool) -> None:
        """Damage may have taken records that restored entries since the checkpoint."""
        self._bench.threads.work()
        self._lane.order.close()
        self._pipe.clear()
        if is_whole:
            # The checkpoint is not trusted, and goes.
            self._position = None
        position = self._position
        place = NOTHING if position is None else self._place
        since = [one for one in self._events if one[0] >= (position or 0)]
        found = [entry for _, kind, entries in since if kind == "restore" for entry in entries.tolist()]
        if found and data.draw(st.booleans()):
            lost = data.draw(st.sampled_from(found))
            found.remove(lost)
            self._restored.discard(lost)
            self._events = [
                (at, kind, values[values != lost] if kind == "restore" else values) for at, kind, values in self._events
            ]
        ended = [(at, entries) for at, kind, entries in since if kind == "cancel"]
        for _, entries in ended:
            # A power cut has torn a mark.
            torn = data.draw(st.sampled_from([0, 1, 255, 1 << 40]))
            self._bench.queue.units["tags"][entries[0]] += torn
        self._lane = self._bench.recover(position, place, np.array(found, np.int64), ended)

    @invariant()
    def head_is_that_of_the_model(self) -> None:
        now_ms, opened, ripe = self._bench.clock.at_ms, self._open(), self._ripe()
        expected = opened[:10]
        if len(ripe) < len(expected) and expected[len(ripe)][0] <= now_ms:
            expected = ripe
        head = self._lane.head(b"", 10)
        assert [*zip(head.units["tags"].tolist(), head.entries.tolist(), strict=True)] == expected
        assert self._lane.next_due_at_ms() == (opened[0][0] if opened else None)

    @invariant()
    def counts_are_exact(self) -> None:
        pending, now_ms = self._pending(), self._bench.clock.at_ms
        assert self._lane.pending_count == len(pending)
        assert self._lane.watermark == len(self._dues) - len(pending)
        assert self._lane.count_due(now_ms) == sum(due <= now_ms for due, _ in pending)
        ahead = [due for due, _ in pending if due > now_ms]
        assert self._lane.dues(now_ms) == (pending[0][0] if pending else 0, ahead[0] if ahead else 0)
        for index in {0, len(pending) // 2, len(pending) - 1} if pending else ():
            assert self._lane.pending_before(pending[index][1]) == index

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        known = dict.fromkeys(self._dues, PENDING)
        known |= dict.fromkeys(self._restored | self._staged("restore"), RESTORED)
        known |= dict.fromkeys(self._ended | self._staged("cancel"), CANCELLED)
        entries = np.arange(len(self._dues) + 1)
        assert self._lane.states(entries).tolist() == [known.get(entry, UNKNOWN) for entry in entries.tolist()]
        tags = self._bench.queue.units["tags"].astype(np.int64)
        gone = self._lane.progress().gone(entries[:-1], tags)
        assert gone.tolist() == [entry in self._restored | self._ended for entry in entries[:-1].tolist()]

    @rule(low=st.integers(-20, 50), width=st.integers(0, 50), count=st.integers(1, 20))
    def scan(self, low: int, width: int, count: int) -> None:
        after, before_ms = LanePlace(self._bench.clock.at_ms + low, 3), self._bench.clock.at_ms + low + width
        rows = self._lane.scan(after, before_ms, count)
        expected = [one for one in self._pending() if one > after and one[0] < before_ms][:count]
        assert [*zip(rows.dues.tolist(), rows.entries.tolist(), strict=True)] == expected
        assert rows.topics is not None
        assert rows.keys is not None
        names = [self._bench.topics.names[number].decode() for number in rows.topics.tolist()]
        assert names == [TOPICS[entry % 3] for _, entry in expected]
        assert rows.keys.tolist() == [key_of(entry) for _, entry in expected]


Machine.TestCase.settings = settings(stateful_step_count=40)
TestTimerLane = Machine.TestCase
