"""Who serves a lane, as its store sees it: which schedulers ask for its head, and when the last of them did. Pure.

    asked for    a pull waits for the lane's head, or a put to it is under way, or the last of them ended a moment ago
    orphaned     none of these: its scheduler is dead, or has lost it, and nobody else has noticed yet
    stand-in     a scheduler that was given the orphaned lane to serve without a lease

Leases are the metadata database's. The store never reads them: a scheduler that asks says whether it has one. So lanes
are served while nobody can tell whose they are, and a stand-in gives way to whoever can. What two serve at once is
fenced by the watermark; all that is decided here is who is spared the work, and how long nobody does it.

All times are of the monotonic clock.
"""

import math
from dataclasses import dataclass

# A scheduler asks anew at least so often.
SERVED_WITHIN_MS = 15_000


@dataclass(eq=False, slots=True)
class Asking:
    """A pull that waits."""

    scheduler: str
    cursor: int
    has_lease: bool


class Attendance:
    """Of one lane."""

    def __init__(self) -> None:
        self._asking: set[Asking] = set()
        self._puts_count = 0
        # When its head was last asked for or put.
        self._attended_at_ms = -math.inf
        # The last to ask, the last that asked with a lease and when, and who stands in and last asked when.
        self._last = ""
        self._holder, self._holder_at_ms = "", -math.inf
        self._stand_in, self._stand_in_at_ms = "", -math.inf
        self.paused = False

    @property
    def asking_count(self) -> int:
        return len(self._asking)

    def begin(self, asking: Asking, now_ms: float) -> None:
        """A pull begins."""
        self._asking.add(asking)
        self._note(asking, now_ms)

    def end(self, asking: Asking, appended: int, now_ms: float) -> None:
        """A pull has ended; `appended`: the lane's."""
        self._asking.discard(asking)
        self._note(asking, now_ms)
        # One that waited for what comes behind a put says nothing of the head.
        if asking.cursor <= appended:
            self._attended_at_ms = now_ms

    def _note(self, asking: Asking, now_ms: float) -> None:
        self._last = asking.scheduler
        if asking.has_lease:
            self._holder, self._holder_at_ms = asking.scheduler, now_ms
        if asking.scheduler == self._stand_in:
            self._stand_in_at_ms = now_ms

    def begin_put(self) -> None:
        self._puts_count += 1

    def end_put(self, now_ms: float) -> None:
        self._puts_count -= 1
        self._attended_at_ms = now_ms

    def unasked_ms(self, appended: int, now_ms: float, since_ms: float) -> float:
        """How long nobody has asked for the head, nor put it; since `since_ms` where nobody ever did."""
        if self._puts_count or any(one.cursor <= appended for one in self._asking):
            return 0.0
        return max(0.0, now_ms - max(self._attended_at_ms, since_ms))

    def give(self, scheduler: str, now_ms: float) -> None:
        """The lane is this scheduler's to serve without a lease, and counts as asked for."""
        self._stand_in, self._stand_in_at_ms = scheduler, now_ms
        self._attended_at_ms = now_ms

    def is_to_leave(self, scheduler: str, now_ms: float, within_ms: float) -> bool:
        """Whether a scheduler without a lease is to leave the lane to another one, who asked within `within_ms`. If
        not, it is the one that stands in."""
        if self._asks(self._holder, self._holder_at_ms, scheduler, now_ms - within_ms, with_lease=True):
            return True
        if self._asks(self._stand_in, self._stand_in_at_ms, scheduler, now_ms - within_ms, with_lease=False):
            return True
        self._stand_in, self._stand_in_at_ms = scheduler, now_ms
        return False

    def _asks(self, who: str, at_ms: float, but: str, since_ms: float, *, with_lease: bool) -> bool:
        if who in ("", but):
            return False
        waits = any(one.scheduler == who and one.has_lease >= with_lease for one in self._asking)
        return waits or at_ms >= since_ms

    def served_by(self, now_ms: float, within_ms: float) -> str:
        """The scheduler that asked last, if one asks or did within the time; else empty."""
        waiting = next((one.scheduler for one in self._asking), "")
        return waiting or (self._last if now_ms - self._attended_at_ms <= within_ms else "")
