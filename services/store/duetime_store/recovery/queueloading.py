"""Finds the begin and the end of every queue of a directory.

With a table of the newest checkpoint this takes a stat of each queue's last file: if size and time are unchanged, the
queue matches the table and is not opened. The others are read, as are all queues of a directory without a table: it was
not ours, or was put together from a backup.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import structlog
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.names import SCHEDULE_TOPIC, is_name
from duetime_format.units import UNIT, Units

from duetime_store.files.directory import StoreDirectory
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues import queuetable
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queues import Queues, begin_at
from duetime_store.queues.queuetable import QueueTable, QueueTableRow
from duetime_store.recovery.checkpoint import Checkpoint

log = structlog.get_logger()

# The last units of each queue that is read, taken before its end is rebuilt: their records may be damaged.
_TAIL_UNITS = 128
# Units read at once.
_STEP_UNITS = 4_096

Tail = tuple[ConsumeQueue, int, Units]


class QueueLoader:
    """Fills `queues`. `tails` has the last units of the queues that were read; `read_count` is their number."""

    def __init__(
        self,
        directory: StoreDirectory,
        queues: Queues,
        commit_log: CommitLog,
        points: list[tuple[int, Checkpoint]],
    ) -> None:
        """`points`: serials and checkpoints."""
        self._directory = directory
        self._queues = queues
        self._log = commit_log
        self._min_position, self._max_position = commit_log.min_position, commit_log.max_position
        self.table = self._find_table(points)
        self.tails: list[Tail] = []
        self._read: dict[ConsumeQueue, QueueTableRow | None] = {}
        if self.table is not None:
            self._take(self.table)
            self.tails = self._find_tails()
        else:
            self.read_all()

    @property
    def read_count(self) -> int:
        return len(self._read)

    def _find_table(self, points: list[tuple[int, Checkpoint]]) -> QueueTable | None:
        for serial, point in points[:1]:
            table = queuetable.read(self._directory.root / queuetable.FILE, serial, point.position)
            units = sum(row.max_offset - row.min_offset for row in table.rows.values()) if table else -1
            if units == point.unit_count and self._min_position <= point.position <= self._max_position:
                return table
        return None

    def _find_tails(self) -> list[Tail]:
        """The tails of queues that were read, and of all lanes, to check the newest entry's delay."""
        lanes = [queue for queue in self._queues.all() if queue.topic == SCHEDULE_TOPIC]
        return [(queue, *queue.last(_TAIL_UNITS)) for queue in dict.fromkeys([*self._read, *lanes])]

    # --- table lookup -----------------------------------------------------------------------------------------------

    def _take(self, table: QueueTable) -> None:
        queues, file_bytes = self._queues, table.head.file_bytes
        queues.use_file_bytes(file_bytes)
        root = str(self._directory.queues)
        for row in table.rows.values():
            if not row.max_offset:
                continue
            queue = queues.add(row.topic, row.queue)
            if self._is_unchanged(row, file_bytes, root):
                queue.take(row)
            else:
                self._read_one(queue, row)
        if self._directory.was_aborted:
            for topic, number in self._found():
                if not queues.holds(topic.encode(), number):
                    self._read_one(queues.add(topic, number), None)
        if self._min_position > table.head.min_position:
            self._trim()

    def _is_unchanged(self, row: QueueTableRow, file_bytes: int, root: str) -> bool:
        """Whether the queue need not be read. The last file proves only itself: the names show the others to exist,
        and its remaining room shows it to be the last."""
        units = file_bytes // UNIT.size
        first, last, end = row.min_offset // units, (row.max_offset - 1) // units, row.max_offset // units
        if not queuetable.is_unchanged(row, file_bytes, root):
            return False
        if first >= last and end == last:
            return True
        names = sorted(name for name in os.listdir(f"{root}/{row.topic}/{row.queue}") if name.isdigit())
        return [int(name) // file_bytes for name in names] == list(range(first, last + 1))

    def _read_one(self, queue: ConsumeQueue, row: QueueTableRow | None) -> None:
        queue.load()
        self._read[queue] = row
        begin_at(queue, self._queues.deletions.begin(queue.topic, queue.queue))
        if row is None:
            return
        if not queue.fault and queue.min_offset > row.min_offset and self._min_position == self._table_min:
            queue.fault = f"its first file begins with {queue.min_offset}, it had {row.min_offset}"
        queue.min_offset = max(queue.min_offset, row.min_offset)

    @property
    def _table_min(self) -> int:
        return self.table.head.min_position if self.table else 0

    def cut_to(self, point: Checkpoint) -> bool:
        """Drops units written after the checkpoint. Returns whether the queues match its table."""
        for queue, row in self._read.items():
            wanted = row.max_offset if row else self._queues.deletions.begin(queue.topic, queue.queue)
            if not queue.fault and queue.max_offset >= wanted:
                # A power cut may have torn units after them, so that these seem to be older.
                queue.cut(wanted)
            end = queue.max_offset if queue.fault else queue.end_before(point.position)
            if end < wanted == queue.max_offset and self._are_copies(queue, end):
                end = wanted
            if queue.fault or end != wanted or queue.max_offset != wanted:
                fault = queue.fault or f"it ends at {end}, it had {wanted} at the checkpoint"
                log.warning("the table of queues is not trusted", topic=queue.topic, queue=queue.queue, fault=fault)
                return False
        return True

    def _are_copies(self, queue: ConsumeQueue, first: int) -> bool:
        """Whether the log has the records of all units from `first` on. It has those of units before the checkpoint
        after it only if retention has appended them again since."""
        while len(units := queue.read(first, _STEP_UNITS)):
            for offset, (position, size, _) in enumerate(units.tolist(), first):
                try:
                    found = record.decode(self._log.read(position, size))
                except DamagedBytes:
                    return False
                if (found.topic, found.queue, found.queue_offset) != (queue.topic, queue.queue, offset):
                    return False
            first += len(units)
        return True

    # --- reading the files ------------------------------------------------------------------------------------------

    def read_all(self) -> None:
        """Reads every queue from its own files."""
        queues = self._queues
        self.table, self._read = None, {}
        queues.forget()
        for topic, number in self._found():
            self._read[queues.load(topic, number)] = None
        sizes = [queue.file_bytes for queue in queues.all() if queue.max_offset]
        if sizes:
            queues.use_file_bytes(max(set(sizes), key=sizes.count))
        self._trim()
        self.tails = self._find_tails()

    def _found(self) -> Iterator[tuple[str, int]]:
        """Topic and number of each queue that has a folder."""
        for topic in _folders(self._directory.queues):
            if is_name(topic):
                for name in _folders(self._directory.queues / topic):
                    if name.isascii() and name.isdigit():
                        yield topic, int(name)

    def _trim(self) -> None:
        """Drops files that retention had released and a crash has left."""
        if self._min_position:
            for queue in self._queues.all():
                if queue.oldest < self._min_position:
                    for path in queue.trim(self._min_position):
                        self._directory.disk.unlink(path)


def _folders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []
