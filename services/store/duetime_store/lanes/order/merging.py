"""Merges several runs into one, a piece at a time: memory stays constant, however long they are.

Runs are merged by size: FANOUT runs of one tier become one of the next. So each row is written once per tier, and there
are at most FANOUT - 1 runs of a tier: some ten for 10 million rows, 13 for 100 million.
"""

from collections.abc import Iterator, Sequence

from duetime_format.lanes import LanePlace

from duetime_store.lanes.order.rows import END, OrderRows
from duetime_store.lanes.order.runs import SortedRun
from duetime_store.lanes.order.walk import OrderWalk

FANOUT = 4
_PIECE_ROWS = 64 * 1_024


def mergeable(sizes: Sequence[int], smallest: int) -> list[int]:
    """Indices of runs to be merged; empty: none.

    Args:
        sizes: remaining rows of each run.
        smallest: those of a memtable; all runs below FANOUT times that are of one tier.
    """
    tiers: dict[int, list[int]] = {}
    for index, size in enumerate(sizes):
        tier = 0
        while size >= smallest * FANOUT ** (tier + 1):
            tier += 1
        tiers.setdefault(tier, []).append(index)
    for tier in sorted(tiers):
        if len(tiers[tier]) >= FANOUT:
            return tiers[tier]
    return []


def merge(runs: Sequence[SortedRun], after: LanePlace) -> Iterator[OrderRows]:
    """The rows of the runs after a place, in order, without pairs. Runs on any thread. Raises: Damaged."""
    walk = OrderWalk(after)
    while walk.place < END:
        yield walk.next(runs, (), _PIECE_ROWS)
