"""Takes the store directory of another member, in place of a log that this copy does not have, or has no more.

    all files but the log ──▶ a point: the last committed entry ──▶ segments of the log up to it ──▶ duetimeRaft
                                          ▲                                  │
                                          └───── another segment is full ────┘

`take` writes and asks; its caller carries the questions to the member. Equal files are skipped, so that an interrupted
run continues. Until the end `duetimeRaft` marks the directory as incomplete.

The other files are at most as new as the point, since a store writes nothing there before its commit. Recovery reads
them as those of a killed process.
"""

import os
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from duetime_core.errors import DueTimeError, NotFound

from duetime_store.copies.entries import Entry
from duetime_store.copies.roster import Roster
from duetime_store.copies.statefile import FILE, NO_CUT, StateFile
from duetime_store.files.disk import Disk, next_data, next_hole
from duetime_store.files.reserve import FILE as RESERVE
from duetime_store.log.segment import file_name

LOG = "commitlog"
# Files of one process.
_OWN = frozenset(("lock", "abort", RESERVE, FILE))
# Later files cover earlier ones: a directory in use is taken like a killed one.
_FIRST = ("config", "checkpoint", "consumequeue")
PIECE_BYTES = 1024 * 1024


class TakenOtherwise(DueTimeError):
    """A segment arrived with other bytes than the member has."""


class SourceBehind(DueTimeError):
    """The member lacks committed entries that this copy may have acknowledged."""


@dataclass(frozen=True, slots=True)
class Point:
    """A committed entry, the members as of it, and the log up to it: segments of one size from `begin` on."""

    entry: Entry
    roster: Roster
    begin: int
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a directory, but those of the log, by path and size; in the order in which they are taken."""

    files: tuple[tuple[str, int], ...]
    point: Point


@dataclass(frozen=True, slots=True)
class List:
    """Asks for a Listing."""


@dataclass(frozen=True, slots=True)
class Check:
    """Asks for the CRC-32 of a file's first bytes; None: it is gone."""

    path: str
    end: int


@dataclass(frozen=True, slots=True)
class Read:
    """Asks for (position, bytes) of the first data at or after a position; without bytes: none follows before `end`."""

    path: str
    position: int
    end: int


Ask = List | Check | Read


def take(disk: Disk, root: Path, file: StateFile) -> Generator[Ask, Any, None]:
    """Takes a directory; `file` is marked as incomplete before. Blocking between two questions.

    Raises:
        TakenOtherwise, SourceBehind
    """
    listing: Listing = yield List()
    if listing.point.entry.index < file.state.commit:
        raise SourceBehind(f"its last entry is {listing.point.entry.index}, and {file.state.commit} is committed")
    taken = set()
    for path, size in listing.files:
        if (yield from _take_file(disk, root, path, size, size)):
            taken.add(path)
    point = yield from _take_log(disk, root, taken)
    for path, _ in _files(root):
        if path not in taken:
            disk.unlink(root / path)
    for folder, _, _ in os.walk(root):
        disk.sync_directory(Path(folder))
    finish(file, point)


def _take_log(disk: Disk, root: Path, taken: set[str]) -> Generator[Ask, Any, Point]:
    """Takes the log up to a point less than a segment before the member's present one; adds its files to `taken`."""
    point: Point = (yield List()).point
    at, size, end, segments = point.begin, point.segment_bytes, point.entry.end, set[str]()
    while at < end:
        if end < at + size:
            # A long log takes long: without its later part, the leader might have compacted the entries after it.
            point = (yield List()).point
            end = point.entry.end
        path = f"{LOG}/{file_name(at)}"
        try:
            if not (yield from _take_file(disk, root, path, size, min(end - at, size))):
                raise TakenOtherwise(f"the segment {path} is missing")
        except TakenOtherwise:
            # Unless retention has deleted it: then the log begins later.
            point, segments = (yield List()).point, set()
            if point.begin <= at:
                raise
            at, end = point.begin, point.entry.end
        else:
            segments.add(path)
            at += size
    taken |= segments
    return point


def begin(file: StateFile, committed: int) -> None:
    """Marks the directory as incomplete, durably. The other one must have the entry `committed`: this copy may have
    acknowledged entries up to it. Blocking."""
    state = file.state
    file.write_both(replace(state, is_taking=True, commit=max(state.commit, committed)))


def finish(file: StateFile, point: Point) -> None:
    """Lets the copy begin after the point, durably. Its vote is kept. Blocking."""
    state, entry = file.state.after(point.entry), point.entry
    term, vote = (state.term, state.vote) if state.term >= entry.term else (entry.term, 0)
    file.write_both(replace(state, roster=point.roster, term=term, vote=vote, cut=NO_CUT, is_taking=False))


def _take_file(disk: Disk, root: Path, path: str, size: int, end: int) -> Generator[Ask, Any, bool]:
    """Takes the first `end` bytes of a file of `size` bytes; False: it is gone."""
    target, is_segment = root / path, path.startswith(f"{LOG}/")
    crc = yield Check(path, end)
    if crc is None:
        return False
    disk.make_directory(target.parent)
    fd = disk.open(target)
    try:
        if os.fstat(fd).st_size != size or crc_of(fd, end) != crc:
            disk.truncate(fd, 0)
            disk.truncate(fd, size)
            at, data = yield Read(path, 0, end)
            while data:
                disk.write(fd, data, at)
                at, data = yield Read(path, at + len(data), end)
            if is_segment and crc_of(fd, end) != crc:
                raise TakenOtherwise(f"{path} arrived with other bytes")
        disk.clear(fd, end, size)
        disk.sync(fd)
    finally:
        disk.close(fd)
    return True


def crc_of(fd: int, end: int) -> int:
    """The CRC-32 of a file's first bytes."""
    crc = at = 0
    while at < end and (data := os.pread(fd, min(PIECE_BYTES, end - at), at)):
        crc, at = zlib.crc32(data, crc), at + len(data)
    return crc


class Giver:
    """Answers the questions from a member's directory. Blocking."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def files(self) -> tuple[tuple[str, int], ...]:
        """See Listing."""
        return tuple((path, size) for path, size in _files(self._root) if not path.startswith(f"{LOG}/"))

    def check(self, ask: Check) -> int | None:
        """See Check. Raises: NotFound: no file of a store."""
        with _opened(self._path(ask.path)) as file:
            return crc_of(file.fd, ask.end) if file.fd >= 0 else None

    def read(self, ask: Read) -> tuple[int, bytes]:
        """See Read. Raises: NotFound: no file of a store."""
        with _opened(self._path(ask.path)) as file:
            at = next_data(file.fd, ask.position) if file.fd >= 0 else None
            if at is None or at >= ask.end:
                return ask.end, b""
            stop = min(next_hole(file.fd, at), at + PIECE_BYTES, ask.end)
            return at, os.pread(file.fd, stop - at, at)

    def _path(self, path: str) -> Path:
        parts = PurePosixPath(path).parts
        if not parts or parts[0] in _OWN or not all(part not in ("/", "..") for part in parts):
            raise NotFound(f"{path} is no file of a store that others take")
        return self._root / path


class _opened:  # noqa: N801  used as a function
    """A file that may be gone; then `fd` is negative."""

    def __init__(self, path: Path) -> None:
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.fd = -1

    def __enter__(self) -> "_opened":
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def _files(root: Path) -> Iterator[tuple[str, int]]:
    """Paths and sizes of all files that members take, in order."""
    ranks = {name: rank for rank, name in enumerate(_FIRST, -len(_FIRST))}
    tops = sorted(root.iterdir(), key=lambda path: (ranks.get(path.name, 0), path.name))
    for top in tops:
        if top.name not in _OWN:
            inner = sorted(path for path in top.rglob("*")) if top.is_dir() else [top]
            for path in inner:
                try:
                    if path.is_file():
                        yield path.relative_to(root).as_posix(), path.stat().st_size
                except FileNotFoundError:
                    continue
