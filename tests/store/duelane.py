"""The simplest lane for any time, and records for it, to test the store apart from the real order."""

import asyncio

import numpy as np
from duetime_format import record, timers
from duetime_format.lanes import TIMER_LANE_FIRST
from duetime_format.names import TIMER_TOPIC
from duetime_format.record import Record
from duetime_format.units import Ints, Units, are_ended, dues_of
from duetime_shard.lanes import LaneProgress, LevelProgress
from duetime_store.lanes.lane import (
    CANCELLED,
    OWN_DUE,
    PENDING,
    RESTORED,
    Fence,
    LaneHead,
    LanePlace,
    PendingRows,
    ShardLane,
    States,
)
from duetime_store.writing.store import Store


def timed(message_id: str, *, delay_ms: int | None = None, deliver_at_ms: int = 0, queue: int = 0) -> bytes:
    """A record for any time as a gateway sends it."""
    name, value = ("TIMER_DELAY_MS", delay_ms) if delay_ms is not None else ("TIMER_DELIVER_MS", deliver_at_ms)
    out = record.timer_out(delay_ms=delay_ms, deliver_at_ms=deliver_at_ms)
    text = b"UNIQ_KEY\x01%b\x02%b\x01%d" % (message_id.encode(), name.encode(), value)
    text += b"\x02TIMER_OUT_MS\x01%b\x02REAL_TOPIC\x01orders\x02REAL_QID\x010" % out
    return record.encode(Record(TIMER_TOPIC, queue, b"body", record.with_crc_mark(text)))


def with_timers(store: Store) -> ShardLane:
    """The store's lane 1000, which is made if it has none."""
    if TIMER_LANE_FIRST not in store.lanes:
        store.queues.counts.grow(TIMER_TOPIC, 1)
        store.lanes.add(ByDue(store))
    return store.lanes[TIMER_LANE_FIRST]


class ByDue(ShardLane):
    """Sorts all of its units whenever it is asked."""

    def __init__(self, store: Store) -> None:
        super().__init__(TIMER_LANE_FIRST, store.queues.get_bytes(TIMER_TOPIC.encode(), 0))
        self._staged: set[int] = set()
        self._done: set[int] = set()

    def _pending(self, gone: set[int]) -> Ints:
        entries = np.arange(self.queue.max_offset)
        tags = self.units(entries)["tags"]
        order = np.lexsort((entries, dues_of(tags)))
        kept = ~are_ended(tags)[order] & ~np.isin(entries[order], list(gone))
        return entries[order][kept]

    def _places(self, entries: Ints) -> list[LanePlace]:
        dues = dues_of(self.units(entries)["tags"])
        return [LanePlace(*pair) for pair in zip(dues.tolist(), entries.tolist(), strict=True)]

    @property
    def cursor(self) -> bytes:
        return b""

    def cursor_after(self, place: LanePlace) -> bytes:
        return b"%020d%020d" % place

    def head(self, after: bytes, count: int) -> LaneHead:
        entries = self._pending(self._done | self._staged)
        if after:
            later = [self.cursor_after(place) > after for place in self._places(entries)]
            entries = entries[np.array(later, np.bool_)]
        return LaneHead(entries[:count], self.units(entries[:count]))

    def wake_before(self, head: LaneHead, wake: "asyncio.Future[None]") -> None:
        self.queue.wait(wake)

    def fence(self, entries: Ints) -> Fence:
        states = self.states(entries)
        known = entries < self.queue.max_offset
        is_next = (states == PENDING) & known
        expected = self._pending(self._done | self._staged)[: int(is_next.sum())]
        is_next[is_next] = np.logical_and.accumulate(entries[is_next] == expected)
        return Fence(known & (states == RESTORED), known & (states == CANCELLED), is_next)

    def stage(self, entries: Ints, units: Units) -> None:
        self._staged |= set(entries.tolist())

    def publish(self, entries: Ints) -> None:
        self._done |= set(entries.tolist())

    def undo(self) -> None:
        self._staged = set(self._done)

    def states(self, entries: Ints) -> States:
        states = np.where(np.isin(entries, list(self._done | self._staged)), RESTORED, PENDING)
        return np.where(are_ended(self.units(entries)["tags"]), CANCELLED, states).astype(np.int8)

    def stage_cancel(self, entries: Ints) -> None:
        """No entry may be restored before the stage is complete."""

    def publish_cancel(self, entries: Ints) -> None:
        units = self.units(entries)
        units["tags"] *= -1
        self.queue.repoint(entries, units)

    def write_marks(self) -> None:
        """This lane has no marks."""

    def arriving(self, dues: Ints) -> None:
        """The queue has them."""

    def added(self, entries: Ints, dues: Ints, topics: Ints, keys: Ints) -> None:
        """The queue has them."""

    def delays_ms(self, positions: Ints) -> Ints | None:
        return None

    def due_if_stored(self, now_ms: int) -> int:
        return OWN_DUE

    def due_at_ms(self, found: Record) -> int:
        return timers.due_at_ms(found)

    def due_within(self, entry: int, now_ms: int) -> tuple[int, int]:
        return 0, self.latest_due_at_ms(now_ms)

    def latest_due_at_ms(self, now_ms: int) -> int:
        return now_ms + (1 << 40)

    def progress(self) -> LaneProgress:
        return LevelProgress.of(0, 0, self.queue.max_offset, [np.array(sorted(self._done), np.int64)])

    @property
    def watermark(self) -> int:
        return self.queue.max_offset - self.pending_count

    @property
    def reached(self) -> int:
        return self.queue.max_offset - len(self._pending(self._done | self._staged))

    @property
    def is_even(self) -> bool:
        return True

    @property
    def pending_count(self) -> int:
        return len(self._pending(self._done))

    def pending_before(self, entry: int) -> int:
        return self._pending(self._done).tolist().index(entry)

    def scan(self, after: LanePlace, before_ms: int, count: int) -> PendingRows:
        places = [place for place in self._places(self._pending(self._done)) if after < place < (before_ms, 0)][:count]
        dues, entries = np.array(places, np.int64).reshape(-1, 2).T
        return PendingRows(entries, dues, None, None)

    def count_due(self, by_ms: int) -> int:
        return sum(place.due_at_ms <= by_ms for place in self._places(self._pending(self._done)))

    def next_due_at_ms(self) -> int | None:
        places = self._places(self._pending(self._done | self._staged))
        return places[0].due_at_ms if places else None

    def dues(self, now_ms: int) -> tuple[int, int]:
        dues = [place.due_at_ms for place in self._places(self._pending(self._done))]
        return next(iter(dues), 0), next((due for due in dues if due > now_ms), 0)

    async def measure(self) -> tuple[int, int]:
        sizes = self.units(self._pending(self._done))["size"]
        return int(sizes.sum()), len(sizes)
