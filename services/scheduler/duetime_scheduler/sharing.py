"""Who serves which lane: pure decisions from the rows of the metadata database and this member's observations.

All members read the same rows and come to the same share-out; where they differ for a moment (one has not yet noticed
a death), two serve a lane at once or none does, and the store's watermark keeps that from doing harm.

    target of lane i (in order of shard, level) = live members in order of name [i mod their number]
    a member claims every lane whose target it is, also from a living owner, which notices at its next tick
    a member keeps a lane until another claims it: no lane is without an owner because a share moved
"""

from collections.abc import Iterable, Mapping, Sequence
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
    """The target owner of each lane; even to within one lane."""
    members = sorted(live)
    return {lane: members[index % len(members)] for index, lane in enumerate(sorted(lanes))}


def claims(rows: Sequence[LeaseRow], live: Iterable[str], me: str) -> list[LeaseRow]:
    """The lanes that `me` (alive) is to take, from nobody or from their owners."""
    targets = share_out((row.key for row in rows), live)
    return [row for row in rows if targets[row.key] == me and row.owner != me]


def held(rows: Sequence[LeaseRow], me: str) -> set[LaneKey]:
    """The lanes whose lease `me` holds."""
    return {row.key for row in rows if row.owner == me}


def names(lanes: Iterable[LaneKey]) -> str:
    """`0/1 0/2`: shard and level of each."""
    return " ".join(f"{shard}/{level}" for shard, level in sorted(lanes))


class MemberWatch:
    """Decides which members live, by whether their heartbeats move while this member's own clock does.

    No moment of another machine is ever compared. A tick that comes late (this process stood still, the machine
    slept) counts as `tick_ms_max` of silence, so that a member that wakes up does not take all others for dead.
    """

    def __init__(self, me: str, *, lease_ms: float, tick_ms_max: float) -> None:
        self._me = me
        self._lease_ms = lease_ms
        self._tick_ms_max = tick_ms_max
        self._heartbeats: dict[str, int] = {}
        self._silent_ms: dict[str, float] = {}
        self._last_ms: float | None = None

    def observe(self, heartbeats: Mapping[str, int], now_ms: float) -> tuple[set[str], set[str]]:
        """(live members, dead members) at a tick at `now_ms` of this member's monotonic clock.

        A member that is seen for the first time counts as alive.
        """
        passed_ms = min(now_ms - (self._last_ms if self._last_ms is not None else now_ms), self._tick_ms_max)
        self._last_ms = now_ms
        self._silent_ms = {
            member: self._silent_ms.get(member, 0.0) + passed_ms if self._heartbeats.get(member) == heartbeat else 0.0
            for member, heartbeat in heartbeats.items()
        }
        self._heartbeats = dict(heartbeats)
        dead = {member for member, silent_ms in self._silent_ms.items() if silent_ms >= self._lease_ms} - {self._me}
        return (set(heartbeats) | {self._me}) - dead, dead
