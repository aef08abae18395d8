"""Files that are derived from the log: how they are sealed, and how one is kept beside its checkpoint.

    4s magic, u32 CRC-32 of all that follows it, u16 version, u16 0; then what the kind of file has

Big-endian. A file beside a checkpoint is replaced before its checkpoint is written, and the one before it stays as a
backup: so one of the two belongs to the checkpoint that a recovery trusts, wherever a crash has struck.
"""

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from struct import Struct
from typing import Protocol, TypeVar

from duetime_format.errors import Damaged

from duetime_store.files.disk import Buffer, Disk

_MARK = Struct(">4sI")
_VERSION = Struct(">HH")
# Where what follows the version begins.
SEAL_BYTES = _MARK.size + _VERSION.size


class AtPosition(Protocol):
    """What a file has, as it was at a position of the log."""

    @property
    def position(self) -> int: ...


Saved = TypeVar("Saved", bound=AtPosition)


def sealed(magic: bytes, version: int, parts: Iterable[bytes]) -> bytes:
    body = b"".join([_VERSION.pack(version, 0), *parts])
    return _MARK.pack(magic, zlib.crc32(body)) + body


def is_intact(data: Buffer, magic: bytes) -> bool:
    """Whether it is sealed with this magic, whatever its version."""
    if len(data) < SEAL_BYTES:
        return False
    found, crc = _MARK.unpack_from(data)
    return bool(found == magic and zlib.crc32(memoryview(data)[_MARK.size :]) == crc)


def check(data: Buffer, magic: bytes, version: int) -> None:
    """Raises: Damaged: it is not intact, or of another version."""
    if not is_intact(data, magic):
        raise Damaged("its CRC does not match")
    check_version(data, version)


def check_version(data: Buffer, version: int) -> None:
    """Raises: Damaged: it is intact, and of another version."""
    found, _ = _VERSION.unpack_from(data, _MARK.size)
    if found != version:
        raise Damaged(f"its version is {found}, {version} is known")


def read(
    folder: Path, names: Iterable[str], decode: Callable[[bytes], Saved], position: int
) -> tuple[Saved | None, str]:
    """(what the file of this position has, why there is none). A file that can't be read is like one that is not there.

    `names`: of the file, then of its backup. `decode` may raise Damaged.
    """
    reasons = []
    for name in names:
        try:
            saved = decode((folder / name).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, Damaged) as error:
            reasons.append(f"{name}: {error}")
            continue
        if saved.position == position:
            return saved, ""
        reasons.append(f"{name} is of position {saved.position}")
    return None, "; ".join(reasons) or "there is none"


def write(disk: Disk, folder: Path, name: str, data: bytes, *, backup: str = "") -> None:
    """Replaces the file, which stays as `backup` if that is given; durable on return."""
    path, temporary = folder / name, folder / f"{name}.tmp"
    disk.write_file(temporary, data, durable=True)
    if backup and path.exists():
        disk.replace(path, folder / backup)
    disk.replace(temporary, path)
    disk.sync_directory(folder)
