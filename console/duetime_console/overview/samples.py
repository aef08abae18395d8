"""The state of the cluster at one time, and figures derived from it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from duetime.v1 import gateway_pb2

# Fields of the past.
ACCEPTED, RESTORED, DEAD, LATE = "accepted", "restored", "dead", "late"


class GroupCounts(NamedTuple):
    """Messages of a group, or the sum of several."""

    dead_letters: int = 0
    # Failed ones that wait for their next attempt.
    retrying: int = 0
    # Delivered ones that are not acknowledged.
    lag: int = 0


class GroupSums(NamedTuple):
    """The sums of `of_groups` groups; `groups` exist. `came` counts new dead letters since the previous count."""

    sums: GroupCounts
    of_groups: int
    groups: int
    came: int = 0

    @property
    def is_whole(self) -> bool:
        return self.of_groups == self.groups


@dataclass(frozen=True, slots=True)
class LaneSample:
    """One read of all lanes."""

    # Unix ms, by the shards' clock.
    at_ms: int
    lanes: Sequence[gateway_pb2.Lane]
    unreachable_shards: Sequence[int]
    # As of the last count of groups; None: unknown.
    groups: GroupSums | None = None
    # Whether this read included groups.
    is_counted: bool = False

    @property
    def overdue_count(self) -> int:
        """Messages due and not delivered yet."""
        return sum(lane.due_count for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class Figures:
    """Values of the tiles. Times are Unix ms, 0: none; lateness in ms, -1: nothing was delivered yet."""

    at_ms: int
    accepted_per_s: float
    restored_per_s: float
    late_p50_ms: float
    late_p99_ms: float
    pending_count: int
    overdue_count: int
    oldest_due_at_ms: int
    next_due_at_ms: int
    shard_count: int
    unreachable_shards: tuple[int, ...]
    # Lanes with pending messages and without a scheduler.
    unowned_count: int
    paused_count: int
    groups: GroupSums | None


def figures(sample: LaneSample, accepted_per_s: float, restored_per_s: float) -> Figures:
    lanes = sample.lanes
    worst = max((lane for lane in lanes if lane.late_p99_ms >= 0), key=lambda lane: lane.late_p99_ms, default=None)
    return Figures(
        at_ms=sample.at_ms,
        accepted_per_s=accepted_per_s,
        restored_per_s=restored_per_s,
        late_p50_ms=worst.late_p50_ms if worst else -1.0,
        late_p99_ms=worst.late_p99_ms if worst else -1.0,
        pending_count=sum(lane.pending_count for lane in lanes),
        overdue_count=sample.overdue_count,
        oldest_due_at_ms=min((lane.oldest_due_at_ms for lane in lanes if lane.oldest_due_at_ms), default=0),
        next_due_at_ms=min((lane.next_due_at_ms for lane in lanes if lane.next_due_at_ms), default=0),
        shard_count=len({lane.shard for lane in lanes} | set(sample.unreachable_shards)),
        unreachable_shards=tuple(sample.unreachable_shards),
        unowned_count=len(unowned(lanes)),
        paused_count=sum(lane.paused for lane in lanes),
        groups=sample.groups,
    )


def unowned(lanes: Sequence[gateway_pb2.Lane]) -> list[gateway_pb2.Lane]:
    return [lane for lane in lanes if not lane.owner and not lane.paused and lane.pending_count]


def changes(before: LaneSample, now: LaneSample) -> dict[str, int]:
    """Changes between two reads, by field of the past. A decreased count belongs to a restarted shard, and is
    ignored."""
    earlier = {(lane.shard, lane.level): lane for lane in before.lanes}
    accepted = restored = 0
    for lane in now.lanes:
        last = earlier.get((lane.shard, lane.level))
        if last is not None:
            accepted += max(0, lane.max_offset - last.max_offset)
            restored += max(0, lane.restored_count - last.restored_count)
    dead = now.groups.came if now.is_counted and now.groups is not None else 0
    return {ACCEPTED: accepted, RESTORED: restored, DEAD: dead}
