"""Shares of a group's rate: each shard has an equal part, less lent parts, and borrowed ones.

Pure: times are whole milliseconds of the shard's monotonic clock. No clocks are compared:

    borrower   T   answers a gateway, which notes T
    lender         lends parts for TERM_MS from now: later than T
    borrower       has the parts until T + TERM_MS: before the lender has them again

So all shares together are never above the rate, whichever call is late, lost or repeated. A loan is not taken back: it
ends. A store that starts may have forgotten loans, so all its parts are lent, to nobody, for the first term.
"""

from collections.abc import Iterator

from duetime_format.limits import RATE_PARTS

TERM_MS = 2_000
# Borrower of all parts at a start.
_NOBODY = -1


class RateShare:
    """The parts of one shard of the rate of one group in one topic."""

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        # End and parts of each loan, by borrower, which uses one at a time.
        self._loans: dict[int, list[tuple[int, int]]] = {_NOBODY: [(started_ms + TERM_MS + 1, RATE_PARTS)]}
        # End and parts of the latest loan of each lender.
        self._borrowed: dict[int, tuple[int, int]] = {}

    def lend(self, borrower: int, parts: int, now_ms: int) -> int:
        """Lends up to `parts` for a term. Returns the number that the borrower may have."""
        self._forget(now_ms)
        others = sum(_most(loans) for one, loans in self._loans.items() if one != borrower)
        lent = min(parts, RATE_PARTS - others)
        if lent <= 0:
            return 0
        larger = [loan for loan in self._loans.get(borrower, []) if loan[1] > lent]
        # A millisecond more, since both clocks are rounded down.
        self._loans[borrower] = [*larger, (now_ms + TERM_MS + 1, lent)]
        return lent

    def borrow(self, lender: int, parts: int, asked_at_ms: int, now_ms: int) -> None:
        """Takes parts lent after `asked_at_ms`, instead of former ones of this lender."""
        end_ms = asked_at_ms + TERM_MS
        if self._started_ms <= asked_at_ms <= now_ms < end_ms:
            self._borrowed[lender] = end_ms, parts

    def end_borrowed(self) -> None:
        """Drops borrowed parts: the number of shards has changed."""
        self._borrowed.clear()

    def parts(self, now_ms: int) -> int:
        """The parts at a time. Other threads call it too."""
        lent = sum(_most([loan for loan in loans if loan[0] > now_ms]) for loans in list(self._loans.values()))
        borrowed = sum(parts for end_ms, parts in list(self._borrowed.values()) if end_ms > now_ms)
        return RATE_PARTS - lent + borrowed

    def spans(self, from_ms: int, to_ms: int) -> Iterator[tuple[int, int]]:
        """The lengths of time with constant parts, and the parts."""
        at_ms = from_ms
        while at_ms < to_ms:
            end_ms = min(self.next_end_ms(at_ms) or to_ms, to_ms)
            yield end_ms - at_ms, self.parts(at_ms)
            at_ms = end_ms

    def next_end_ms(self, now_ms: int) -> int | None:
        """The next time at which parts end or return."""
        ends = [end_ms for loans in self._loans.values() for end_ms, _ in loans if end_ms > now_ms]
        ends += [end_ms for end_ms, _ in self._borrowed.values() if end_ms > now_ms]
        return min(ends, default=None)

    def is_lending(self, now_ms: int) -> bool:
        return any(end_ms > now_ms for loans in self._loans.values() for end_ms, _ in loans)

    def _forget(self, now_ms: int) -> None:
        live = {one: [loan for loan in loans if loan[0] > now_ms] for one, loans in self._loans.items()}
        self._loans = {one: loans for one, loans in live.items() if loans}


def _most(loans: list[tuple[int, int]]) -> int:
    return max((parts for _, parts in loans), default=0)
