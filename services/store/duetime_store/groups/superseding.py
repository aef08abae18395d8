"""Ends the copies of messages redelivered by a reset, so that no message has two receivers.

    copy                                         its end
    waits in a lane                              cancelled
    in %RETRY%group, received or returned        given back without an attempt, then done
    in %RETRY%group, not received yet            the place's frontier moves past the last of them; other copies
                                                 before it count as returned

A copy names its message in DT_ORIGIN. Copies without it, such as a broker's, stay.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress

from duetime_core.errors import Overloaded
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.events import PlaceKey
from duetime_format.names import is_group_topic, retry_topic
from duetime_format.properties import decode_properties, number_of
from duetime_format.units import FILLER_SIZE

from duetime_store.groups.groups import GroupRegistry
from duetime_store.groups.holds import GroupPlace
from duetime_store.groups.offsets import CommittedOffsets
from duetime_store.groups.retries import WaitingCopies, WaitingRetries
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

# Units read at once, and records read between two reads of the clock.
_PIECE, _LOOK = 4_096, 32


class SupersededCopies:
    """The copies of a topic's messages that a reset redelivers. `to`: offsets by public queue number."""

    def __init__(self, group: str, topic: str, to: Mapping[int, int]) -> None:
        self.group = group
        self.topic = topic
        # Retries that are reset themselves have no copies there.
        self.can_be = not is_group_topic(topic)
        self._to = to
        # Queue and offset of each message with an ending copy: a copy may move while others are searched for.
        self._origins: set[tuple[int, int]] = set()

    def counts(self) -> Counter[int]:
        """Counts by queue."""
        return Counter(queue for queue, _ in self._origins)

    def judge(self, properties: Mapping[str, str]) -> bool:
        if properties.get(record.RETRY_TOPIC) != self.topic:
            return False
        queue, offset = map(number_of, properties.get(record.ORIGIN, "").partition(":")[::2])
        if queue is None or offset is None or queue not in self._to or offset < self._to[queue]:
            return False
        self._origins.add((queue, offset))
        return True


@dataclass(slots=True)
class ResetMarks:
    """The ends of lanes and of the queues of %RETRY%group at a reset: copies after them are of later deliveries."""

    lanes: dict[int, int]
    queues: dict[int, int]

    def has(self, queue: int, offset: int, properties: bytes) -> bool:
        """Whether a copy in a queue of %RETRY%group, or before that in its lane, existed at the reset."""
        entry = record.find_lane_entry(properties)
        return offset < self.queues.get(queue, 0) or (entry is not None and entry[1] < self.lanes.get(entry[0], 0))


@dataclass(slots=True)
class _DueCopies:
    """The copies of the topic in one queue of %RETRY%group that are not done, by offset."""

    key: PlaceKey
    queue: ConsumeQueue
    superseded: list[int] = field(default_factory=list)
    # Not received yet: (offset, earliest delivery time, attempt).
    staying: list[tuple[int, int, int]] = field(default_factory=list)

    def before_last(self, place: GroupPlace) -> list[tuple[int, int, int]]:
        """The copies that stay although the frontier passes them."""
        last = max(self.superseded, default=-1)
        return [one for one in self.staying if place.frontier <= one[0] < last]


@dataclass(slots=True)
class ResetCopies:
    """The copies that a reset ends."""

    waiting: list[WaitingCopies] = field(default_factory=list)
    due: list[_DueCopies] = field(default_factory=list)


class CopySuperseder:
    """Finds and ends superseded copies. Belongs to the event loop's thread."""

    def __init__(
        self,
        store: Store,
        groups: GroupRegistry,
        offsets: CommittedOffsets,
        retries: WaitingRetries,
        flusher: Flusher,
        turns: ScanTurns,
    ) -> None:
        self._store = store
        self._groups = groups
        self._offsets = offsets
        self._retries = retries
        self._flusher = flusher
        self._turns = turns

    async def find(self, superseded: SupersededCopies, marks: ResetMarks | None = None) -> ResetCopies:
        """The copies that existed at the marks; None: all."""
        found = ResetCopies()
        if superseded.can_be:
            lanes = None if marks is None else marks.lanes
            found.waiting = await self._retries.find(superseded.group, superseded.judge, lanes)
            # A group that commits offsets itself has no places: its offset can't skip single copies.
            if self._groups.receives(superseded.group, superseded.topic):
                found.due = await self._find_due(superseded, marks)
        return found

    async def _find_due(self, superseded: SupersededCopies, marks: ResetMarks | None) -> list[_DueCopies]:
        group, topic = superseded.group, superseded.topic
        back, found = retry_topic(group), []
        with self._turns.walk() as walk:
            walk.start()
            for queue in self._store.queues.of_topic(back):
                due = _DueCopies(PlaceKey(group, topic, back, queue.queue), queue)
                for count, (offset, copy) in enumerate(self._copies(due), 1):
                    properties = decode_properties(copy.properties)
                    was_there = marks is None or marks.has(queue.queue, offset, copy.properties)
                    if was_there and superseded.judge(properties):
                        due.superseded.append(offset)
                    elif properties.get(record.RETRY_TOPIC) == topic:
                        at_ms = number_of(properties.get(record.VISIBLE_AT)) or 0
                        due.staying.append((offset, at_ms, copy.reconsume_times + 1))
                    if count % _LOOK == 0:
                        await walk.turn_if_over()
                if due.superseded:
                    found.append(due)
                await walk.turn_if_over()
        return found

    def _copies(self, due: _DueCopies) -> Iterator[tuple[int, record.Record]]:
        """The queue's records that are not done for the topic, including unreceived ones of other topics."""
        place, queue = self._groups.progress.places.get(due.key), due.queue
        at = max(self._begin(due) if place is None else place.committed, queue.min_offset)
        while len(units := queue.read(at, _PIECE)):
            for offset, (position, size, _) in enumerate(units.tolist(), at):
                is_open = place is None or offset >= place.frontier or offset in place.entries
                if is_open and size not in (0, FILLER_SIZE):
                    try:
                        yield offset, record.decode(self._store.read_record(position, size))
                    except DamagedBytes:
                        # It is never delivered.
                        continue
            at += len(units)

    def _begin(self, due: _DueCopies) -> int:
        """The start of a missing place, as for a Receive."""
        known = self._offsets.find(due.key.group, due.key.queue_topic).get(due.key.queue, 0)
        return min(max(known, due.queue.min_offset), due.queue.max_offset)

    # --- ending -----------------------------------------------------------------------------------------------------

    def prepare(self, found: ResetCopies) -> None:
        """Creates the missing places.

        Raises:
            ReadOnly
            Overloaded: the shard has the maximum of places, or no room for the returned copies.
        """
        self._store.gate.check_write()
        progress = self._groups.progress
        for due in found.due:
            if due.key not in progress.places:
                self._groups.new_place(due.key, self._begin(due))
        staying = {due.key.group: 0 for due in found.due}
        for due in found.due:
            staying[due.key.group] += len(due.before_last(progress.places[due.key]))
        for group, count in staying.items():
            if count > (room := progress.room(group, "")):
                text = f"{count} retries stay before retries ended by the reset: group {group} may have {room} more "
                raise Overloaded(text + "messages outstanding", reason="LEASES_EXHAUSTED")

    def end(self, found: ResetCopies, group: str) -> ResetMarks:
        """Stages the ends, in one step with the reset. Raises: ReadOnly."""
        for due in found.due:
            self._end_due(due)
        # The log has the reset before the ends: after a crash between them a message is delivered twice, never zero
        # times.
        self._store.stage_events()
        self._retries.cancel(found.waiting)
        queues = self._store.queues.of_topic(retry_topic(group))
        lanes = {lane.number: lane.queue.next_offset for lane in self._store.lanes}
        return ResetMarks(lanes, {queue.queue: queue.next_offset for queue in queues})

    def _end_due(self, due: _DueCopies) -> None:
        place = self._groups.progress.places.get(due.key)
        if place is None:
            # The topic was deleted in the meantime.
            return
        is_open = [offset in place.entries or offset >= place.frontier for offset in due.superseded]
        self._groups.supersede(place, list(compress(due.superseded, is_open)))
        after = max(due.superseded) + 1
        if place.frontier < after:
            now_ms = self._store.clock.now_ms()
            hidden: dict[tuple[int, int], list[int]] = {}
            for offset, at_ms, attempt in due.before_last(place):
                hidden.setdefault((max(at_ms, now_ms), attempt), []).append(offset)
            self._groups.hide(place, hidden, after)
            if not hidden:
                self._groups.move(place, after)
            self._groups.armed()

    async def end_later(self, superseded: SupersededCopies, marks: ResetMarks) -> None:
        """Ends copies that came during the search for earlier ones. Raises: as `prepare`."""
        await self._flusher.durable()
        found = await self.find(superseded, marks)
        self.prepare(found)
        self.end(found, superseded.group)
