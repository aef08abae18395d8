"""Writes the `checkpoint` file; its format and its readers are the core's, and are re-exported here."""

from pathlib import Path

from duetime_shard.checkpoint import (
    FILE_BYTES,
    SLOT_BYTES,
    SLOTS_AT,
    TIMES,
    Checkpoint,
    damaged_slots,
    decode,
    read,
    read_all,
    read_slots,
    slots,
)

from duetime_store.files.disk import Disk

__all__ = ["Checkpoint", "damaged_slots", "decode", "discard", "read", "next_serial", "read_all", "read_slots", "write"]


def next_serial(path: Path) -> int:
    """The serial of the next checkpoint that `write` writes."""
    return next((serial + 1 for serial, _ in read_slots(path)), 1)


def write(disk: Disk, path: Path, checkpoint: Checkpoint) -> None:
    """Replaces the older checkpoint; durable on return."""
    known = slots(path.read_bytes() if path.exists() else b"")
    serial, slot = (known[0][0] + 1, 1 - known[0][1]) if known else (1, 0)
    data = checkpoint.encode(serial)
    if len(data) > SLOT_BYTES:
        slot = 0
    fd = disk.open(path)
    try:
        disk.truncate(fd, FILE_BYTES)
        disk.write(fd, data, SLOTS_AT[slot])
        disk.write(fd, TIMES.pack(*[checkpoint.stored_at_ms] * 3), 0)
        disk.sync(fd)
    finally:
        disk.close(fd)


def discard(disk: Disk, path: Path, serial: int) -> None:
    """Removes the checkpoint with this serial; durable on return."""
    for slot in [slot for known, slot, _ in slots(path.read_bytes()) if known == serial]:
        fd = disk.open(path)
        try:
            disk.write(fd, bytes(SLOT_BYTES), SLOTS_AT[slot])
            disk.sync(fd)
        finally:
            disk.close(fd)
