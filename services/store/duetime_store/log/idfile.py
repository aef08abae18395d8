"""The window of ids as a file, in blocks: each checkpoint adds the ids since its predecessor.

    mark     4s "DTID", u32 CRC-32 of everything after it in the block
    head     u16 version, u16 0, u32 ids, u32 grains, i64 start, i64 stop: the block has the ids of the records at log
             positions from start on, before stop
    grain    i64 time of its last id, u32 count of ids
    ids      u32 hash of each; then i64 position of each

Big-endian. A block begins where its predecessor stops. Positions ascend, so the file serves every checkpoint up to its
last stop; later ids are read from the log. The first block of a process replaces the file, and so does a block once the
file has twice the ids of the window. A torn block ends the file.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np
from duetime_format.errors import DamagedBytes

from duetime_store.files import derived
from duetime_store.files.disk import Disk
from duetime_store.log.recent import Ids

FILE = "duetimeIds"
MAGIC, VERSION = b"DTID", 2
_HEAD = Struct(">IIqq")
_GRAIN = Struct(">qI")
_ID_BYTES = 12


class Block(NamedTuple):
    """The ids of the records at log positions [start, stop)."""

    ids: Ids
    start: int
    stop: int


def encode(block: Block) -> bytes:
    ids = block.ids
    parts = [_HEAD.pack(len(ids.hashes), len(ids.grains), block.start, block.stop)]
    parts += [_GRAIN.pack(*grain) for grain in ids.grains]
    parts += [ids.hashes.astype(">u4").tobytes(), ids.positions.astype(">i8").tobytes()]
    return derived.sealed(MAGIC, VERSION, parts)


def decode(data: bytes) -> Iterator[Block]:
    """Raises: DamagedBytes: at the first block that is not whole."""
    at = 0
    while at < len(data):
        block, at = _block_at(data, at)
        yield block


def _block_at(data: bytes, at: int) -> tuple[Block, int]:
    """The block at an index, and the index after it."""
    try:
        id_count, grain_count, start, stop = _HEAD.unpack_from(data, at + derived.SEAL_BYTES)
    except struct.error as error:
        raise DamagedBytes(f"{len(data) - at} bytes at {at} are not a block of ids") from error
    grains_at = at + derived.SEAL_BYTES + _HEAD.size
    ids_at = grains_at + grain_count * _GRAIN.size
    end = ids_at + id_count * _ID_BYTES
    block = memoryview(data)[at:end]
    if end > len(data) or not derived.is_intact(block, MAGIC):
        raise DamagedBytes(f"the block at {at} does not match its CRC")
    derived.check_version(block, VERSION)
    grains = [_GRAIN.unpack_from(data, grains_at + number * _GRAIN.size) for number in range(grain_count)]
    hashes = np.frombuffer(data, ">u4", id_count, ids_at).astype(np.int64)
    positions = np.frombuffer(data, ">i8", id_count, ids_at + 4 * id_count).astype(np.int64)
    return Block(Ids(hashes, positions, grains), start, stop), end


def read(folder: Path, position: int) -> tuple[Ids | None, str]:
    """(the ids of the records before a log position, the reason for having none)."""
    blocks: list[Block] = []
    reason = ""
    try:
        for block in decode((folder / FILE).read_bytes()):
            if blocks and block.start != blocks[-1].stop:
                raise DamagedBytes(
                    f"a block begins at position {block.start}, the one before stops at {blocks[-1].stop}"
                )
            blocks.append(block)
    except FileNotFoundError:
        return None, "there is no file of ids"
    except (OSError, DamagedBytes) as error:
        reason = f"{FILE}: {error}"
    if not blocks or blocks[-1].stop < position:
        stop = blocks[-1].stop if blocks else 0
        return None, reason or f"{FILE} has the ids of records before position {stop} only"
    return _before(blocks, position), ""


def _before(blocks: list[Block], position: int) -> Ids:
    positions = np.concatenate([block.ids.positions for block in blocks])
    left = count = int(np.searchsorted(positions, position))
    grains = []
    for block in blocks:
        for last_ms, size in block.ids.grains:
            if left > 0:
                grains.append((last_ms, min(size, left)))
            left -= size
    return Ids(np.concatenate([block.ids.hashes for block in blocks])[:count], positions[:count], grains)


def replace(disk: Disk, folder: Path, data: bytes) -> None:
    """Replaces the file by one block; durable on return."""
    derived.write(disk, folder, FILE, data)


def append(disk: Disk, folder: Path, data: bytes, at: int) -> None:
    """Writes a block at the end of the file, which is `at` bytes long; durable on return."""
    fd = disk.open(folder / FILE)
    try:
        disk.write(fd, data, at)
        disk.sync(fd)
    finally:
        disk.close(fd)
