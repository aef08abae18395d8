"""A disk that can lose power: each unflushed piece is independently kept, lost or torn.

The files are real and have the written data, so that readers see it; beside them the disk keeps an undo record of each
change since the last flush of its file, and of each name since the last flush of its directory:

    bytes of a file     | durable | write 1 | truncate | write 2 |       each kept or not; a write also in part
    a name in a folder  | durable | file 1  | none     | file 2  |       any one of these states

This is harsher than real file systems, which keep names in order. `lose` changes the files to a possible state after a
power cut.
"""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duetime_store.files.disk import Buffer

from tests.faulty_disk import GIB, FaultyDisk

SECTOR = 512


class PowerCut(Exception):
    """The process dies in the middle of an operation."""


class Unlucky(random.Random):
    """Dice for a power cut without luck: all unflushed data is lost."""

    def random(self) -> float:
        return 0.0

    def choice(self, seq: Sequence[Any]) -> Any:  # type: ignore[override]
        return seq[0]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a file's bytes. A truncation has only sizes, and the bytes that it cut off."""

    at: int
    old: bytes
    new: bytes
    old_size: int
    new_size: int
    truncates: bool = False


class PowerDisk(FaultyDisk):
    """See the module. Serves one process life; after a power cut `lose`, and a new one serves the next."""

    def __init__(self, root: Path, dice: random.Random, total_bytes: int = GIB) -> None:
        super().__init__(total_bytes)
        self.is_off = self.is_lost = False
        # Power is cut in the middle of the operation that brings it to 0.
        self.operations_left = -1
        self._root = root
        self._dice = dice
        self._stash = root.parent / f"{root.name}.stash"
        self._stash.mkdir(exist_ok=True)
        self._changes: dict[int, list[Change]] = {}
        # Targets of each name since it was last durable: an inode, a directory (-1), or nothing (0).
        self._names: dict[Path, list[int]] = {}

    def go_on_from(self, before: "PowerDisk") -> None:
        """The life before this one ended without a power cut: its unflushed data is still unflushed."""
        self._changes, self._names = before._changes, before._names

    def cut_power_in(self, operations: int) -> None:
        self.operations_left = operations

    def _enter(self, operation: str, path: Path | int) -> Path:
        if self.is_off:
            raise PowerCut
        where = super()._enter(operation, path)
        if operation not in ("space", "close"):
            self.operations_left -= 1
            if self.operations_left == 0:
                # Half of the time it is done and the answer lost.
                self.is_off = True
                if self._dice.random() < 0.5:
                    raise PowerCut
        return where

    def _leave(self) -> None:
        if self.is_off:
            raise PowerCut

    # --- names ------------------------------------------------------------------------------------------------------

    def _mean(self, path: Path, meaning: int) -> None:
        """From now on the name means something else; its file, if it has one, stays in reach."""
        old = self._meaning(path)
        if old > 0 and not (self._stash / str(old)).exists():
            os.link(path, self._stash / str(old))
        self._names.setdefault(path, [old]).append(meaning)

    def _meaning(self, path: Path) -> int:
        try:
            found = path.stat()
        except FileNotFoundError:
            return 0
        return -1 if path.is_dir() else found.st_ino

    def open(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        created = bool(flags & os.O_CREAT) and not path.exists()
        if flags & os.O_TRUNC and not created:
            with path.open("rb") as file:
                old, ino = file.read(), os.fstat(file.fileno()).st_ino
        else:
            old, ino = b"", 0
        # Open it readable: the bytes to be overwritten are kept.
        fd = super().open(path, (flags & ~os.O_WRONLY) | os.O_RDWR)
        if created:
            ino = os.fstat(fd).st_ino
            # Another thread may have made the folder's names durable in the meantime.
            self._names.setdefault(path, [0]).append(ino)
            self._changes.pop(ino, None)
        elif old:
            self._changes.setdefault(ino, []).append(Change(0, old, b"", len(old), 0, truncates=True))
        self._leave()
        return fd

    def make_directory(self, path: Path) -> None:
        for folder in reversed([path, *path.parents]):
            if not folder.exists():
                self._names.setdefault(folder, [0]).append(-1)
        super().make_directory(path)
        self._leave()

    def replace(self, source: Path, target: Path) -> None:
        ino = self._meaning(source)
        self._mean(target, ino)
        self._mean(source, 0)
        super().replace(source, target)
        self._leave()

    def link(self, source: Path, target: Path) -> None:
        self._mean(target, self._meaning(source))
        super().link(source, target)
        self._leave()

    def unlink(self, path: Path) -> None:
        if path.exists():
            self._mean(path, 0)
        super().unlink(path)
        self._leave()

    def sync_directory(self, path: Path) -> None:
        before = {name: len(meanings) for name, meanings in list(self._names.items()) if name.parent == path}
        super().sync_directory(path)
        self._leave()
        for name, count in before.items():
            # Names that other threads have changed meanwhile may be lost.
            if len(self._names.get(name, [])) == count:
                self._names.pop(name, None)

    # --- bytes ------------------------------------------------------------------------------------------------------

    def _change(self, fd: int, change: Change) -> None:
        self._changes.setdefault(os.fstat(fd).st_ino, []).append(change)

    def pwrite(self, fd: int, data: Buffer, at: int) -> int:
        size, old = os.fstat(fd).st_size, os.pread(fd, len(data), at)
        written = super().pwrite(fd, data, at)
        self._change(fd, Change(at, old, bytes(data[:written]), size, max(size, at + written)))
        self._leave()
        return written

    def pwritev(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
        size, old = os.fstat(fd).st_size, os.pread(fd, sum(map(len, buffers)), at)
        written = super().pwritev(fd, buffers, at)
        self._change(fd, Change(at, old, b"".join(buffers)[:written], size, max(size, at + written)))
        self._leave()
        return written

    def truncate(self, fd: int, size: int) -> None:
        old_size = os.fstat(fd).st_size
        old = os.pread(fd, old_size - size, size) if size < old_size else b""
        super().truncate(fd, size)
        self._change(fd, Change(size, old.rstrip(b"\0"), b"", old_size, size, truncates=True))
        self._leave()

    def allocate(self, fd: int, size: int) -> None:
        super().allocate(fd, size)
        self._leave()

    def datasync(self, fd: int) -> None:
        super().datasync(fd)
        self._leave()
        self._changes.pop(os.fstat(fd).st_ino, None)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._leave()
        self._changes.pop(os.fstat(fd).st_ino, None)

    def sync_whole(self, fd: int) -> None:
        super().sync_whole(fd)
        self._leave()
        self._changes.clear()
        self._names.clear()

    # --- the end ----------------------------------------------------------------------------------------------------

    def close_all(self) -> None:
        """The process dies; its written data is kept."""
        self.is_off = True
        for fd in list(self._paths):
            self.close(fd)

    def lose(self) -> str:
        """Applies a power cut after `close_all`. Returns the outcome, for people."""
        self.is_lost = True
        files = {path.stat().st_ino: path for path in self._stash.iterdir()}
        for path in self._root.rglob("*"):
            if path.is_file():
                files[path.stat().st_ino] = path
        told = [self._lose_bytes(files[ino], changes) for ino, changes in self._changes.items() if ino in files]
        for meanings in self._names.values():
            for ino in {ino for ino in meanings if ino > 0} & files.keys():
                if not (self._stash / str(ino)).exists():
                    os.link(files[ino], self._stash / str(ino))
        told += [self._lose_name(path, self._names[path]) for path in sorted(self._names)]
        for path in self._stash.iterdir():
            path.unlink()
        return "; ".join(filter(None, told))

    def _lose_name(self, path: Path, meanings: list[int]) -> str:
        meaning = self._dice.choice(meanings)
        now = self._meaning(path)
        if now == meaning or not path.parent.exists():
            return ""
        if now == -1:
            for inner in sorted(path.rglob("*"), reverse=True):
                inner.rmdir() if inner.is_dir() else inner.unlink()
            path.rmdir()
        elif now:
            path.unlink()
        if meaning > 0:
            os.link(self._stash / str(meaning), path)
        return f"{path.relative_to(self._root)} is {'gone' if not meaning else 'another'}"

    def _lose_bytes(self, path: Path, changes: list[Change]) -> str:
        """Reverts to the durable bytes, then reapplies the kept changes."""
        kept, dice = [], self._dice
        with path.open("r+b") as file:
            fd = file.fileno()
            for change in reversed(changes):
                if change.truncates and change.new_size < change.old_size:
                    os.ftruncate(fd, change.old_size)
                os.pwrite(fd, change.old, change.at)
                rest = len(change.new) - len(change.old)
                if rest > 0:
                    os.pwrite(fd, bytes(rest), change.at + len(change.old))
                os.ftruncate(fd, change.old_size)
            for change in changes:
                fate = dice.random()
                if fate < 0.3:
                    kept.append(0)
                    continue
                if change.truncates:
                    os.ftruncate(fd, change.new_size)
                    kept.append(1)
                    continue
                kept.append(sum(os.pwrite(fd, part, at) for part, at in self._parts(change, fate)))
        return f"{path.name}: kept {kept}"

    def _parts(self, change: Change, fate: float) -> list[tuple[bytes, int]]:
        """The kept parts of a write, with their positions."""
        length = len(change.new)
        if fate < 0.65 or not length:
            return [(change.new, change.at)]
        if fate < 0.85:
            return [(change.new[: self._dice.randrange(length)], change.at)]
        first = change.at - change.at % SECTOR
        parts = []
        for start in range(first, change.at + length, SECTOR):
            if self._dice.random() < 0.5:
                begin, end = max(start, change.at), min(start + SECTOR, change.at + length)
                parts.append((change.new[begin - change.at : end - change.at], begin))
        return parts
