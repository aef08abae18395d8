"""Topics deleted on the shard: their records in the log, and the first offsets of new queues with their names.

The log has each deletion as a record (duetime_format.deletions). A file has the newest of each topic, for the log after
a checkpoint, and for when retention has deleted the record: config/duetimeDeletedTopics.json.

    {"topics": {"orders": [position of the record, generation, [first offset of a new queue 0, ...]], ...}}
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from duetime_format.deletions import Deletion
from duetime_format.units import UNIT, UNIT_TYPE

from duetime_store.files import configs
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.disk import Disk
from duetime_store.files.worker import FileWorker

FILE = "duetimeDeletedTopics.json"
# Maximum deletions remembered. Those whose records retention deleted first are forgotten: the log has nothing of them
# any more.
REMEMBERED_MAX = 65_536


class Deletions:
    """The newest deletion of each topic."""

    def __init__(self, known: Mapping[str, Deletion] | None = None) -> None:
        self._known = dict(known or {})
        # Counts changes.
        self.edition = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, topic: str) -> Deletion | None:
        return self._known.get(topic)

    def add(self, deletion: Deletion) -> None:
        """Takes a deletion from the log, in the log's order."""
        known = self._known.get(deletion.topic)
        if known is None or known.position < deletion.position:
            self._known.pop(deletion.topic, None)
            self._known[deletion.topic] = deletion
            self.edition += 1
            while len(self._known) > REMEMBERED_MAX:
                del self._known[next(iter(self._known))]

    def begin(self, topic: str, queue: int) -> int:
        """The first offset of a queue that has no files."""
        known = self._known.get(topic)
        return 0 if known is None else known.begin(queue)

    def position(self, topic: str) -> int:
        """The log position before which records of the topic belong to a deleted one; -1: none do."""
        known = self._known.get(topic)
        return -1 if known is None else known.position

    def all(self) -> list[Deletion]:
        return list(self._known.values())


def load(value: Mapping[str, Any] | None) -> Deletions:
    """Reads the file's content, leaving out unreadable parts."""
    found: dict[str, Deletion] = {}
    topics = (value or {}).get("topics")
    for topic, row in (topics if isinstance(topics, dict) else {}).items():
        try:
            position, generation, begins = row
            found[topic] = Deletion(topic, int(generation), tuple(map(int, begins)), int(position))
        except (TypeError, ValueError):
            continue
    return Deletions(dict(sorted(found.items(), key=lambda item: item[1].position)))


class DeletionKeeper:
    """Writes the file at checkpoints: see duetime_store.recovery.checkpointer.CheckpointKeeper."""

    def __init__(self, deletions: Deletions, worker: FileWorker) -> None:
        self._deletions = deletions
        self._worker = worker
        self._written = 0

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        edition = self._deletions.edition
        if edition == self._written:
            return None
        content = {"topics": {one.topic: [one.position, one.generation, one.begins] for one in self._deletions.all()}}

        async def write() -> None:
            directory = self._worker.directory
            await self._worker.run(configs.write, directory.disk, directory.config, FILE, content)
            self._written = edition

        return write


def sweep(disk: Disk, directory: StoreDirectory, deletion: Deletion) -> int:
    """Deletes the files of the deleted topic's queues. Files of a later one stay: it was created only after all files
    of the old one were gone. Blocking. Returns the number of deleted files. Raises: OSError."""
    folder, count = directory.queues / deletion.topic, 0
    if not folder.is_dir():
        return 0
    for queue in [path for path in folder.iterdir() if path.is_dir() and path.name.isascii() and path.name.isdigit()]:
        files = sorted(path for path in queue.iterdir() if path.name.isdigit())
        if files and _has_units(files[-1], deletion.position):
            continue
        for path in files:
            disk.unlink(path)
        count += len(files)
        disk.sync_directory(queue)
        if not any(queue.iterdir()):
            disk.remove_directory(queue)
    disk.sync_directory(folder)
    if not any(folder.iterdir()):
        disk.remove_directory(folder)
        disk.sync_directory(directory.queues)
    return count


def _has_units(path: Path, position: int) -> bool:
    """Whether a file has units of records after a log position."""
    data = path.read_bytes()
    units = np.frombuffer(data, UNIT_TYPE, len(data) // UNIT.size)
    return bool(((units["position"] > position) & (units["size"] > 0)).any())
