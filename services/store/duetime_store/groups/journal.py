"""Changes of consumer groups as events (duetime_format.events) for the store's journal."""

from duetime_format import events
from duetime_format.events import Letter, Pairs
from duetime_format.ranges import ranges

from duetime_store.groups.holds import GroupPlace, Lease
from duetime_store.log.journal import Journal


class GroupJournal:
    """Writes each change as the event that replay applies after a restart."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def give(
        self, lease: Lease, offsets: list[int], until_ms: int, attempt: int, before: int, after: int, expired: Pairs
    ) -> None:
        place = lease.place
        fixed = (
            place.number,
            lease.id,
            lease.received_at_ms,
            until_ms,
            lease.max_attempts,
            lease.ordered,
            lease.is_taken,
        )
        self._journal.add(events.GiveEvent(*fixed, attempt, before, after, expired, ranges(offsets)), place)

    def end(self, place: GroupPlace, lease_id: int, offsets: list[int]) -> None:
        self._journal.add(events.EndEvent(place.number, lease_id, ranges(offsets)), place)

    def change(self, place: GroupPlace, lease_id: int, offsets: list[int], until_ms: int) -> None:
        self._journal.add(events.ChangeEvent(place.number, lease_id, until_ms, ranges(offsets)), place)

    def back(self, place: GroupPlace, lease_id: int, offsets: list[int], ended_at_ms: int, *, counted: bool) -> None:
        self._journal.add(events.ReturnEvent(place.number, lease_id, ended_at_ms, counted, ranges(offsets)), place)

    def defer(self, place: GroupPlace, lease_id: int, offset: int, until_ms: int, history: bytes) -> None:
        self._journal.add(events.DeferEvent(place.number, lease_id, offset, until_ms, history), place)

    def settle(self, place: GroupPlace, lease_id: int, offset: int, copy: Letter) -> None:
        self._journal.add(events.SettleEvent(place.number, lease_id, offset, copy), place)

    def scan(self, place: GroupPlace, before: int, after: int) -> None:
        self._journal.add(events.ScanEvent(place.number, before, after), place)

    def hide(self, place: GroupPlace, offsets: list[int], until_ms: int, attempt: int, before: int, after: int) -> None:
        self._journal.add(events.HideEvent(place.number, until_ms, attempt, before, after, ranges(offsets)), place)

    def reset(self, place: GroupPlace, offset: int) -> None:
        self._journal.add(events.ResetEvent(place.number, offset), place)

    def delete(self, group: str) -> None:
        self._journal.add(events.DeleteEvent(group))

    def taken(self, topic: str, queue: int, offsets: list[int]) -> None:
        """Marks dead letters as gone."""
        self._journal.add(events.DeadLetterRemoveEvent(topic, queue, ranges(offsets)))

    def left(self, topic: str, queue: int, offsets: list[int]) -> None:
        """Marks dead letters as existing, regardless of earlier events."""
        self._journal.add(events.DeadLetterKeepEvent(topic, queue, ranges(offsets)))

    def letter(self, letter: Letter, copy: Letter) -> None:
        """Marks a dead letter as gone if the copy exists."""
        self._journal.add(events.DeadLetterSettleEvent(letter, copy))
