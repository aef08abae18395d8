"""A lane's service as its store sees it: the schedulers that ask for its head, and the time of the last request. Pure.

    asked for    a pull waits for the lane's head, or a put to it is in progress, or the last one has just ended
    orphaned     none of these: its scheduler is dead or has lost it, and no other has noticed yet
    stand-in     a scheduler that was given the orphaned lane to serve without a lease

The metadata database keeps the leases. The store never reads them: each request says whether its scheduler has one.
Lanes are therefore served even while the lease holders are unknown, and a stand-in yields to a scheduler with a lease.
If two schedulers serve one lane, the watermark fences them; this module only decides which of them can save its work,
and for how long a lane was unserved.

All times are of the monotonic clock.
"""

import math
from dataclasses import dataclass

# A scheduler asks again within this time.
SERVED_WITHIN_MS = 15_000


@dataclass(eq=False, slots=True)
class WaitingPull:
    """A waiting pull."""

    scheduler: str
    # The lane's cursor.
    cursor: bytes
    has_lease: bool


class Attendance:
    """The attendance of one lane."""

    def __init__(self) -> None:
        self._asking: set[WaitingPull] = set()
        self._puts_count = 0
        # The last time its head was asked for or a put to it ended.
        self._attended_at_ms = -math.inf
        # The last scheduler to ask; the last with a lease, and its time; the stand-in, and its last time.
        self._last = ""
        self._holder, self._holder_at_ms = "", -math.inf
        self._stand_in, self._stand_in_at_ms = "", -math.inf
        self.paused = False

    @property
    def asking_count(self) -> int:
        return len(self._asking)

    def begin(self, asking: WaitingPull, now_ms: float) -> None:
        """Notes the start of a pull."""
        self._asking.add(asking)
        self._note(asking, now_ms)

    def end(self, asking: WaitingPull, appended: bytes, now_ms: float) -> None:
        """Notes the end of a pull; `appended`: the lane's cursor."""
        self._asking.discard(asking)
        self._note(asking, now_ms)
        # A pull that waited for entries after a put does not attend to the head.
        if asking.cursor <= appended:
            self._attended_at_ms = now_ms

    def _note(self, asking: WaitingPull, now_ms: float) -> None:
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

    def unasked_ms(self, appended: bytes, now_ms: float, since_ms: float) -> float:
        """Time without a request for the head and without a put, counted from `since_ms` if there never was any."""
        if self._puts_count or any(one.cursor <= appended for one in self._asking):
            return 0.0
        return max(0.0, now_ms - max(self._attended_at_ms, since_ms))

    def give(self, scheduler: str, now_ms: float) -> None:
        """Gives the lane to this scheduler to serve without a lease; this counts as asking."""
        self._stand_in, self._stand_in_at_ms = scheduler, now_ms
        self._attended_at_ms = now_ms

    def is_to_leave(self, scheduler: str, now_ms: float, within_ms: float) -> bool:
        """Whether a scheduler without a lease should leave the lane to another one that asked within `within_ms`. If
        not, this one becomes the stand-in."""
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
        """The scheduler that asked last, if one is asking or did so within the time; else empty."""
        waiting = next((one.scheduler for one in self._asking), "")
        return waiting or (self._last if now_ms - self._attended_at_ms <= within_ms else "")
