"""Whether the shard takes records now, and the reasons if it does not.

    state     enters it                               sends         puts to lanes   leaves it
    open                                              taken         taken
    full      no room for a write, or the disk is     DISK_FULL     taken           there is room again
              used above `disk_used_max`
    stalled   a write, flush or commit takes longer   FLUSH_STALLED taken, and      it ends
              than `flush_stall_ms`                                 wait with it
    failed    any other failed write, and every       STORE_READ_ONLY               a restart
              failed flush

Several states can hold at once; the last of them in the table counts. A full shard is healthy: it serves reads and
restores. A failed one is not, and neither is one whose disk has stalled (`serving`). When the disk is full, puts to
lanes get their space from the reserve (`Reserve`).
"""

import asyncio
import errno
from collections import deque

from duetime_core.clock import Clock
from duetime_core.errors import DiskFull, DueTimeError, ReadOnly, Stalled

# Nothing already on disk depends on the failed write: it can be taken back, and tried again later.
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
# The process or the machine has no descriptor left; the disk is fine.
NO_FILES = frozenset((errno.EMFILE, errno.ENFILE))


class WriteGate:
    """See the module. Belongs to the event loop's thread."""

    def __init__(self, clock: Clock, stall_ms: int) -> None:
        self._clock = clock
        self._stall_ms = stall_ms
        self._began_ms: deque[float] = deque()
        self._proposed_ms: deque[float] = deque()
        # The reason, worded for the error; empty: the shard is not in this state.
        self.failed = ""
        self.full = ""
        # Set with every change of these two.
        self.changed = asyncio.Event()

    def fill(self, why: str) -> None:
        """Marks the disk as full, for this reason; an empty `why`: there is room again."""
        if bool(why) != bool(self.full):
            self.changed.set()
        self.full = why

    def fail(self, why: str) -> None:
        self.failed = why
        self.changed.set()

    def begin(self) -> None:
        """Notes work given to the disk, which does it in this order."""
        self._began_ms.append(self._clock.monotonic_ms())

    def end(self) -> None:
        """Notes that the oldest work is done."""
        self._began_ms.popleft()

    def propose(self) -> None:
        """Notes a group whose commit takes time (writing/committing.py)."""
        self._proposed_ms.append(self._clock.monotonic_ms())

    def committed(self) -> None:
        """Notes that the oldest such group is committed."""
        self._proposed_ms.popleft()

    @property
    def is_idle(self) -> bool:
        """Whether the disk has no work."""
        return not self._began_ms

    @property
    def stalled_ms(self) -> float:
        """Time since the disk last answered, once that exceeds the limit; else 0."""
        return self._over_limit_ms(self._began_ms)

    def _over_limit_ms(self, began_ms: deque[float]) -> float:
        """The time since the oldest began, once that exceeds the limit; else 0."""
        since_ms = self._clock.monotonic_ms() - began_ms[0] if began_ms else 0.0
        return since_ms if since_ms >= self._stall_ms else 0.0

    def refusals(self) -> list[DueTimeError]:
        """The errors with which sends are rejected now; the first counts."""
        found: list[DueTimeError] = []
        if self.failed:
            found.append(ReadOnly(f"the shard accepts no writes:  {self.failed}"))
        if stalled_ms := self.stalled_ms:
            limit = f"sends are accepted while it answers within {self._stall_ms} ms"
            found.append(Stalled(f"the disk has not answered for {stalled_ms:.0f} ms; {limit}"))
        elif stalled_ms := self._over_limit_ms(self._proposed_ms):
            limit = f"sends are accepted while commits take less than {self._stall_ms} ms"
            found.append(Stalled(f"the log has not been committed for {stalled_ms:.0f} ms; {limit}"))
        if self.full:
            found.append(DiskFull(self.full))
        return found

    def check_send(self) -> None:
        """Raises: DiskFull, Stalled, ReadOnly."""
        if self.failed or self.full or self._began_ms or self._proposed_ms:
            for refusal in self.refusals():
                raise refusal

    @property
    def serving(self) -> bool:
        """Whether health reports SERVING."""
        return not self.failed and not self.stalled_ms

    def check_write(self) -> None:
        """For writes that free space or restore messages. Raises: ReadOnly."""
        if self.failed:
            raise ReadOnly(f"the shard accepts no writes:  {self.failed}")
