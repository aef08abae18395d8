"""All consume queues of a shard, by topic and queue."""

from collections.abc import Mapping
from pathlib import Path

from duetime_core.errors import NotFound
from duetime_core.ondisk.units import UNIT

from duetime_store.consumequeue import ConsumeQueue
from duetime_store.disk import Disk


class Queues:
    """Queues are made when first written to; `counts` has the queue count of every known topic."""

    def __init__(self, disk: Disk, root: Path, file_units: int, counts: Mapping[str, int]) -> None:
        self._disk = disk
        self.root = root
        self.counts = dict(counts)
        self.file_bytes = file_units * UNIT.size
        self._queues: dict[tuple[bytes, int], ConsumeQueue] = {}

    def use_file_bytes(self, file_bytes: int) -> None:
        """All queues have files of one size, as a broker wants them: one whose files differ is at fault."""
        self.file_bytes = file_bytes
        for queue in self.all():
            queue.use_file_bytes(file_bytes)

    def get_bytes(self, topic: bytes, queue: int) -> ConsumeQueue:
        """The queue, made if need be."""
        found = self._queues.get((topic, queue))
        if found is None:
            name = topic.decode()
            found = ConsumeQueue(self._disk, self.root, name, queue, self.file_bytes)
            self._queues[topic, queue] = found
            self.counts[name] = max(self.counts.get(name, 0), queue + 1)
        return found

    def known(self, topic: bytes, queue: int) -> ConsumeQueue | None:
        """The queue, if it is there or its topic has one of this number."""
        if (topic, queue) in self._queues or 0 <= queue < self.counts.get(topic.decode(), 0):
            return self.get_bytes(topic, queue)
        return None

    def find(self, topic: str, queue: int) -> ConsumeQueue:
        """The queue for a reader; an empty one where the topic has it but nothing was written yet.

        Raises:
            NotFound: the shard does not know the topic, or the topic has no such queue.
        """
        found = self._queues.get((topic.encode(), queue))
        if found is not None:
            return found
        count = self.counts.get(topic)
        if count is None:
            raise NotFound(f"topic {topic} is not known to this shard", reason="TOPIC_NOT_FOUND")
        if not 0 <= queue < count:
            raise NotFound(f"queue {queue} is not within 0 and {count - 1} of topic {topic}", reason="QUEUE_NOT_FOUND")
        return self.get_bytes(topic.encode(), queue)

    def write_late(self) -> None:
        """Raises: OSError: there is still no room for all units."""
        for queue in self._queues.values():
            queue.write_late()

    @property
    def late_bytes(self) -> int:
        """Size of the units that wait in memory for room in their files."""
        return sum(queue.late_bytes for queue in self._queues.values())

    def all(self) -> list[ConsumeQueue]:
        return list(self._queues.values())
