"""The unread and waiting messages of one topic for a shard's groups, and their end."""

from collections.abc import Iterator
from dataclasses import dataclass

from duetime_format import record
from duetime_format.columns import values
from duetime_format.errors import DamagedBytes
from duetime_format.units import FILLER_SIZE

from duetime_store.groups.gates import DeliveryGates
from duetime_store.groups.groups import GroupRegistry, is_in
from duetime_store.groups.holds import GroupPlace
from duetime_store.groups.offsets import CommittedOffsets
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.lites import Lites
from duetime_store.queues.queues import Queues
from duetime_store.reading.turns import ScanTurns, YieldingScan

_RETRY_TOPIC = record.RETRY_TOPIC.encode()
# Retries whose records are read in one step.
_PIECE = 256


@dataclass(slots=True)
class RemainingMessages:
    """One group's remaining messages of the topic."""

    unread: int = 0
    in_flight: int = 0
    retries: int = 0


class TopicReaders:
    """The groups that read a topic. Belongs to the event loop's thread."""

    def __init__(
        self,
        queues: Queues,
        log: CommitLog,
        groups: GroupRegistry,
        offsets: CommittedOffsets,
        turns: ScanTurns,
        lites: Lites,
        gates: DeliveryGates,
    ) -> None:
        self._queues = queues
        self._log = log
        self._groups = groups
        self._offsets = offsets
        self._turns = turns
        self._lites = lites
        self._gates = gates

    async def left(self, topic: str) -> dict[str, RemainingMessages]:
        """Remaining messages by group: for groups that receive the topic, and for those that only commit offsets in
        it."""
        found: dict[str, RemainingMessages] = {}
        places = [place for place in self._groups.progress.places.values() if is_in(place.key, topic)]
        with self._turns.walk() as walk:
            walk.start()
            for place in places:
                left = found.setdefault(place.key.group, RemainingMessages())
                left.in_flight += place.leased
                left.retries += len(place.entries) - place.leased
                if place.key.is_lite:
                    lite = self._lites.get(place.key.topic)
                    left.unread += 0 if lite is None else lite.unread(place.key.queue, place.frontier)
                elif place.key.queue_topic == topic:
                    left.unread += self._ahead(place.key.queue_topic, place.key.queue, place.frontier)
                else:
                    left.retries += await self._unread_retries(place, topic, walk)
                await walk.turn_if_over()
        receiving = {(place.key.group, place.key.queue) for place in places if place.key.queue_topic == topic}
        for group, name, queue, offset in self._offsets.all():
            if name == topic and (group, queue) not in receiving:
                found.setdefault(group, RemainingMessages()).unread += self._ahead(topic, queue, offset)
        return found

    def _ahead(self, topic: str, number: int, offset: int) -> int:
        """Messages of a queue from an offset on."""
        queue = self._queues.known(topic.encode(), number)
        return 0 if queue is None else max(queue.max_offset - max(offset, queue.min_offset), 0)

    async def _unread_retries(self, place: GroupPlace, topic: str, walk: YieldingScan) -> int:
        """Retries of the topic in %RETRY%group that were not received yet; the queue has those of other topics too."""
        count, wanted = 0, topic.encode()
        for names in self._retry_topics(place):
            count += sum(name == wanted for name in names)
            await walk.turn_if_over()
        return count

    def _retry_topics(self, place: GroupPlace) -> Iterator[list[bytes | None]]:
        queue = self._queues.get_bytes(place.key.queue_topic.encode(), place.key.queue)
        at = max(place.frontier, queue.min_offset)
        while len(units := queue.read(at, _PIECE)):
            at += len(units)
            rows = [(position, size) for position, size, _ in units.tolist() if size not in (0, FILLER_SIZE)]
            records = [data for row in rows if (data := self._log.read_record(*row))]
            try:
                yield values(b"".join(records), [len(data) for data in records], (_RETRY_TOPIC,))[0]
            except DamagedBytes:
                # They are never delivered.
                continue

    def gone(self, topic: str) -> None:
        """Removes all places of groups in the topic, and retries of it, in the step that removes its queues."""
        self._groups.delete_topic(topic)

    async def end(self, topic: str) -> None:
        """As `gone`, and also removes committed offsets in the topic, durable with the journal, and its pauses.
        Idempotent. Raises: DueTimeError."""
        self._groups.delete_topic(topic)
        await self._gates.forget_topic(topic)
        self._offsets.delete_topic(topic)
