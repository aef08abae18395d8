"""Messages due in a range of time, by topic and step, with the past beside them. Pure.

    buckets of the gateway ──put into steps of one length──▶ a row of counts for each of the largest topics, and others

A bucket wider than a step is spread over the steps that it covers; no step is shorter than the finest bucket.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from duetime_console.overview.history import FIELDS, PastSpan
from duetime_console.overview.samples import LATE

STEPS_MAX = 240
TOPICS_MAX = 7
OTHERS = "others"
DAY_MS = 86_400_000
_SECOND_MS, _MINUTE_MS, _HOUR_MS = 1_000, 60_000, 3_600_000
# Round lengths for people.
STEPS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(one * _SECOND_MS for one in (1, 2, 5, 10, 15, 30)),
    *(one * _MINUTE_MS for one in (1, 2, 5, 10, 15, 30)),
    *(one * _HOUR_MS for one in (1, 2, 3, 6, 12)),
    *(one * DAY_MS for one in (1, 2, 7, 14, 30, 91, 182, 365)),
)


@dataclass(frozen=True, slots=True)
class TopicBucket:
    """Messages of a topic due within [start_ms, start_ms + width_ms)."""

    start_ms: int
    width_ms: int
    topic: str
    count: int


class TopicSeries(NamedTuple):
    """Messages due of one topic, by step."""

    topic: str
    counts: list[float]


@dataclass
class Picture:
    """Steps of `step_ms` from `from_ms` on."""

    now_ms: int
    from_ms: int
    step_ms: int
    # The largest topics first.
    rows: list[TopicSeries] = field(default_factory=list)
    # The past by field and step; None: unknown.
    past: dict[str, list[int | None]] = field(default_factory=dict)
    # The reason for missing past, in words.
    past_fault: str = ""
    # Messages due beyond the range that shards count by day.
    later_count: int = 0
    unreachable_shards: Sequence[int] = ()

    def object(self) -> dict[str, Any]:
        """For machines."""
        return {
            "now_ms": self.now_ms,
            "from_ms": self.from_ms,
            "step_ms": self.step_ms,
            "topics": [{"topic": row.topic, "counts": [round(one, 2) for one in row.counts]} for row in self.rows],
            "past": self.past,
            "past_fault": self.past_fault,
            "later_count": self.later_count,
            "unreachable_shards": list(self.unreachable_shards),
        }


def step_of(length_ms: int, finest_ms: int = 1) -> int:
    """The shortest step with at most STEPS_MAX steps in the range."""
    wanted = max(-(-length_ms // STEPS_MAX), finest_ms)
    return next((one for one in STEPS_MS if one >= wanted), -(-wanted // DAY_MS) * DAY_MS)


def paint(
    buckets: Iterable[TopicBucket], past: Iterable[PastSpan], from_ms: int, before_ms: int, now_ms: int, finest_ms: int
) -> Picture:
    """`finest_ms`: the shortest allowed step."""
    step_ms = step_of(before_ms - from_ms, finest_ms)
    start_ms = from_ms // step_ms * step_ms
    size = -(-(before_ms - start_ms) // step_ms)
    made = Picture(now_ms, start_ms, step_ms)
    totals: Counter[str] = Counter()
    kept = [one for one in buckets if one.start_ms < before_ms and one.start_ms + one.width_ms > start_ms]
    for one in kept:
        if one.width_ms > DAY_MS:
            made.later_count += one.count
        else:
            totals[one.topic] += one.count
    largest = [topic for topic, _ in totals.most_common(TOPICS_MAX)]
    rows = {topic: [0.0] * size for topic in largest}
    if len(totals) > len(largest):
        rows[OTHERS] = [0.0] * size
    for one in kept:
        if one.width_ms <= DAY_MS:
            _spread(one, rows[one.topic if one.topic in rows else OTHERS], start_ms, step_ms)
    made.rows = [TopicSeries(topic, counts) for topic, counts in rows.items()]
    made.past = _past(past, start_ms, step_ms, size)
    return made


def add_older(picture: Picture, older: Mapping[str, Mapping[int, int]]) -> None:
    """Adds a past from another source, by field and start of step. If both know a step, the higher count wins: each may
    have seen only a part of it."""
    for name, counts in older.items():
        row = picture.past[name]
        for start_ms, count in counts.items():
            place = (start_ms - picture.from_ms) // picture.step_ms
            if 0 <= place < len(row):
                row[place] = max(row[place] or 0, count)


def _spread(bucket: TopicBucket, counts: list[float], start_ms: int, step_ms: int) -> None:
    first = (bucket.start_ms - start_ms) // step_ms
    # A bucket no longer than a step counts to the step of its start.
    parts = max(bucket.width_ms // step_ms, 1)
    for place in range(first, first + parts):
        if 0 <= place < len(counts):
            counts[place] += bucket.count / parts


def _past(past: Iterable[PastSpan], start_ms: int, step_ms: int, size: int) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = {name: [None] * size for name in FIELDS}
    for one in past:
        place = (one.start_ms - start_ms) // step_ms
        if not 0 <= place < size:
            continue
        for name, count in one.counts.items():
            before = found[name][place] or 0
            found[name][place] = max(before, count) if name == LATE else before + count
    return found
