"""The file `duetimeRaft`: the state of a copy that its log does not hold, and the point before its first entry.

    slot 0, slot 1, 4,096 bytes each:    | u32 CRC-32 | u32 length | JSON |

A write replaces the older slot and is durable on return; the valid slot with the higher serial counts. The write of a
torn slot never returned, so no vote depended on it.
"""

import json
import os
import struct
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Any

from duetime_core.errors import StartupError
from duetime_format.marks import OWN

from duetime_store.copies.entries import Entry
from duetime_store.copies.roster import Roster
from duetime_store.files.disk import Disk

FILE = "duetimeRaft"
_SLOT_BYTES = 4_096
_HEAD = Struct(">II")
NO_CUT = -1


@dataclass(frozen=True, slots=True)
class RaftState:
    """A copy's identity, its vote, and the point before its first entry: index, term, end, store time and members.

    `commit` may be too low, but not below an applied change of members. `cut`, unless -1, is a position: everything
    from there on was overruled and is being zeroed. Positions are those of the commit log.
    """

    group: int
    id: int
    roster: Roster
    term: int = 0
    vote: int = 0
    commit: int = 0
    cut: int = NO_CUT
    index: int = 0
    entry_term: int = 0
    position: int = 0
    stored_at_ms: int = 0
    # Whether the directory is incomplete: it is being taken from another member (taking.py).
    is_taking: bool = False
    serial: int = 0
    # The number by the settings, if the copy has rejoined under another one; 0: it is `id`.
    configured: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """The group, and the number by the settings."""
        return self.group, self.configured or self.id

    @property
    def is_cutting(self) -> bool:
        return self.cut != NO_CUT

    @property
    def base(self) -> Entry:
        """The entry before the first one: it stands for the log up to there."""
        return Entry(self.index, self.entry_term, OWN, self.position, self.position, self.stored_at_ms)

    def after(self, base: Entry) -> "RaftState":
        """The state of a copy whose first entry follows this committed one."""
        return replace(
            self,
            commit=max(self.commit, base.index),
            index=base.index,
            entry_term=base.term,
            position=base.end,
            stored_at_ms=base.stored_at_ms,
        )


def _decode(slot: bytes) -> RaftState | None:
    try:
        crc, length = _HEAD.unpack_from(slot)
        text = slot[_HEAD.size : _HEAD.size + length]
        if len(text) != length or not length or zlib.crc32(text) != crc:
            return None
        fields: dict[str, Any] = json.loads(text)
        return RaftState(**{**fields, "roster": Roster.of_json(fields["roster"])})
    except (struct.error, ValueError, TypeError, KeyError, AttributeError):
        return None


def _slots(fd: int) -> list[RaftState | None]:
    return [_decode(os.pread(fd, _SLOT_BYTES, number * _SLOT_BYTES)) for number in range(2)]


def has_state(directory: Path) -> bool:
    """Whether a copy has ever had a state here: a file whose first write never returned is none."""
    try:
        fd = os.open(directory / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return os.fstat(fd).st_size > _SLOT_BYTES or any(_slots(fd))
    finally:
        os.close(fd)


class StateFile:
    """The file, open; `state` is its content."""

    def __init__(self, disk: Disk, directory: Path, new: RaftState | None = None) -> None:
        """Opens the file; with `new`, creates it unless a state exists, durable on return.

        Raises:
            StartupError: no slot is valid, or the state is another group's or copy's than `new`.
        """
        self._disk, path = disk, directory / FILE
        if not path.exists() and new is None:
            raise StartupError(f"{path} is missing: the directory is no copy of a shard")
        self._fd = disk.open(path)
        found = max((slot for slot in _slots(self._fd) if slot), key=lambda slot: slot.serial, default=None)
        # A file without a slot is new only if its first write never returned: its vote is unused.
        if found is None and (new is None or os.fstat(self._fd).st_size > _SLOT_BYTES):
            self.close()
            raise StartupError(f"{path} is damaged: no slot is valid. Replace this copy: its votes are not known")
        if found and new and found.place != new.place:
            self.close()
            theirs, ours = (f"copy {number} of group {group:x}" for group, number in (found.place, new.place))
            raise StartupError(f"{directory} belongs to {theirs}, not to {ours}")
        self.state = found or replace(new or RaftState(0, 0, Roster(())), serial=0)
        if found is None:
            self.write(self.state)
        # A killed process may have left its last write in the page cache alone.
        disk.sync(self._fd)
        disk.sync_directory(directory)

    def write(self, state: RaftState) -> None:
        """Replaces the state; durable on return. Blocking."""
        state = replace(state, serial=self.state.serial + 1)
        text = json.dumps(asdict(state), separators=(",", ":")).encode()
        data = (_HEAD.pack(zlib.crc32(text), len(text)) + text).ljust(_SLOT_BYTES, b"\0")
        # The first state goes to the first slot: a longer file had a state.
        self._disk.write(self._fd, data, (state.serial - 1) % 2 * _SLOT_BYTES)
        self._disk.sync(self._fd)
        self.state = state

    def write_both(self, state: RaftState) -> None:
        """As `write`, in both slots: the damage of one does not bring back the state before."""
        self.write(state)
        self.write(state)

    def close(self) -> None:
        self._disk.close(self._fd)


def refuse_copy(root: Path) -> None:
    """Raises: StartupError: the directory is a copy's, and must not be served alone: the others would overrule it."""
    if (root / FILE).exists():
        raise StartupError(
            f"{root} is the copy of a shard: set DUETIME_STORE_COPIES as before; to serve it alone, and never with the "
            f"other copies again, delete {FILE}"
        )
