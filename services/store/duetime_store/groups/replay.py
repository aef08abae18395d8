"""Applies the journal's events (duetime_format.events) after a start."""

from collections.abc import Callable
from dataclasses import dataclass, field

from duetime_format import events
from duetime_format.events import Letter, PlaceKey, events_in, keys_of, reading
from duetime_format.ranges import offsets_of
from duetime_shard.gone import GoneDeadLetters

from duetime_store.groups.holds import GroupPlace, Lease
from duetime_store.groups.state import GroupProgress


@dataclass(slots=True)
class GroupReplayResult:
    """Findings of a replay."""

    events: int = 0
    # Messages redelivered because events are lost.
    lost_range: int = 0
    faults: list[str] = field(default_factory=list)
    # Settles without their copy: (place, lease, offset).
    open_again: list[tuple[GroupPlace, int, int]] = field(default_factory=list)
    # Dead letters without their copy.
    left: list[Letter] = field(default_factory=list)


class GroupReplay:
    """Applies the events of records, in their order."""

    def __init__(
        self,
        progress: GroupProgress,
        gone: GoneDeadLetters,
        ends: Callable[[str, int], tuple[int, int]],
        start: Callable[[PlaceKey], int],
        is_there: Callable[[Letter], bool],
    ) -> None:
        """`ends`: min and max offset of a topic's queue on the shard; `start`: the offset of an otherwise unknown
        place; -1: unknown; `is_there`: whether a copy is stored."""
        self._progress = progress
        self._gone = gone
        self._ends = ends
        self._start = start
        self._is_there = is_there
        self._places: dict[int, GroupPlace] = {}
        self.found = GroupReplayResult()

    def apply(self, body: bytes) -> None:
        """Raises: Damaged: events after the fault are not applied."""
        with reading():
            for kind, payload in events_in(body, self._read_places(body)):
                self._event(events.read(kind, payload))
                self.found.events += 1

    def _read_places(self, body: bytes) -> int:
        keys, at = keys_of(body)
        self._places = {}
        for number, key in keys.items():
            known = self._progress.places.get(key)
            self._places[number] = known or self._progress.place(key, self._start(key))
        return at

    def _event(self, event: events.GroupEvent) -> None:
        progress, places = self._progress, self._places
        match event:
            case events.GiveEvent():
                self._give(event)
            case events.EndEvent():
                place, offsets = places[event.place], offsets_of(event.ranges)
                if event.lease == events.LAPSED:
                    progress.lapse(place, offsets)
                progress.end_any(place, offsets)
            case events.ChangeEvent():
                progress.change(places[event.place], event.lease, offsets_of(event.ranges), event.until_ms)
            case events.ReturnEvent():
                offsets, place = offsets_of(event.ranges), places[event.place]
                progress.give_back(place, event.lease, offsets, event.ended_at_ms, counted=event.counted)
            case events.DeferEvent():
                progress.defer(places[event.place], event.lease, event.offset, event.until_ms, event.history)
            case events.SettleEvent():
                if self._is_there(event.copy):
                    progress.end_any(places[event.place], [event.offset])
                else:
                    self.found.open_again.append((places[event.place], event.lease, event.offset))
            case events.ScanEvent():
                self._reach(places[event.place], event.before)
                places[event.place].frontier = event.after
            case events.HideEvent():
                place = places[event.place]
                self._reach(place, event.before)
                if event.until_ms:
                    progress.hide(place, offsets_of(event.ranges), event.until_ms, event.attempt, event.after)
                else:
                    # They waited for a slot of their key.
                    progress.put_back(place, offsets_of(event.ranges), event.attempt, event.after)
            case events.ResetEvent():
                progress.reset(places[event.place], event.offset)
            case events.DeleteEvent():
                self._delete(event.group)
            case events.DeadLetterRemoveEvent():
                self._gone.taken((event.topic, event.queue, offset) for offset in offsets_of(event.ranges))
            case events.DeadLetterKeepEvent():
                self._gone.left((event.topic, event.queue, offset) for offset in offsets_of(event.ranges))
            case events.DeadLetterSettleEvent():
                if self._is_there(event.copy):
                    self._gone.taken([event.letter])
                else:
                    self.found.left.append(event.letter)

    def _delete(self, group: str) -> None:
        self._progress.delete(group)
        self._places = {
            number: self._progress.place(place.key, -1) if place.key.group == group else place
            for number, place in self._places.items()
        }

    def _give(self, event: events.GiveEvent) -> None:
        progress, place = self._progress, self._places[event.place]
        self._reach(place, event.before)
        lease = progress.leases.get(event.lease)
        if lease is None or lease.place is not place:
            known = event.lease, place, event.received_at_ms, event.max_attempts
            lease = Lease(*known, ordered=event.ordered, is_taken=event.is_taken)
        offsets = offsets_of(event.ranges)
        self._end_before(place, lease, offsets)
        by_history: dict[bytes, list[int]] = {}
        for offset in offsets:
            hold = place.entries.get(offset)
            by_history.setdefault(hold.history if hold else b"", []).append(offset)
        for history, own in by_history.items():
            progress.give(
                lease, own, event.until_ms, event.attempt, event.after, expired=event.expired, history=history
            )

    def _end_before(self, place: GroupPlace, lease: Lease, offsets: list[int]) -> None:
        """Ends the earlier leases of messages that were given again: they expired, without an event. With an
        ordered one, messages after the first of these were returned too, uncounted."""
        firsts: dict[Lease, int] = {}
        for offset in offsets:
            hold = place.entries.get(offset)
            if hold is not None and hold.lease is not None and hold.lease is not lease and hold.lease.ordered:
                firsts.setdefault(hold.lease, offset)
        for expired, first in firsts.items():
            later = [offset for offset in self._progress.later_of(expired, first) if offset not in offsets]
            self._progress.give_back(place, expired.id, later, lease.received_at_ms, counted=False)

    def _reach(self, place: GroupPlace, before: int) -> None:
        """Moves the frontier to its value in the event. The fate of the messages in between is unknown: they are
        redelivered. For an unknown place, that is everything from its start on."""
        if place.frontier < 0:
            # A message of a lite topic that was given has its event after it in the log, so it is not one of these.
            place.frontier = before if place.key.is_lite else self._ends(place.key.queue_topic, place.key.queue)[0]
        if place.frontier < before:
            self.found.lost_range += before - place.frontier
            lost = [one for one in range(place.frontier, before) if one not in place.entries]
            self._progress.put_back(place, lost, 1, before)
