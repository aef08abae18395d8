"""Seats: streams, jobs and similar objects held by callers for a while, with a share for each caller."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Gauge

from duetime_core.errors import Overloaded
from duetime_core.limits.shares import Shares


class Seats:
    """A number of seats: at most half of them for one caller, the last tenth for callers with less than a hundredth.

    A caller is a user, or a host if users are off: see `duetime_core.access.callers.sharer`.
    """

    def __init__(
        self,
        limit: int,
        what: str,
        *,
        reason: str | None = None,
        error: type[Overloaded] = Overloaded,
        share: int | None = None,
        used: Gauge | None = None,
        most: Gauge | None = None,
    ) -> None:
        """`what`: with a verb, as in `subscriptions are open`. `reason`, `error`: of rejections. `share`: one caller's,
        if it is not half of the limit. `used`, `most`: metrics."""
        self._shares: Shares[str] = Shares(limit, share)
        self._what = what
        self._reason = reason
        self._error = error
        self._metric = used
        if most is not None:
            most.set(limit)

    @property
    def used(self) -> int:
        """Number of seats taken."""
        return self._shares.used

    def held(self, sharer: str) -> int:
        """Seats of one caller."""
        return self._shares.held(sharer)

    def bound(self, limit: int) -> None:
        """Sets the limit, also below the number of taken seats."""
        self._shares.bound(limit)

    def take(self, sharer: str, count: int = 1) -> None:
        """Takes seats, until `give`.

        Raises:
            Overloaded: none is left, or none for this caller.
        """
        self.check(sharer, count)
        self.hold(sharer, count)

    def check(self, sharer: str, count: int = 1) -> None:
        """As `take`, but takes none."""
        shares = self._shares
        if not shares.may_take(sharer, count):
            text = f"{shares.used} {self._what}; the limit is {shares.limit}; {shares.held(sharer)} belong to {sharer}"
            raise self._error(f"{text}; its limit is {shares.share}", reason=self._reason)

    def hold(self, sharer: str, count: int = 1) -> None:
        """Counts seats already held by the caller, also beyond the limit."""
        self._shares.take(sharer, count)
        self._show()

    def give(self, sharer: str, count: int = 1) -> None:
        """Returns seats."""
        self._shares.give(sharer, count)
        self._show()

    @contextmanager
    def seat(self, sharer: str) -> Iterator[None]:
        """A seat for the duration of a block. Raises: Overloaded."""
        self.take(sharer)
        try:
            yield
        finally:
            self.give(sharer)

    def _show(self) -> None:
        if self._metric is not None:
            self._metric.set(self._shares.used)
