"""Copies a store directory into a cluster's data directory, where it becomes a shard.

    DATA/.store-0.new/     filled here, until all of it is on disk
    DATA/store-0/          its name when it is whole

An interrupted copy starts over. Files are copied in an order in which later ones cover earlier ones: offsets, then
queues, then the log. So a directory in use is copied like a killed one, and its log has everything that its offsets
name.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duetime_core.errors import DueTimeError
from duetime_format.levels import DelayLevels
from duetime_shard.batches import scan_whole
from duetime_shard.brokers.config import has_lite_offsets
from duetime_shard.brokers.engines import QUEUE_FOLDERS, is_taken_over, refused
from duetime_shard.brokers.rocks import is_rocks
from duetime_shard.configs import LITE_OFFSETS, STORE
from duetime_shard.disk import LocalFiles
from duetime_shard.files import LogFiles
from duetime_shard.shard import LMQ_PREFIX, Progress, no_progress
from duetime_shard.walk import item_end

from duetime_store.files import configs
from duetime_store.files.adopting import adopt
from duetime_store.files.disk import Disk
from duetime_store.files.reserve import FILE as RESERVE
from duetime_store.offline.report import VerifyReport
from duetime_store.offline.verify import verify

_BYTES_AT_ONCE = 4 << 20
# Other files are copied between the second and the third.
_LOG = "commitlog"
_FIRST, _LAST = ("config", "checkpoint", "consumequeue"), ("timerlog", _LOG)
# Files of the serving process, of no use to another.
_NOT_COPIED = frozenset(("lock", RESERVE))


def shard_directory(data: Path, shard: int) -> Path:
    """The path of a shard in a cluster's data directory, as `duetime up` has it."""
    return data / f"store-{shard}"


def import_directory(
    source: Path,
    target: Path,
    levels: DelayLevels,
    *,
    accept_damage: bool,
    accept_loss: frozenset[str] = frozenset(),
    verifying: Progress = no_progress,
    copying: Progress = no_progress,
) -> VerifyReport:
    """Copies a directory to `target`, once it is verified; the source stays as it is. Returns the verification.

    A broker's offsets, topics and groups in RocksDB, and messages received by POP, become files of the shard. Nothing
    is copied from a damaged source, unless `accept_damage`, or one with losses, unless `accept_loss` has their kinds.

    Raises:
        InvalidArgument: the source is not a store directory.
        DueTimeError: the target is not empty, or there is no room; nothing is copied.
    """
    check_empty(target)
    report = verify(source, levels, verifying)
    if (not report.is_sound and not accept_damage) or refused(report.losses, accept_loss):
        return report
    with made_whole(target) as temporary:
        files = source_files(source)
        check_room(temporary, files)
        copy_files(Disk(), files, temporary, copying)
        if not is_taken_over(source):
            adopt(Disk(), source, temporary)
        if accept_loss:
            # The copy has the files of state that its start does without.
            Disk().make_directory(temporary / "config")
            kinds: dict[str, object] = {"kinds": dict.fromkeys(sorted(accept_loss), True)}
            configs.write(Disk(), temporary / "config", configs.ACCEPTED, kinds)
    return report


def check_empty(target: Path) -> None:
    """Raises: DueTimeError: the target is not empty."""
    if target.exists() and (not target.is_dir() or listed(target)):
        raise DueTimeError(f"{target} is not empty; nothing is overwritten")


@contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """A directory to fill, which gets the name `target` when it is whole and on disk. After a fault nothing is left.

    Raises:
        DueTimeError: another process is making it.
    """
    disk = Disk()
    temporary = target.with_name(f".{target.name}.new")
    disk.make_directory(temporary)
    held = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DueTimeError(f"another process is writing {target}") from None
        try:
            for path in listed(temporary):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            yield temporary
            for folder, _, _ in os.walk(temporary):
                disk.sync_directory(Path(folder))
            check_empty(target)
            disk.replace(temporary, target)
            disk.sync_directory(target.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    finally:
        os.close(held)


def source_files(root: Path) -> list[tuple[Path, Path]]:
    """The files to copy, in order: path, and path relative to the root."""
    places = {name: rank for rank, name in enumerate(_FIRST, -len(_FIRST))}
    places |= {name: rank for rank, name in enumerate(_LAST, 1)}
    tops = sorted(listed(root), key=lambda path: (places.get(path.name, 0), path.name))
    found = [(path, path.relative_to(root)) for top in tops if top.name not in _NOT_COPIED for path in _files(top)]
    return [(path, name) for path, name in found if not _is_engines(root, name)]


def _is_engines(root: Path, name: Path) -> bool:
    """Whether a file belongs to a broker's RocksDB or lite topics: an import has their content in others."""
    if name.parts[0] == "config":
        own = name.name.removesuffix(".bak") == LITE_OFFSETS and has_lite_offsets(root)
        return own or (len(name.parts) > 2 and is_rocks(root / name.parent))
    if name.parts[0] == "consumequeue" and (name.parts[1].startswith(LMQ_PREFIX) or _has_other_queues(root)):
        return True
    return is_rocks(root / name.parts[0]) and len(name.parts) == 2


def _has_other_queues(root: Path) -> bool:
    """Whether a broker has queues in RocksDB: those in files may be old, and a start rebuilds them from the log."""
    is_ours = (root / "config" / STORE).exists()
    return not is_ours and any(is_rocks(root / name) for name in QUEUE_FOLDERS)


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for inner in listed(path):
            yield from _files(inner)
    elif path.is_file():
        yield path


def used_bytes(files: list[tuple[Path, Path]]) -> int:
    """Bytes that files take on disk; holes do not count."""
    return sum(path.stat().st_blocks * 512 for path, _ in files if path.exists())


def check_room(target: Path, files: list[tuple[Path, Path]]) -> None:
    """Raises: DueTimeError: the files would not fit."""
    needed = used_bytes(files)
    free = Disk().space(target).free_bytes
    if needed > free:
        raise DueTimeError(f"{needed:,} bytes are to be copied, but {free:,} are free at {target.parent}")


def copy_files(disk: Disk, files: list[tuple[Path, Path]], target: Path, progress: Progress = no_progress) -> None:
    """Copies files, which are durable on return. Leaves out files deleted in the meantime, and the bytes after the
    records of the log's last file: a running store may be writing there."""
    done = 0
    newest = max((name for _, name in files if name.parts[0] == _LOG and name.name.isdigit()), default=None)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done)

    for path, name in files:
        disk.make_directory((target / name).parent)
        copy_file(disk, path, target / name, advance, records_bytes(path) if name == newest else None)


def records_bytes(path: Path) -> int | None:
    """The current end of the records in a file of the log; None: it does not fit into its log."""
    log = LogFiles(LocalFiles(path.parent.parent), _LOG)
    base = int(path.name)
    if base not in log.files:
        return None
    end = base
    for item in scan_whole(log, base):
        if item_end(item) <= base + log.segment_bytes:
            end = item_end(item)
    log.close()
    return end - base


def copy_file(disk: Disk, source: Path, target: Path, advance: Progress = no_progress, end: int | None = None) -> None:
    """Copies one file with its holes, its size and its time of change; everything from byte `end` on becomes a hole."""
    try:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    made = -1
    try:
        made = disk.open(target)
        found = os.fstat(fd)
        disk.truncate(made, found.st_size)
        for first, stop in data_ranges(fd, found.st_size if end is None else min(end, found.st_size)):
            for at in range(first, stop, _BYTES_AT_ONCE):
                data = os.pread(fd, min(_BYTES_AT_ONCE, stop - at), at)
                disk.write(made, data, at)
                advance(len(data))
        disk.sync(made)
    finally:
        os.close(fd)
        if made >= 0:
            disk.close(made)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def listed(directory: Path) -> list[Path]:
    """The entries of a directory; none if it does not exist."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """[first, stop) of each part of a file that is not a hole."""
    at = 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        hole = min(os.lseek(fd, at, os.SEEK_HOLE), size)
        if at < hole:
            yield at, hole
        at = hole
