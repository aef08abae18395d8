"""Current faults in words, each with the section of the runbooks for it. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from duetime.v1 import gateway_pb2

from duetime_console.overview.samples import LaneSample, unowned

# A lane is late when a message has been due for this time: well above the delays of a busy machine.
LATE_MS = 5_000
NAMED_MAX = 3


class ClusterAlarm(NamedTuple):
    """`runbook` is an anchor of docs/runbooks.md; empty: it needs no instructions."""

    text: str
    runbook: str = ""
    # Whether the fault may delay or lose messages.
    is_bad: bool = True


def alarms(sample: LaneSample, dead_letters_since: int) -> list[ClusterAlarm]:
    """Alarms, the worst first. `dead_letters_since`: dead letters of the last ten minutes."""
    found: list[ClusterAlarm] = []
    if sample.unreachable_shards:
        names = _listed([str(shard) for shard in sample.unreachable_shards])
        many = len(sample.unreachable_shards) > 1
        text = f"Shard{'s' * many} {names} {'do' if many else 'does'} not answer: messages pending there are delayed."
        found.append(ClusterAlarm(text, "a-store-pod-dies"))
    late = [lane for lane in sample.lanes if _late_ms(lane, sample.at_ms) > LATE_MS and not lane.paused]
    if late:
        longest_s = max(_late_ms(lane, sample.at_ms) for lane in late) // 1_000
        count = sum(lane.due_count for lane in late)
        text = f"{count:,} messages are overdue, the oldest by {longest_s:,} s: {_lanes(late)}."
        found.append(ClusterAlarm(text, "a-lane-is-late"))
    if lost := unowned(sample.lanes):
        text = f"No scheduler holds {_lanes(lost)}: other schedulers deliver the messages there later than usual."
        found.append(ClusterAlarm(text, "a-lane-is-late", is_bad=False))
    if paused := [lane for lane in sample.lanes if lane.paused]:
        count = sum(lane.due_count for lane in paused)
        text = f"Paused: {_lanes(paused)}; {count:,} messages are due there and wait."
        found.append(ClusterAlarm(text, "a-lane-is-late", is_bad=False))
    if dead_letters_since:
        text = f"{dead_letters_since:,} messages became dead letters in the last ten minutes."
        found.append(ClusterAlarm(text, "dead-letters-grow", is_bad=False))
    return found


def _late_ms(lane: gateway_pb2.Lane, at_ms: int) -> int:
    return at_ms - lane.oldest_due_at_ms if lane.oldest_due_at_ms and lane.due_count else 0


def _lanes(lanes: Sequence[gateway_pb2.Lane]) -> str:
    return f"lane{'s' * (len(lanes) > 1)} {_listed([f'{lane.level} of shard {lane.shard}' for lane in lanes])}"


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
