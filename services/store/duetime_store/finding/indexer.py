"""Builds the index beside the serving path, in short steps with pauses.

    log      | indexed ......... | to be read | keys kept (newkeys.py) | not durable | staged |
             0               position       start                durable_end

Keys of new records are kept from their put on, and written when the store is idle; under load, after a second. Only
older records are read from the log: after a crash, or for a rebuild. No send and no flush waits for any of it, and
messages not indexed yet are found in the kept keys and by reading the log (finder.py).

The mark (`config/duetimeIndex.json`) records the state on disk: newest file, its header, log position. It is written
every half minute, when a file is full, and at the end. A start cuts the newest file back to the mark, makes its slots
from its entries, and continues in the log from there: after a crash no entry is missing and none is doubled. Without a
mark, or if the mark's file is missing, the index is rebuilt from the oldest record.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from duetime_core.clock import Clock
from duetime_format import layout
from duetime_format.columns import RecordRun, take
from duetime_format.errors import DamagedBytes
from duetime_format.keys import NO_ROWS, Rows, rows_of
from duetime_shard.walk import item_end, scan_runs

from duetime_store.files import configs
from duetime_store.files.worker import FileWorker
from duetime_store.finding.index import Header, IndexFile, IndexWriter, Shape, file_paths
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.segment import Segment
from duetime_store.writing.store import Store

log = structlog.get_logger()

# Limits of an indexing step, from the log and from kept keys: under a millisecond of 100-byte records. The pause after
# it leaves the rest to live traffic.
STEP_BYTES = 256 * 1024
STEP_KEYS = 4_096
PAUSE_MS = 1
# How long published records may wait for more, and the maximum wait for an idle store.
GATHER_MS = 20
BUSY_MS_MAX = 1_000
MARK_INTERVAL_MS = 30_000
RETRY_MS = 5_000
# An index that lags by more than this at a start logs when it has caught up.
_TOLD_BYTES = 16 * 1024 * 1024

_DONE = object()


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of the index on disk: the newest file (empty: there is none), its header, and the log position."""

    file: str
    header: Header
    position: int

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "header": asdict(self.header), "position": self.position}


def read_mark(config: Path) -> Mark | None:
    """None: it is missing or damaged."""
    value = configs.read(config, configs.INDEX)
    try:
        if value is not None:
            return Mark(str(value["file"]), Header(**value["header"]), int(value["position"]))
    except (KeyError, TypeError, ValueError):
        log.warning("index mark damaged", file=configs.INDEX)
    return None


def pieces(
    commit_log: CommitLog, position: int, end: int, step_bytes: int = STEP_BYTES
) -> Iterator[tuple[RecordRun | None, int]]:
    """The intact records from `position` to `end`, in runs of a step's size, each with the position after it."""
    position = max(position, commit_log.min_position)
    while position < end:
        segment = commit_log.segment_at(position)
        if segment is None:
            run, position = None, position - position % commit_log.segment_bytes + commit_log.segment_bytes
        else:
            data = segment.read_file(position, min(step_bytes, end - position))
            run = take(data, 0, position)
            if run.count:
                position = run.end_position
            else:
                run, position = _unusual(commit_log, segment, position, data, end)
        yield run, min(position, end)


def _unusual(
    commit_log: CommitLog, segment: Segment, position: int, data: bytes, end: int
) -> tuple[RecordRun | None, int]:
    """Handles the start of no run: the end of a segment, a record larger than a step, damage."""
    if len(data) < layout.BLANK_BYTES:
        return None, segment.end
    if layout.blank_at(data) is not None:
        return None, segment.end
    size = layout.size_at(data)
    if len(data) < size <= min(segment.end, end) - position:
        run = take(segment.read_file(position, size), 0, position)
        if run.count:
            return run, run.end_position
    # A damaged record is not indexed, because it could not be returned.
    item = next(scan_runs(commit_log, position), None)
    return None, end if item is None else item_end(item)


def keys_between(store: Store, start: int, end: int, step_bytes: int) -> Iterator[Rows]:
    """The keys of the published records in [start, end), in the order of the log: kept ones as of the first step, those
    of older records read from the log in runs of a step's size."""
    kept_from = max(min(store.new_keys.start, end), start)
    kept = store.new_keys.between(kept_from, end)
    for run, _ in pieces(store.log, start, kept_from, step_bytes):
        if run is not None:
            yield rows_of(run)
    yield from kept


def _nothing() -> None:
    pass


class Indexer:
    """The index of one shard, and the loop that builds it."""

    def __init__(self, store: Store, worker: FileWorker, clock: Clock, *, shape: Shape) -> None:
        self._store = store
        directory = worker.directory
        self._disk = directory.disk
        self._directory = directory.root / "index"
        self._config = directory.config
        self._worker = worker
        self._clock = clock
        self._shape = shape
        # Oldest first; entries go to the newest.
        self._files: list[IndexFile] = []
        self._writer: IndexWriter | None = None
        # Set once `position` and the files match the mark.
        self.opened = asyncio.Event()
        # Every record before it is in the index.
        self.position = store.log.min_position
        self._marked_at_ms = clock.monotonic_ms()
        self._marked_position = -1

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return self._store.durable_end - self.position

    @property
    def unread_bytes(self) -> int:
        """Those of them that have to be read, since their keys are not kept."""
        return max(self._store.new_keys.start - self.position, 0)

    @property
    def files(self) -> list[IndexFile]:
        """Index files, newest first."""
        return self._files[::-1]

    async def run(self) -> None:
        """Indexes forever. A failing disk stops indexing for a while, and nothing else."""
        while True:
            try:
                if not self.opened.is_set():
                    await self._open()
                await self._follow()
            except (OSError, DamagedBytes) as error:
                log.error("index not written", error=str(error), behind_bytes=self.behind_bytes)
            await self._clock.sleep(RETRY_MS)

    async def close(self) -> None:
        """Indexes the rest, if that is little, and makes files and mark whole. Call it after `run` has ended."""
        try:
            # The thread's remaining work for `run` comes first.
            await self._worker.run(_nothing)
            if self.opened.is_set():
                if self.unread_bytes <= _TOLD_BYTES:
                    while self.behind_bytes:
                        await self._step()
                await self._mark(whole=True)
        except (OSError, DamagedBytes) as error:
            log.error("index not written", error=str(error), behind_bytes=self.behind_bytes)
        finally:
            for file in self._files:
                file.close()

    def drop_before(self, min_position: int) -> None:
        """Deletes files whose records retention has removed, except the newest; the log begins at `min_position`."""
        while len(self._files) > 1 and self._files[0].header.end_position < min_position:
            file = self._files.pop(0)
            file.close()
            self._disk.unlink(file.path)
            log.info("index file removed", file=file.path.name)

    # --- opening --------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        for file in self._files:
            file.close()
        self._files, self._writer = [], None
        self._disk.make_directory(self._directory)
        paths = file_paths(self._directory)
        mark = read_mark(self._config)
        reason = self._fault(mark, paths)
        if mark is not None and not reason:
            try:
                await self._take_back(mark, paths)
            except DamagedBytes as error:
                reason = error.text
        if reason:
            for file in self._files:
                file.close()
            self._files, self._writer = [], None
            for path in paths:
                # The file system needs a while for a full one.
                await self._worker.run(self._disk.unlink, path)
            self.position = self._store.log.min_position
            if self.behind_bytes:
                log.warning("rebuilding the index", reason=reason, behind_bytes=self.behind_bytes)
        self.opened.set()

    def _fault(self, mark: "Mark | None", paths: list[Path]) -> str:
        """The reason why indexing can't continue from the directory; empty: it can."""
        if mark is None:
            return "no mark"
        if mark.file and mark.file not in [path.name for path in paths]:
            return f"index file {mark.file} is missing"
        if not self._store.log.min_position <= mark.position <= self._store.published_end:
            return f"the log does not reach the mark at {mark.position}"
        return ""

    async def _take_back(self, mark: "Mark", paths: list[Path]) -> None:
        for path in paths:
            if not mark.file or int(path.name) > int(mark.file):
                self._disk.unlink(path)
            elif path.name != mark.file:
                self._files.append(IndexFile(path, self._shape))
            else:
                self._writer = IndexWriter(self._disk, path, self._shape)
                self._files.append(self._writer)
                await self._run_steps(self._writer.cut(mark.header))
        self.position = mark.position

    async def _run_steps(self, steps: Iterator[None]) -> None:
        """Runs the steps on the thread, one at a time, with turns of the event loop between them."""
        while await self._worker.run(next, steps, _DONE) is not _DONE:
            pass

    # --- following ------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        behind_bytes, started = self.unread_bytes, time.perf_counter()
        while True:
            if not self.unread_bytes:
                await self._lull()
            end = self._store.durable_end
            while self.position < end:
                await self._step()
                if behind_bytes > _TOLD_BYTES and not self.unread_bytes:
                    took_ms = round((time.perf_counter() - started) * 1000)
                    log.info("index caught up", bytes=behind_bytes, took_ms=took_ms)
                    behind_bytes = 0
                if self._clock.monotonic_ms() - self._marked_at_ms >= MARK_INTERVAL_MS:
                    await self._mark()
                await self._clock.sleep(PAUSE_MS)

    async def _lull(self) -> None:
        """Waits until something is published, and then for an idle store, but not for long."""
        if not self.behind_bytes:
            await self._store.next_publish()
        for _ in range(BUSY_MS_MAX // GATHER_MS):
            await self._clock.sleep(GATHER_MS)
            if self._store.is_idle or self._store.new_keys.are_many:
                return

    async def _step(self) -> None:
        """Indexes the next kept keys, or the next piece of the log."""
        store, kept = self._store, self._store.new_keys
        if self.unread_bytes:
            end = min(kept.start, store.durable_end)
            # None: retention has deleted all of it.
            run, position = next(pieces(store.log, self.position, end), (None, end))
            rows = NO_ROWS if run is None else rows_of(run)
        else:
            rows, position = kept.first(self.position, STEP_KEYS, store.durable_end)
        await self._add(rows)
        self.position = position
        kept.drop_before(position)

    async def _add(self, rows: Rows) -> None:
        """Adds entries. All of one record go into one file, so that a file ends between two records."""
        while len(rows):
            count, room = len(rows), self._writer.room if self._writer else 0
            if count > room:
                # Returns to the first entry of the record that does not fit as a whole.
                count = int(np.searchsorted(rows["position"], rows["position"][room]))
                if not count and self._writer and self._writer.header.next_entry == 1:
                    # It has more keys than a whole file takes.
                    count = room
            if self._writer and count:
                self._writer.append(rows[:count])
                rows = rows[count:]
            if len(rows):
                self.position = int(rows["position"][0])
                await self._roll()

    async def _roll(self) -> None:
        """Completes the newest file and begins another one."""
        last = self._writer
        await self._mark(whole=True)
        name = datetime.fromtimestamp(self._store.clock.now_ms() / 1000).strftime("%Y%m%d%H%M%S%f")[:-3]
        if self._files:
            # Brokers order files by name, and local time may step back.
            name = str(max(int(name), int(self._files[-1].path.name) + 1))
        header = last.header if last else None
        writer = IndexWriter.create(self._disk, self._directory / name, self._shape, header)
        self._writer = writer
        self._files.append(writer)
        await self._mark()
        log.info("index file created", file=name, slots=self._shape.slot_count, entries=self._shape.entry_count)

    async def _mark(self, *, whole: bool = False) -> None:
        """Makes everything indexed so far durable; `whole`: also slots and header of the newest file."""
        self._marked_at_ms = self._clock.monotonic_ms()
        if self._marked_position == self.position and not whole:
            return
        writer, position = self._writer, self.position
        mark = Mark(writer.path.name if writer else "", writer.header if writer else Header(), position)
        await self._worker.run(self._work(writer, mark, whole))
        self._marked_position = position

    def _work(self, writer: IndexWriter | None, mark: "Mark", whole: bool) -> Callable[[], None]:
        def work() -> None:
            if writer is not None:
                if whole:
                    writer.write_slots()
                writer.sync()
                self._disk.sync_directory(self._directory)
            configs.write(self._disk, self._config, configs.INDEX, mark.to_json(), durable=whole)

        return work
