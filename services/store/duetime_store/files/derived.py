"""Files derived from the log: their seal, and how one is kept beside its checkpoint.

    4s magic, u32 CRC-32 of everything after it, u16 version, u16 0; then the content of the kind of file

Big-endian. A file beside a checkpoint is replaced before its checkpoint is written, and its predecessor stays as a
backup. So after any crash one of the two belongs to the checkpoint that a recovery trusts.
"""

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from struct import Struct
from typing import Protocol, TypeVar

from duetime_format.errors import DamagedBytes

from duetime_store.files.disk import Buffer, Disk

_MARK = Struct(">4sI")
_VERSION = Struct(">HH")
# Start of the content after the version.
SEAL_BYTES = _MARK.size + _VERSION.size


class AtPosition(Protocol):
    """A file's content, at a position of the log."""

    @property
    def position(self) -> int: ...


Saved = TypeVar("Saved", bound=AtPosition)


def sealed(magic: bytes, version: int, parts: Iterable[bytes]) -> bytes:
    body = b"".join([_VERSION.pack(version, 0), *parts])
    return _MARK.pack(magic, zlib.crc32(body)) + body


def is_intact(data: Buffer, magic: bytes) -> bool:
    """Whether it is sealed with this magic, regardless of its version."""
    if len(data) < SEAL_BYTES:
        return False
    found, crc = _MARK.unpack_from(data)
    return bool(found == magic and zlib.crc32(memoryview(data)[_MARK.size :]) == crc)


def check(data: Buffer, magic: bytes, version: int) -> None:
    """Raises: DamagedBytes: it is not intact, or of another version."""
    if not is_intact(data, magic):
        raise DamagedBytes("its CRC does not match")
    check_version(data, version)


def check_version(data: Buffer, version: int) -> None:
    """Raises: DamagedBytes: it is intact, and of another version."""
    found, _ = _VERSION.unpack_from(data, _MARK.size)
    if found != version:
        raise DamagedBytes(f"its version is {found}, {version} is known")


def read(
    folder: Path, names: Iterable[str], decode: Callable[[bytes], Saved], position: int
) -> tuple[Saved | None, str]:
    """(the content of the file of this position, the reason for having none). An unreadable file counts as missing.

    `names`: of the file, then of its backup. `decode` may raise Damaged.
    """
    reasons = []
    for name in names:
        try:
            saved = decode((folder / name).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, DamagedBytes) as error:
            reasons.append(f"{name}: {error}")
            continue
        if saved.position == position:
            return saved, ""
        reasons.append(f"{name} has position {saved.position}")
    return None, "; ".join(reasons) or "there is none"


def write(disk: Disk, folder: Path, name: str, data: bytes, *, backup: str = "") -> None:
    """Replaces the file, keeping it as `backup` if given; durable on return."""
    path, temporary = folder / name, folder / f"{name}.tmp"
    disk.write_file(temporary, data, durable=True)
    if backup and path.exists():
        disk.replace(path, folder / backup)
    disk.replace(temporary, path)
    disk.sync_directory(folder)
