"""The assignment of lanes: pure decisions from the rows of the metadata database and this member's observations.

All members read the same rows and compute the same assignment. If they differ for a moment (one has not yet noticed a
death), two serve a lane at once or none does; the store's watermark makes that harmless.

    target of lane i (in order of shard, level) = live members in order of name [i mod their number]
    a member claims every lane whose target it is, also from a living owner; that notices at its next tick
    a member keeps a lane until another claims it: no reassignment leaves a lane without an owner
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LaneKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lane lease as the database has it."""

    shard: int
    level: int
    owner: str
    epoch: int
    paused: bool

    @property
    def key(self) -> LaneKey:
        return self.shard, self.level


def share_out(lanes: Iterable[LaneKey], live: Iterable[str]) -> dict[LaneKey, str]:
    """The target owner of each lane; balanced to within one lane."""
    members = sorted(live)
    return {lane: members[index % len(members)] for index, lane in enumerate(sorted(lanes))}


def claims(rows: Sequence[LeaseRow], live: Iterable[str], me: str) -> list[LeaseRow]:
    """The lanes for `me` (alive) to take, from nobody or from their owners."""
    targets = share_out((row.key for row in rows), live)
    return [row for row in rows if targets[row.key] == me and row.owner != me]


def held(rows: Sequence[LeaseRow], me: str) -> set[LaneKey]:
    """The lanes whose lease `me` holds."""
    return {row.key for row in rows if row.owner == me}


def names(lanes: Iterable[LaneKey]) -> str:
    """`0/1 0/2`: shard and level of each."""
    return " ".join(f"{shard}/{level}" for shard, level in sorted(lanes))
