"""The writes of a copy, in their order; each ends with the flush of its file.

One entry a flush: an intact mark thus proves that all entries before it were on the disk (scanning.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from duetime_store.copies.entries import Entry
from duetime_store.copies.roster import Roster
from duetime_store.copies.statefile import NO_CUT, StateFile
from duetime_store.files.disk import Buffer
from duetime_store.log.commitlog import CommitLog


@dataclass(frozen=True, slots=True)
class Sending:
    """A message of the core to the member `to`, with the bytes of its entry."""

    to: int
    message: bytes
    payload: bytes = b""


@dataclass(slots=True)
class Write:
    """One step: blocking `run`, on any thread; then the works up to `number` are flushed, and `sendings` may leave."""

    run: Callable[[], None] | None = None
    number: int = 0
    sendings: list[Sending] = field(default_factory=list)
    # The last entry on the disk after it.
    entry: Entry | None = None
    # Position before which no start needs the log after it.
    begin: int | None = None
    # Whether nothing else is sent or applied before it.
    is_awaited: bool = False


class Writer:
    """Writes entries, cuts and votes to the files of one copy."""

    def __init__(self, log: CommitLog, file: StateFile) -> None:
        self._log, self._file = log, file

    def vote(self, term: int, vote: int, commit: int) -> None:
        """Makes a term and a vote durable. Blocking."""
        self._file.write(replace(self._file.state, term=term, vote=vote, commit=commit))

    def begin_after(self, base: Entry, roster: Roster) -> None:
        """Makes an applied entry the base of the log, with the members as of it, durably. Blocking."""
        self._file.write_both(replace(self._file.state.after(base), roster=roster))

    def cut(self, position: int) -> None:
        """Zeroes an overruled tail, durably. Blocking.

        The intention is durable before: a crash in the middle would otherwise look like damage before intact marks.
        """
        self._file.write(replace(self._file.state, cut=position))
        self.finish_cut()

    def finish_cut(self) -> None:
        """Does the rest of a cut that a crash interrupted. Blocking."""
        self._log.take_back(self._file.state.cut)
        self._file.write(replace(self._file.state, cut=NO_CUT))

    def append(self, entry: Entry, data: bytes) -> None:
        """Writes an entry behind the log's end; durable on return. Blocking."""
        if not entry.position <= self._log.end < entry.end:
            # A write that found no room may have written a part.
            raise ValueError(f"entry {entry.index} begins at {entry.position}, the log ends at {self._log.end}")
        self._log.end = entry.position
        self.write(entry.position, data)

    def write(self, position: int, data: bytes) -> None:
        """Writes bytes, which may lie in several segments; durable on return. Blocking."""
        size, view = self._log.segment_bytes, memoryview(data)
        runs: list[tuple[int, list[Buffer]]] = []
        while view:
            part = view[: size - position % size]
            runs.append((position, [part]))
            position, view = position + len(part), view[len(part) :]
        for segment in self._log.write(runs):
            segment.flush()
