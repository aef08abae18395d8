"""The past of the cluster as a whole: the last ten minutes by second, the last day by minute. Pure.

Each is a preallocated ring of 40 bytes per place.
"""

from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from duetime_console.overview.samples import ACCEPTED, DEAD, LATE, RESTORED

FIELDS = (ACCEPTED, RESTORED, DEAD, LATE)
# Fields of Levels, as of the last look of a minute: lateness in us, and counts.
LATENESS, PENDING, RETRYING, DEAD_LETTERS = LEVELS = ("lateness", "pending", "retrying", "dead")
SECOND_MS, MINUTE_MS = 1_000, 60_000
SECONDS_MAX = 600


class PastSpan(NamedTuple):
    """Events in a span of time."""

    start_ms: int
    width_ms: int
    # Counts by field; LATE is the highest number of messages due and undelivered at one read.
    counts: dict[str, int]


class Ring:
    """Consecutive spans of one width; the oldest are overwritten."""

    def __init__(self, width_ms: int, size: int) -> None:
        self.width_ms = width_ms
        self._size = size
        # The number of the span in each place; -1: none.
        self._spans = array("q", [-1]) * size
        self._columns = {field: array("q", [0]) * size for field in FIELDS}

    @property
    def length_ms(self) -> int:
        """The length of the past that it covers."""
        return self.width_ms * self._size

    def add(self, at_ms: int, changes: Mapping[str, int], late: int) -> None:
        span = at_ms // self.width_ms
        place = span % self._size
        if self._spans[place] != span:
            self._spans[place] = span
            for column in self._columns.values():
                column[place] = 0
        for field, count in changes.items():
            self._columns[field][place] += count
        self._columns[LATE][place] = max(self._columns[LATE][place], late)

    def between(self, from_ms: int, before_ms: int) -> Iterator[PastSpan]:
        """The known spans that overlap the range, in order."""
        first, stop = from_ms // self.width_ms, -(-before_ms // self.width_ms)
        held = [(span, place) for place, span in enumerate(self._spans) if first <= span < stop and span >= 0]
        for span, place in sorted(held):
            counts = {field: column[place] for field, column in self._columns.items()}
            yield PastSpan(span * self.width_ms, self.width_ms, counts)


class Levels:
    """The values of the last hour by minute, for the lines of the tiles."""

    MINUTES = 60

    def __init__(self) -> None:
        self._minutes: dict[int, Mapping[str, int]] = {}

    def note(self, at_ms: int, values: Mapping[str, int]) -> None:
        """Replaces the values of the minute; a field that is left out is unknown."""
        self._minutes[at_ms // MINUTE_MS] = values
        if len(self._minutes) > self.MINUTES:
            del self._minutes[next(iter(self._minutes))]

    def line(self, field: str, at_ms: int) -> list[int | None]:
        """The hour up to a moment, the earliest minute first; None: unknown."""
        last = at_ms // MINUTE_MS
        return [self._minutes.get(minute, {}).get(field) for minute in range(last - self.MINUTES + 1, last + 1)]


class ClusterHistory:
    """Both rings."""

    def __init__(self, hours: int) -> None:
        self.seconds = Ring(SECOND_MS, SECONDS_MAX)
        self.minutes = Ring(MINUTE_MS, 60 * hours)
        # The time of the first read; 0: none yet.
        self.began_ms = 0

    def add(self, at_ms: int, changes: Mapping[str, int], late: int) -> None:
        """`changes`: since the previous read; `late`: messages due and undelivered now."""
        self.began_ms = self.began_ms or at_ms
        self.seconds.add(at_ms, changes, late)
        self.minutes.add(at_ms, changes, late)

    def between(self, from_ms: int, before_ms: int, step_ms: int) -> list[PastSpan]:
        """The past of a range: by second if steps are shorter than a minute, as far back as seconds are kept."""
        ring = self.seconds if step_ms < MINUTE_MS else self.minutes
        return list(ring.between(from_ms, before_ms))

    def known_from_ms(self, now_ms: int, step_ms: int) -> int:
        """The beginning of the known past, by second or by minute as in `between`."""
        ring = self.seconds if step_ms < MINUTE_MS else self.minutes
        return max(self.began_ms or now_ms, now_ms - ring.length_ms)

    def per_s(self, field: str, at_ms: int, length_ms: int) -> float:
        """The rate over a length of time before `at_ms`, or since the first read."""
        from_ms = max(at_ms - length_ms, self.began_ms)
        length_s = max(at_ms - from_ms, SECOND_MS) / 1_000
        # The second of `from_ms` is cut, and that of `at_ms` is incomplete.
        return sum(one.counts[field] for one in self.seconds.between(from_ms + SECOND_MS, at_ms + 1)) / length_s
