"""What a shard's life does with promises (writing/promises.py), and what its readers have seen by them.

In sync mode a reader may see a record before it is flushed. Whatever it saw is in the same place after each crash, with
the same id and body.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from duetime_core.errors import DueTimeError
from duetime_format import record
from duetime_format.errors import Damaged
from duetime_format.plans import PLAN_MS_MAX
from duetime_format.properties import decode_properties
from duetime_format.restore import Entry, Unrestorable, restore
from duetime_format.units import dues_of
from duetime_store.log.intake import parse
from duetime_store.writing import promising
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

from tests.store.conftest import HandClock

Place = tuple[str, int, int]


class Promising:
    """A part of Life, whose `restore` and `flush` it drives."""

    store: Store
    flusher: Flusher
    clock: HandClock
    sync: bool
    dice: Any
    restore: Callable[..., None]
    flush: Callable[..., None]
    # By place: id and body; and by queue, how far readers have looked.
    seen: dict[Place, tuple[str, bytes]]
    noted: dict[tuple[str, int], int]

    def promise(self, level: int, count: int) -> None:
        """As the store does for records that it holds: those of the lane's head that fall due soon."""
        lane, now_ms = self.store.lanes[level], self.store.clock.now_ms()
        head = lane.head(b"", count)
        dues = dues_of(head.units["tags"])
        records = []
        for entry, unit, due_at_ms in zip(head.entries.tolist(), head.units.tolist(), dues.tolist(), strict=True):
            try:
                assert due_at_ms <= now_ms + PLAN_MS_MAX
                records.append(restore(Entry(level, entry, due_at_ms, self.store.read_record(*unit[:2]))))
            except (AssertionError, Damaged, Unrestorable):
                break
        if records and self.flusher.keeps_promises and not self.store.read_only_reason:
            with suppress(DueTimeError):
                promising.promise(self.store, parse(b"".join(records)), lane, head.entries[: len(records)])

    def fall_due(self, level: int, count: int) -> None:
        """The head is promised, falls due and is restored; with or without flushes between."""
        due_at_ms = self.store.lanes[level].next_due_at_ms()
        if due_at_ms is None:
            return
        ahead_ms = due_at_ms - self.dice.randint(0, PLAN_MS_MAX) - self.clock.now_ms()
        self.clock.wall_ms += max(ahead_ms, 0)
        self.promise(level, count)
        if self.dice.random() < 0.8:
            self.flush()
        self.clock.wall_ms += self.dice.choice((0, PLAN_MS_MAX, PLAN_MS_MAX))
        for _ in range(self.dice.randint(1, 3)):
            self.restore(level, count, False)
            if self.dice.random() < 0.8:
                self.flush()

    # --- what readers see -------------------------------------------------------------------------------------------

    def _visible(self, since: dict[tuple[str, int], int]) -> Iterator[tuple[Place, tuple[str, bytes]]]:
        """All published records that can be read, of each queue those from an offset on."""
        for queue in self.store.queues.all():
            first = max(since.get((queue.topic, queue.queue), 0), queue.min_offset)
            for offset in range(first, queue.max_offset):
                position, size, _ = queue.read(offset, 1).tolist()[0]
                with suppress(Damaged):
                    found = record.decode(self.store.read_record(position, size))
                    message_id = decode_properties(found.properties).get(record.UNIQ_KEY, "")
                    yield (queue.topic, queue.queue, offset), (message_id, found.body)

    def note_seen(self) -> None:
        """Readers look at everything that is new."""
        if self.sync:
            self.seen.update(self._visible(self.noted))
            self.noted = {(queue.topic, queue.queue): queue.max_offset for queue in self.store.queues.all()}

    def check_seen(self) -> None:
        """After a crash."""
        there = dict(self._visible({}))
        begins = {(queue.topic, queue.queue): queue.min_offset for queue in self.store.queues.all()}
        for place, content in self.seen.items():
            if place[2] >= begins.get(place[:2], 0):
                found = there.get(place, ("nothing", b""))
                assert found == content, f"{place} was seen as {content[0]}, and is {found[0]}"
        self.noted.clear()
        self.note_seen()
