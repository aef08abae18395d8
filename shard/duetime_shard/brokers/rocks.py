"""Reads the RocksDB folders of a broker, never writing there.

RocksDB writes files of its own even into a folder that it opens to read. So it opens a temporary folder of links to the
files. The log of unflushed writes is replayed in memory. If the broker stopped cleanly, that log has to be whole. A
kill leaves it whole too; after a power cut it may be cut, and the last whole write counts: `Rocks.cut` says so.

The library is the extra `rocketmq`: it is needed only for directories that keep state in RocksDB.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Any

from duetime_core.errors import StartupError
from duetime_format.errors import DamagedBytes

_MARK = "CURRENT"
_TABLE, _WRITES, _MANIFEST = re.compile(r"\d+\.(sst|blob)"), re.compile(r"\d+\.log"), re.compile(r"MANIFEST-\d+")
# Files that RocksDB creates, or locks, when it opens a folder.
_NOT_LINKED = re.compile(r"LOCK|LOG(\..*)?|rocksdict-config\.json")
# Form of a manifest: blocks of fragments, each with CRC, length and type; fragments of reused files name their file.
_BLOCK_BYTES = 32_768
_FRAGMENT = Struct("<IHB")
_REUSED_TYPES, _REUSED_BYTES = range(5, 9), 4
# Types of the first and of inner fragments: another one follows.
_OPEN_TYPES = frozenset((2, 3, 6, 7))
_COUNT = "rocksdb.estimate-num-keys"
# A broker in use deletes files while they are linked.
_ATTEMPTS = 3


class EngineMissing(StartupError):
    """The library is not installed."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"{folder} is a RocksDB, and rocksdict is not installed to read it: pip install 'duetime-server[rocketmq]'"
        )


def is_rocks(folder: Path) -> bool:
    return (folder / _MARK).is_file()


def is_empty(folder: Path) -> bool:
    """Whether nothing was ever written into it: a broker since 5.4 creates one that it may not use."""
    names = os.listdir(folder)
    return not any(
        _TABLE.fullmatch(name) or (_WRITES.fullmatch(name) and (folder / name).stat().st_size) for name in names
    )


class Rocks:
    """An open RocksDB with all its column families."""

    def __init__(self, database: Any, families: list[str], name: str, cut: str = "") -> None:
        """`cut`: the reason if the last writes are missing."""
        self.families = families
        self.cut = cut
        self._database = database
        self._name = name

    def items(self, family: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a family from a key on, in order; none without such a family. Raises: DamagedBytes."""
        if family not in self.families:
            return
        try:
            found = self._database.get_column_family(family).iter()
            found.seek(start) if start else found.seek_to_first()
            while found.valid():
                yield found.key(), found.value()
                found.next()
            found.status()
        except Exception as error:
            raise _damaged(self._name, error) from None

    def count(self, family: str) -> int:
        """The number of entries, as RocksDB estimates it; at least 1 if there is one."""
        if next(self.items(family), None) is None:
            return 0
        return max(int(self._database.get_column_family(family).property_int_value(_COUNT) or 0), 1)

    def last(self, family: str, until: bytes) -> tuple[bytes, bytes] | None:
        """The last key up to `until`, and its value. Raises: DamagedBytes."""
        try:
            found = self._database.get_column_family(family).iter()
            found.seek_for_prev(until)
            if found.valid():
                return found.key(), found.value()
            found.status()
        except Exception as error:
            raise _damaged(self._name, error) from None
        return None


@contextmanager
def opened(root: Path, name: str) -> Iterator[Rocks]:
    """The RocksDB in the folder `name` of a store directory.

    Raises:
        EngineMissing: the library is not installed.
        DamagedBytes: it can't be read, or lacks a part of its content.
    """
    is_clean, cut = not (root / "abort").exists(), ""
    try:
        database, families, links = _open(root / name, name, is_whole=True)
    except DamagedBytes as error:
        if is_clean:
            raise
        database, families, links = _open(root / name, name, is_whole=False)
        cut = error.text
    try:
        if is_clean:
            _check_tables(database, links, name)
        yield Rocks(database, families, name, cut)
    finally:
        database.close()
        shutil.rmtree(links, ignore_errors=True)


def _open(folder: Path, name: str, *, is_whole: bool) -> tuple[Any, list[str], Path]:
    try:
        from rocksdict import AccessType, DBRecoveryMode, Options, Rdict
    except ImportError:
        raise EngineMissing(name) from None
    for attempt in range(1, _ATTEMPTS + 1):
        links = Path(tempfile.mkdtemp(prefix="duetime-rocks-"))
        try:
            _link(folder, links, name)
            families = Rdict.list_cf(str(links))
            options = Options(raw_mode=True)
            if is_whole:
                options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
            each = {family: Options(raw_mode=True) for family in families}
            how = AccessType.read_only(error_if_log_file_exist=False)
            return Rdict(str(links), options=options, column_families=each, access_type=how), families, links
        except Exception as error:
            shutil.rmtree(links, ignore_errors=True)
            if attempt == _ATTEMPTS or isinstance(error, DamagedBytes):
                raise _damaged(name, error) from None
    raise AssertionError("the last attempt returns or raises")


def _link(folder: Path, links: Path, name: str) -> None:
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise DamagedBytes(f"{name} can't be read: {error.strerror}") from None
    for one in names:
        if _NOT_LINKED.fullmatch(one):
            continue
        os.symlink((folder / one).resolve(), links / one)
        if _MANIFEST.fullmatch(one):
            _check_manifest(folder / one, f"{name}/{one}")


def _check_manifest(path: Path, name: str) -> None:
    """RocksDB reads a cut manifest as one with fewer tables. Raises: DamagedBytes."""
    data, at, is_open = path.read_bytes(), 0, False
    while at < len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _FRAGMENT.size:
            at += left
            continue
        if len(data) - at < _FRAGMENT.size:
            raise DamagedBytes(f"{name} is cut at byte {len(data)}")
        _, length, kind = _FRAGMENT.unpack_from(data, at)
        if not kind and not length:
            break
        at += _FRAGMENT.size + length + (_REUSED_BYTES if kind in _REUSED_TYPES else 0)
        is_open = kind in _OPEN_TYPES
        if at > len(data):
            raise DamagedBytes(f"{name} is cut at byte {len(data)}")
    if is_open:
        raise DamagedBytes(f"{name} is cut at byte {len(data)}")


def _check_tables(database: Any, links: Path, name: str) -> None:
    """Raises: DamagedBytes: the manifest lacks tables, as an older one does."""
    known = {one["name"].lstrip("/") for one in database.live_files()}
    others = sorted(one for one in os.listdir(links) if one.endswith(".sst") and one not in known)
    if others and known:
        newer = [one for one in others if one > max(known)]
        if newer:
            raise DamagedBytes(f"{name}: its manifest does not name {', '.join(newer)}")
    elif others:
        raise DamagedBytes(f"{name}: its manifest does not name {', '.join(others)}")


def _damaged(name: str, error: Exception) -> DamagedBytes:
    if isinstance(error, DamagedBytes):
        return error
    text = " ".join(str(error).split())
    return DamagedBytes(f"{name} can't be read: {text[:200]}")
