"""A lane's entries in the order of their due times: sorted runs on disk, new and near entries in memory.

    add, remove ──▶ memtable ──(full, or a checkpoint)──▶ run ──(FANOUT of a size)──▶ longer run
                        │                                              │
                        └──▶ window: the next rows ◀───────────────────┘  head

Everything here is derived from the log, the lane's queue and its records. Threads write runs, and `tend` takes over the
finished ones; all else belongs to the caller's thread. A merge leaves out only rows that a checkpoint has counted as
ended, so a power cut can't bring back an omitted row.

Source: O'Neil et al., The Log-Structured Merge-Tree (1996); tiers as in Cassandra's size-tiered compaction.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import LanePlace
from duetime_format.units import Ints

from duetime_store.files.disk import Disk
from duetime_store.lanes.order import manifest
from duetime_store.lanes.order.manifest import Manifest
from duetime_store.lanes.order.memtable import Memtable
from duetime_store.lanes.order.merging import merge, mergeable
from duetime_store.lanes.order.rows import START, OrderRows, joined, tombstones
from duetime_store.lanes.order.runs import SortedRun, write_run
from duetime_store.lanes.order.topics import TopicNumbers
from duetime_store.lanes.order.walk import OrderWalk
from duetime_store.lanes.order.window import RowWindow

log = structlog.get_logger()

MANIFEST = "manifest"
# Rows at which a memtable becomes a run: 3 MB.
MEMTABLE_ROWS = 131_072
# Full memtables at which the caller waits for the thread that writes them.
_SEALED_MAX = 16
_SCAN_ROWS = 1_024


class OrderSize(NamedTuple):
    """The size of an order: runs on disk, all rows including those in memory and tombstones, and the runs' bytes."""

    run_count: int
    row_count: int
    run_bytes: int


@dataclass(eq=False)
class OrderSnapshot:
    """The order as of a checkpoint, on its way to disk: the log's content before `position`, entries before `end`.
    `last`: the newest memtable that it needs as a run. Once that is a run, no later memtable is one yet."""

    position: int
    end: int
    last: Memtable | None
    drop_to: LanePlace
    topics: int
    manifest: Manifest | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it can be written."""
        return self.manifest is not None


@dataclass(slots=True, eq=False)
class _RunJob:
    """The writing of a run by a thread, and the memtable or runs that it replaces."""

    result: "Future[SortedRun | None]"
    memtable: Memtable | None = None
    runs: list[SortedRun] = field(default_factory=list)
    path: Path = Path()


class LaneOrder:
    """See the module."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        topics: TopicNumbers,
        executor: Executor,
        *,
        memtable_rows: int = MEMTABLE_ROWS,
    ) -> None:
        """Empty; `open` reads the files. `executor`: two threads, so that no run waits for a merge."""
        self._disk = disk
        self._folder = folder
        self._topics = topics
        self._executor = executor
        self._memtable_rows = memtable_rows
        self.progress = START
        self._forget()

    def _forget(self) -> None:
        self._runs: list[SortedRun] = []
        self._memtable = Memtable()
        # Full ones, oldest first.
        self._sealed: list[Memtable] = []
        self._window = RowWindow(self.progress)
        self._flush: _RunJob | None = None
        self._merge: _RunJob | None = None
        self._saving: OrderSnapshot | None = None
        self._next_serial = 1
        # Log position and entry: the runs that `open` found hold everything before.
        self.covered = 0, 0
        # Serials that the manifest on disk names.
        self._kept: frozenset[int] = frozenset()
        self._drop_to = START
        # The fault found in a run; empty: none.
        self.damage = ""
        # Whether a run could not be written.
        self._is_stuck = False
        # Whether runs may need merging.
        self._is_changed = True

    # --- opening ------------------------------------------------------------------------------------------------------

    def open(self, position: int, end: int, log_end: int) -> bool:
        """Opens the runs that hold everything before a log position. Returns whether they are usable; if not, the order
        and its folder are empty.

        Args:
            position: of the trusted checkpoint.
            end: of the lane's queue.
            log_end: the end of the log that was recovered.

        Raises:
            OSError: the disk can't be read.
        """
        found = self._read_manifest()
        fault = "no manifest" if found is None else self._misfit(found, position, end, log_end)
        if found is not None and not fault:
            try:
                self._take(found)
            except (DamagedBytes, FileNotFoundError) as error:
                fault = error.text if isinstance(error, DamagedBytes) else f"{error.filename} is missing"
        if fault:
            if end:
                log.warning("rebuilding the order of a timer lane", folder=str(self._folder), reason=fault)
            self.clear()
            return False
        self._remove_others()
        return True

    def _read_manifest(self) -> Manifest | None:
        try:
            return manifest.decode((self._folder / MANIFEST).read_bytes())
        except FileNotFoundError:
            return None

    def _misfit(self, found: Manifest, position: int, end: int, log_end: int) -> str:
        if found.position < position:
            return f"its position is {found.position}, the checkpoint's {position}"
        if found.position > log_end or found.end > end:
            return f"it covers position {found.position} and entry {found.end}, the log ends earlier"
        if found.topics > self._topics.count:
            return f"it names {found.topics} topics, {self._topics.count} are known"
        return ""

    def _take(self, found: Manifest) -> None:
        for serial, count in found.runs:
            run = SortedRun(self._disk, self._path(serial), serial)
            self._runs.append(run)
            if run.count != count:
                raise DamagedBytes(f"{run.path.name} has {run.count} rows, the manifest says {count}")
        self._next_serial = found.next_serial
        self._kept = frozenset(serial for serial, _ in found.runs)
        self.covered = found.position, found.end

    def _remove_others(self) -> None:
        wanted = {MANIFEST, *(run.path.name for run in self._runs)}
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in wanted:
                self._disk.unlink(path)

    def clear(self) -> None:
        """Removes everything, for a rebuild."""
        self.close()
        self._forget()
        if (self._folder / MANIFEST).exists():
            # The manifest goes for good before its runs.
            self._disk.unlink(self._folder / MANIFEST)
            self._disk.sync_directory(self._folder)
        self._remove_others()

    def close(self) -> None:
        """Waits for the threads; unsaved rows are lost."""
        for job in (self._flush, self._merge):
            if job is not None and job.result.exception() is None and (run := job.result.result()) is not None:
                run.close()
        self._flush = self._merge = None
        for run in self._runs:
            run.close()
        self._runs = []

    # --- changing -----------------------------------------------------------------------------------------------------

    def add(self, rows: OrderRows) -> None:
        """Adds rows of new entries."""
        self._put(rows)

    def remove(self, dues: Ints, entries: Ints) -> None:
        """Removes existing rows."""
        self._put(tombstones(dues, entries))

    def advance(self, to: LanePlace) -> None:
        """Notes that all rows at or before the place have ended."""
        self.progress = to
        self._window.drop(to)

    def _put(self, rows: OrderRows) -> None:
        self.tend()
        self._memtable.add(rows)
        self._window.add(rows)
        if self._memtable.count >= self._memtable_rows:
            self._seal()
        if len(self._sealed) >= _SEALED_MAX and self._flush is not None:
            self._flush.result.exception()
            self.tend()

    def _seal(self) -> None:
        self._sealed.append(self._memtable)
        self._memtable = Memtable()
        self._is_stuck = False
        self._begin_flush()

    # --- reading ------------------------------------------------------------------------------------------------------

    def head(self, after: LanePlace, count: int) -> OrderRows:
        """The next `count` rows after a place that is not before the progress. Raises: DamagedBytes, OSError."""
        self._check()
        return self._window.read(after, count, self._runs, self._memtables)

    def scan(self, after: LanePlace, to: LanePlace, count: int) -> OrderRows:
        """As `head`, for a single read: at most `count` rows up to `to`. Raises: DamagedBytes, OSError."""
        self._check()
        walk, parts = OrderWalk(max(after, self.progress)), []
        left = count
        while left > 0 and walk.place < to:
            rows = walk.next(self._runs, self._memtables, _SCAN_ROWS, to)
            parts.append(rows.part(0, left))
            left -= rows.size
        return joined([rows for rows in parts if rows.size])

    def count_to(self, place: LanePlace) -> int:
        """Rows after the progress, at or before the place: exact. Raises: DamagedBytes, OSError."""
        self._check()
        sources: list[SortedRun | Memtable] = [*self._runs, *self._memtables]
        return sum(one.pending_to(place) - one.pending_to(self.progress) for one in sources) if place > START else 0

    @property
    def size(self) -> OrderSize:
        row_count = sum(run.count for run in self._runs) + sum(memtable.count for memtable in self._memtables)
        return OrderSize(len(self._runs), row_count, sum(run.size for run in self._runs))

    def _check(self) -> None:
        self.tend()
        if self.damage:
            raise DamagedBytes(self.damage)

    @property
    def _memtables(self) -> tuple[Memtable, ...]:
        return *self._sealed, self._memtable

    # --- background work ----------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Takes over written runs, and starts writing the next ones."""
        while self._flush is not None and self._flush.result.done():
            self._take_flushed(self._flush)
            self._begin_flush()
        if self._merge is not None and self._merge.result.done():
            self._take_merged(self._merge)
        if self._is_changed and self._merge is None and not self.damage:
            self._is_changed = False
            self._begin_merge()

    def _begin_flush(self) -> None:
        if self._sealed and self._flush is None and not self._is_stuck:
            memtable = self._sealed[0]
            self._flush = self._begin(lambda: [memtable.sorted()])
            self._flush.memtable = memtable

    def _begin_merge(self) -> None:
        try:
            sizes = [run.count - run.rank(self._drop_to) for run in self._runs]
        except (DamagedBytes, OSError) as error:
            self.damage = str(error)
            return
        chosen = [self._runs[index] for index in mergeable(sizes, self._memtable_rows)]
        if chosen:
            self._merge = self._begin(partial(merge, chosen, self._drop_to))
            self._merge.runs = chosen

    def _begin(self, parts: Callable[[], Iterable[OrderRows]]) -> _RunJob:
        serial, self._next_serial = self._next_serial, self._next_serial + 1
        return _RunJob(self._executor.submit(_write, self._disk, self._path(serial), serial, parts))

    def _path(self, serial: int) -> Path:
        return self._folder / f"{serial:016d}"

    def _take_flushed(self, job: _RunJob) -> None:
        self._flush = None
        try:
            run = job.result.result()
        except OSError as error:
            # The rows stay in memory until the next memtable or checkpoint retries.
            self._is_stuck = True
            log.error("a run of a timer lane can't be written", error=str(error))
            return
        memtable = self._sealed.pop(0)
        assert memtable is job.memtable
        if run is not None:
            self._runs.append(run)
            self._is_changed = True
        if self._saving is not None and self._saving.last is memtable:
            self._snapshot(self._saving)

    def _take_merged(self, job: _RunJob) -> None:
        self._merge = None
        try:
            run = job.result.result()
        except DamagedBytes as error:
            self.damage = error.text
            return
        except OSError as error:
            log.error("runs of a timer lane can't be merged", error=str(error))
            return
        self._runs = [one for one in self._runs if one not in job.runs] + ([] if run is None else [run])
        self._is_changed = True
        for one in job.runs:
            one.close()
        self._remove(frozenset(one.serial for one in job.runs))

    def _remove(self, serials: frozenset[int]) -> None:
        """Removes files that no manifest names."""
        named = self._kept if self._saving is None else self._kept | _serials(self._saving.manifest)
        paths = [self._path(serial) for serial in serials - named]
        if paths:
            self._executor.submit(_unlink, self._disk, paths)

    # --- saving -------------------------------------------------------------------------------------------------------

    def capture(self, position: int, end: int) -> OrderSnapshot:
        """Begins to save everything added so far, which is the log's content before `position`. The steps that follow:
        `tend` until `is_ready`, waiting for `flushing` in between; `write`, on any thread; then `saved`."""
        if self._memtable.count:
            self._seal()
        last = self._sealed[-1] if self._sealed else None
        saving = OrderSnapshot(position, end, last, self.progress, self._topics.count)
        self._saving = saving
        if saving.last is None:
            self._snapshot(saving)
        self._is_stuck = False
        self._begin_flush()
        self.tend()
        return saving

    @property
    def flushing(self) -> "Future[SortedRun | None] | None":
        """Done when `tend` is to be called again; None: nothing is being written, or it can't be."""
        return self._flush.result if self._flush is not None else None

    def _snapshot(self, saving: OrderSnapshot) -> None:
        runs = tuple((run.serial, run.count) for run in self._runs)
        saving.manifest = Manifest(saving.position, saving.end, self._next_serial, saving.topics, runs)

    def write(self, saving: OrderSnapshot) -> None:
        """Makes the manifest durable. Blocking. Raises: OSError: the previous one counts."""
        assert saving.manifest is not None
        disk, path = self._disk, self._folder / MANIFEST
        self._topics.save(saving.topics)
        disk.make_directory(self._folder)
        for folder in (self._folder, self._folder.parent, self._folder.parent.parent):
            disk.sync_directory(folder)
        new = path.with_suffix(".tmp")
        disk.write_file(new, saving.manifest.encode())
        disk.replace(new, path)
        disk.sync_directory(self._folder)

    def saved(self, saving: OrderSnapshot) -> None:
        """Notes that the manifest is durable: files that only the previous one names are removed."""
        before, self._kept, self._saving = self._kept, _serials(saving.manifest), None
        self._drop_to = saving.drop_to
        self._is_changed = True
        self._remove(before - {run.serial for run in self._runs})
        self.tend()


def _serials(saved: Manifest | None) -> frozenset[int]:
    return frozenset(serial for serial, _ in saved.runs) if saved is not None else frozenset()


def _write(disk: Disk, path: Path, serial: int, parts: Callable[[], Iterable[OrderRows]]) -> SortedRun | None:
    """Runs on a thread."""
    disk.make_directory(path.parent)
    return SortedRun(disk, path, serial) if write_run(disk, path, parts()) else None


def _unlink(disk: Disk, paths: list[Path]) -> None:
    """Runs on a thread. The next start removes any leftovers."""
    for path in paths:
        try:
            disk.unlink(path)
        except OSError as error:
            log.warning("a run of a timer lane can't be removed", path=str(path), error=str(error))
