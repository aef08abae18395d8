"""All consume queues of a shard, by topic and queue."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from duetime_core.errors import DueTimeError, NotFound, Overloaded
from duetime_format.names import DLQ_PREFIX, is_name
from duetime_format.units import UNIT

from duetime_store.files.disk import Disk
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.deletions import Deletions
from duetime_store.queues.queuedisk import QueueDisk
from duetime_store.queues.topics import ShardTopics

_DLQ = DLQ_PREFIX.encode()


class Queues:
    """Queues are created when first written to; `counts` has the queue count of every known topic."""

    def __init__(
        self,
        disk: Disk,
        root: Path,
        file_units: int,
        topics: ShardTopics,
        files_max: int = 512,
        deletions: Deletions | None = None,
    ) -> None:
        self.counts = topics
        self.deletions = deletions or Deletions()
        self.root = root
        self.shared = QueueDisk(disk, root, file_units * UNIT.size, files_max)
        self._queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        # The queues of dead letters.
        self.dead: list[ConsumeQueue] = []

    def use_file_bytes(self, file_bytes: int) -> None:
        """Sets one file size for all queues, as brokers require; a queue with other files gets a fault."""
        self.shared.file_bytes = file_bytes
        for queue in self.all():
            queue.use_file_bytes(file_bytes)

    def get_bytes(self, topic: bytes, queue: int) -> ConsumeQueue:
        """The queue, which is created if needed."""
        found = self._queues.get((topic, queue))
        if found is None:
            # It may have files that were not loaded.
            found = self.load(topic.decode(), queue)
        return found

    def add(self, topic: str, queue: int, *, counted: bool = True) -> ConsumeQueue:
        """Adds an unknown queue, empty. Not `counted`: its topic has it only once it is written to."""
        if not is_name(topic) or queue < 0:
            # Callers have to check names: they become part of a path.
            raise ValueError(f"queue {queue} of topic {topic!r} is not a valid queue")
        made = ConsumeQueue(self.shared, topic, queue, self.shared.file_bytes)
        key = topic.encode(), queue
        self._queues[key] = made
        if counted:
            self.counts.grow(topic, queue + 1)
        if key[0].startswith(_DLQ):
            self.dead.append(made)
        return made

    def load(self, topic: str, queue: int) -> ConsumeQueue:
        """Recovery: the queue, in the state of its files."""
        found = self._queues.get((topic.encode(), queue)) or self.add(topic, queue)
        found.load()
        if begin := self.deletions.begin(topic, queue):
            if not found.max_offset and not found.fault:
                found.continue_at(begin)
            begin_at(found, begin)
        return found

    def drop(self, topic: str) -> list[ConsumeQueue]:
        """Drops the queues of a deleted topic for all readers, and returns them; the caller deletes their files."""
        name = topic.encode()
        gone = [queue for key, queue in self._queues.items() if key[0] == name]
        for queue in gone:
            del self._queues[name, queue.queue]
            queue.end()
        self.counts.remove(topic)
        return gone

    def forget(self) -> None:
        """Recovery: resets all queues: their content is unknown."""
        for queue in self._queues.values():
            queue.forget()

    def refuse_new(
        self, keys: Sequence[tuple[bytes, int]], wanted: Collection[int] | None = None
    ) -> dict[int, DueTimeError]:
        """Errors for the keys whose queue does not exist and may not be created, by index; the others count as created.

        `wanted`: the indices to check; None: all.
        """
        missing = [number for number, key in enumerate(keys) if key not in self._queues]
        if wanted is not None:
            missing = [number for number in missing if number in wanted]
        refused: dict[int, DueTimeError] = {}
        for number in missing:
            topic, queue = keys[number]
            if queue < 0:
                continue
            try:
                self.counts.check(topic.decode(), queue + 1)
            except Overloaded as error:
                refused[number] = error
            else:
                self.counts.grow(topic.decode(), queue + 1)
        return refused

    def holds(self, topic: bytes, queue: int) -> bool:
        """Whether the queue exists."""
        return (topic, queue) in self._queues

    def known(self, topic: bytes, queue: int) -> ConsumeQueue | None:
        """The queue, if it exists or its topic has a queue of this number."""
        if (topic, queue) in self._queues or 0 <= queue < self.counts.get(topic.decode(), 0):
            return self.get_bytes(topic, queue)
        return None

    def find(self, topic: str, queue: int) -> ConsumeQueue:
        """The queue for a reader; an empty one if the topic has it but it has no messages yet.

        Raises:
            NotFound: the shard does not know the topic, or the topic has no such queue.
        """
        found = self._queues.get((topic.encode(), queue))
        if found is not None:
            return found
        count = self.counts.get(topic)
        if count is None:
            raise unknown_topic(topic)
        if not 0 <= queue < count:
            raise NotFound(f"queue {queue} is not within 0 and {count - 1} of topic {topic}", reason="QUEUE_NOT_FOUND")
        return self.get_bytes(topic.encode(), queue)

    def of_topic(self, topic: str) -> Iterator[ConsumeQueue]:
        """The queues of a topic that were written to, by number."""
        name = topic.encode()
        for number in range(self.counts.get(topic, 0)):
            found = self._queues.get((name, number))
            if found is not None:
                yield found

    @property
    def unit_count(self) -> int:
        """Units of all queues."""
        return self.shared.unit_count

    def count_units(self) -> None:
        """Counts all units once, at the end of recovery; from then on the count follows their coming and going."""
        self.shared.unit_count = sum(queue.max_offset - queue.min_offset for queue in self._queues.values())

    @property
    def late_bytes(self) -> int:
        """Size of the units that wait in memory for their files."""
        return self.shared.late_bytes

    def all(self) -> list[ConsumeQueue]:
        return list(self._queues.values())


def unknown_topic(topic: str) -> NotFound:
    """The error for a topic that was never created on the shard, or is deleted."""
    return NotFound(f"topic {topic} is not known to this shard", reason="TOPIC_NOT_FOUND")


def begin_at(queue: ConsumeQueue, offset: int) -> None:
    """Recovery: counts earlier units as gone: they only fill the place of a deleted topic's units."""
    queue.min_offset = max(queue.min_offset, min(offset, queue.max_offset))
