"""Promises (writing/promises.py) in a shard's life, and the records that its readers saw by them.

In sync mode a reader may see a record before it is flushed. Each record that was read has the same place, id and body
after every crash.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from duetime_core.errors import DueTimeError
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.plans import PLAN_MS_MAX
from duetime_format.properties import decode_properties
from duetime_format.restore import PulledEntry, UnrestorableEntry, restore
from duetime_format.units import FILLER_SIZE, dues_of
from duetime_store.log.intake import parse
from duetime_store.writing import promising
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

from tests.store.conftest import HandClock
from tests.store.counted import check_counts

Place = tuple[str, int, int]


class Promising:
    """A part of Life, whose steps it takes."""

    store: Store
    flusher: Flusher
    clock: HandClock
    sync: bool
    dice: Any
    send: Callable[..., None]
    restore: Callable[..., None]
    flush: Callable[..., None]
    cut_power_in: Callable[..., None]
    cut_power: Callable[..., None]

    def __init__(self) -> None:
        # Id and body by place; and by queue, the offset up to which readers have read.
        self.seen: dict[Place, tuple[str, bytes]] = {}
        self.noted: dict[tuple[str, int], int] = {}

    def promise(self, level: int, count: int) -> None:
        """Promises places as the store does: to records that it holds, from the lane's head, due soon."""
        lane, now_ms = self.store.lanes[level], self.store.clock.now_ms()
        head = lane.head(b"", count)
        dues = dues_of(head.units["tags"])
        records = []
        for entry, unit, due_at_ms in zip(head.entries.tolist(), head.units.tolist(), dues.tolist(), strict=True):
            try:
                assert due_at_ms <= now_ms + PLAN_MS_MAX
                records.append(restore(PulledEntry(level, entry, due_at_ms, self.store.read_record(*unit[:2]))))
            except (AssertionError, DamagedBytes, UnrestorableEntry):
                break
        if records and self.flusher.keeps_promises and not self.store.read_only_reason:
            with suppress(DueTimeError):
                promising.promise(self.store, parse(b"".join(records)), lane, head.entries[: len(records)])

    def fall_due(self, level: int, count: int) -> None:
        """Promises, falls due and restores the lane's head repeatedly, with or without flushes between, and with
        messages for the same queues. Then power may be cut while these are written.
        """
        for _ in range(self.dice.randint(1, 4)):
            due_at_ms = self.store.lanes[level].next_due_at_ms()
            if due_at_ms is None:
                self.send(count, "orders", 0, level, 10)
                self.flush()
                continue
            ahead_ms = due_at_ms - self.dice.randint(0, PLAN_MS_MAX) - self.clock.now_ms()
            self.clock.wall_ms += max(ahead_ms, 0)
            self.promise(level, count)
            self._often(self.flush, 0.9)
            self._often(self._send_beside, 0.1)
            self.clock.wall_ms += self.dice.choice((0, PLAN_MS_MAX, PLAN_MS_MAX))
            self.restore(level, self.dice.randint(1, count), False)
            self._often(self.flush, 0.9)
        if self.dice.random() < 0.4:
            self.cut_power_in(self.dice.randint(1, 4))
            self._often(self._send_beside, 0.7)
            self.flush()
            self.cut_power()

    def _send_beside(self) -> None:
        self.send(self.dice.randint(1, 3), "orders", 0, 0, self.dice.choice((10, 3_000)))

    def _often(self, step: Callable[[], None], share: float) -> None:
        if self.dice.random() < share:
            step()

    # --- reads --------------------------------------------------------------------------------------------------------

    def _visible(self, since: dict[tuple[str, int], int]) -> Iterator[tuple[Place, tuple[str, bytes]]]:
        """All published records that can be read, of each queue those from an offset on."""
        for queue in self.store.queues.all():
            first = max(since.get((queue.topic, queue.queue), 0), queue.min_offset)
            for offset in range(first, queue.max_offset):
                position, size, _ = queue.read(offset, 1).tolist()[0]
                with suppress(DamagedBytes):
                    found = record.decode(self.store.read_record(position, size))
                    message_id = decode_properties(found.properties).get(record.UNIQ_KEY, "")
                    yield (queue.topic, queue.queue, offset), (message_id, found.body)

    def note_seen(self) -> None:
        """Readers read everything new."""
        if self.sync:
            self.seen.update(self._visible(self.noted))
            self.noted = {(queue.topic, queue.queue): queue.max_offset for queue in self.store.queues.all()}

    def check_rest(self) -> None:
        """After a crash: every record that was read exists, and counts are right."""
        check_counts(self.store)
        there = dict(self._visible({}))
        for place, content in self.seen.items():
            if place in there or not self._has_left(place):
                found = there.get(place, ("nothing", b""))
                assert found == content, f"{place} was seen as {content[0]}, and is {found[0]}"
        self.noted.clear()
        self.note_seen()

    def _has_left(self, place: Place) -> bool:
        """Whether its record went with the front of the log."""
        queue = self.store.queues.find(*place[:2])
        units = queue.read(place[2], 1)
        if place[2] < queue.min_offset or not len(units):
            return place[2] < queue.min_offset
        return bool(units["size"][0] != FILLER_SIZE and units["position"][0] < self.store.log.min_position)
