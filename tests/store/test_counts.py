"""The table of pending messages against a plain list of them: additions, removals, refining, folding and saves."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import LanePlace
from duetime_store.counting import countfile
from duetime_store.counting.cells import HOUR, LATER, MINUTE, MINUTE_MS, SPANS, TIME_END, span_start, widths_of
from duetime_store.counting.counts import BUFFER_ROWS, BY_MINUTE_MS, Counts, Span, natural
from duetime_store.counting.survey import LaneSurvey
from duetime_store.counting.tally import Buckets, CountRequest, Tally, due_before
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = 1_700_000_000_000
LANES = (3, 18, 1_000, 1_001)
SCAN_ROWS = 3

Row = tuple[int, int, int]  # due, entry, topic


class Model:
    """All pending entries, and a scan of them in order, as a lane gives it."""

    def __init__(self) -> None:
        self.rows: dict[int, set[Row]] = {lane: set() for lane in LANES}
        self.last_entry = 0

    def scan(self, lane: int, after: LanePlace, before_ms: int, count: int) -> list[Row]:
        return sorted(row for row in self.rows[lane] if row[:2] > after and row[0] < before_ms)[:count]


def columns(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dues, entries, topics = np.array(rows, np.int64).reshape(-1, 3).T
    return entries, dues, topics


def look(model: Model, survey: LaneSurvey) -> bool:
    """One step of a scan; whether there is another."""
    rows = model.scan(survey.lane, survey.place, survey.stop_ms, SCAN_ROWS)
    survey.look(*columns(rows))
    if len(rows) < SCAN_ROWS:
        survey.end()
        return False
    return True


def tallied(counts: Counts, wanted: CountRequest, buckets_max: int = 1_000_000) -> Buckets:
    tally = Tally(counts.snapshot(), wanted, buckets_max)
    for _ in tally.add(LANES):
        pass
    return tally.buckets()


def check_buckets(model: Model, buckets: Buckets, wanted: CountRequest) -> None:
    """Each bucket holds exactly the messages due in it, and every message of the range is in one."""
    found: Counter[tuple[int, int]] = Counter()
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    all_columns = buckets.starts_ms, buckets.widths_ms, buckets.counts, buckets.topics, buckets.lanes
    for start, width, count, topic, lane in zip(*(one.tolist() for one in all_columns), strict=True):
        assert count > 0
        found[lane, topic] += count
        spans.setdefault((lane, topic), []).append((start, start + width))
        if not wanted.lanes_together:
            in_it = sum(
                start <= min(due, TIME_END * MINUTE_MS - 1) < start + width and topic in (-1, its)
                for due, _, its in model.rows[lane]
            )
            assert count == in_it, f"{count} in {width} ms of lane {lane}, {in_it} are there"
    if not wanted.lanes_together:
        for own in spans.values():
            assert all(stop <= start for (_, stop), (start, _) in pairwise(own)), "they overlap"
    for lane in LANES:
        for due, _, topic in model.rows[lane]:
            if wanted.topic in (None, topic) and wanted.from_ms <= due < wanted.before_ms:
                key = (0 if wanted.lanes_together else lane), (-1 if wanted.topics_together else topic)
                assert any(start <= due < stop for start, stop in spans[key])


class Table(RuleBasedStateMachine):
    """Counts with their surveys and merges cut into steps."""

    @initialize(cells_max=st.sampled_from([10, 40, 1_000_000]))
    def begin(self, cells_max: int) -> None:
        self.now_ms = NOW_MS
        self.model = Model()
        self.followed = [1]
        self.counts = Counts(self.now_ms, cells_max=cells_max, followed=self.followed)
        self.refining: tuple[Span, LaneSurvey] | None = None
        self.whole: LaneSurvey | None = None
        self.merging: Iterator[None] | None = None

    @rule(
        lane=st.sampled_from(LANES),
        delays=st.lists(
            st.one_of(
                st.integers(-HOUR_MS, 3 * HOUR_MS),
                st.integers(0, 70 * DAY_MS),
                st.integers(BY_MINUTE_MS - HOUR_MS, BY_MINUTE_MS + 2 * HOUR_MS),
                st.integers(0, 3_650 * DAY_MS),
            ),
            min_size=1,
            max_size=12,
        ),
        topics=st.integers(1, 4),
    )
    def come(self, lane: int, delays: list[int], topics: int) -> None:
        rows = []
        for index, delay_ms in enumerate(delays):
            self.model.last_entry += 1
            rows.append((self.now_ms + delay_ms, self.model.last_entry, index % topics))
        self.model.rows[lane] |= set(rows)
        self.counts.change(lane, *columns(rows), 1)

    @rule(lane=st.sampled_from(LANES), share=st.sampled_from([0.1, 0.5, 1]), dice=st.randoms(use_true_random=False))
    def leave(self, lane: int, share: float, dice: object) -> None:
        rows = [row for row in sorted(self.model.rows[lane]) if dice.random() < share]  # type: ignore[attr-defined]
        self.model.rows[lane] -= set(rows)
        if rows:
            self.counts.change(lane, *columns(rows), -1)

    @rule()
    def follow(self) -> None:
        if self.followed == [1] and not any(topic == 3 for rows in self.model.rows.values() for _, _, topic in rows):
            self.followed.append(3)

    @rule(by_ms=st.sampled_from([MINUTE_MS, HOUR_MS, 7 * HOUR_MS, 3 * DAY_MS, 80 * DAY_MS]))
    def pass_time(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule(steps=st.integers(1, 4))
    def refine(self, steps: int) -> None:
        if self.refining is None:
            if self.merging is not None:
                return
            span = self.counts.to_refine(self.now_ms)
            if span is None:
                return
            self.refining = span, LaneSurvey(*span)
            self.counts.begin(self.refining[1])
        span, survey = self.refining
        for _ in range(steps):
            if not look(self.model, survey):
                self.counts.refine(span, survey)
                self.refining = None
                return

    @rule(lane=st.sampled_from(LANES), steps=st.integers(1, 6))
    def recount(self, lane: int, steps: int) -> None:
        if self.whole is None:
            if self.refining is not None or self.merging is not None:
                return
            self.whole = self.counts.whole(lane)
            self.counts.begin(self.whole)
        for _ in range(steps):
            if not look(self.model, self.whole):
                self.counts.replace(self.whole)
                self.whole = None
                return

    @rule(steps=st.integers(1, 3))
    def merge(self, steps: int) -> None:
        if self.refining is not None or self.whole is not None:
            return
        if self.merging is None:
            self.merging = self.counts.fold() if self.counts.is_full else self.counts.merge()
        for _ in range(steps):
            if next(self.merging, False) is not None:
                self.merging = None
                return

    @rule()
    def restart(self) -> None:
        names = [b"%d" % number for number in range(4)]
        data = countfile.encode(self.counts.snapshot(), names, 77)
        # Numbers are others after a start.
        known = [b"other", *names[::-1]]
        again_followed = sorted(known.index(names[number]) for number in self.followed)
        loaded = Counts(self.now_ms, cells_max=self.counts.cells_max, followed=again_followed)
        countfile.fill(loaded, countfile.decode(data), known.index)
        renumbered = {number: known.index(name) for number, name in enumerate(names)}
        expected = {
            (lane, start, width, renumbered[topic]): count
            for (lane, start, width, topic), count in self.cells().items()
        }
        before, self.counts = self.counts, loaded
        assert self.cells() == expected
        again = {lane: total for lane, total in before.totals.items() if total}
        assert {lane: total for lane, total in loaded.totals.items() if total} == again
        for number in self.followed:
            assert loaded.of_topic(renumbered[number]) == before.of_topic(number)
        self.counts = before

    def cells(self) -> dict[tuple[int, int, int, int], int]:
        buckets = tallied(self.counts, CountRequest())
        all_columns = buckets.lanes, buckets.starts_ms, buckets.widths_ms, buckets.topics, buckets.counts
        return {row[:4]: row[4] for row in zip(*(one.tolist() for one in all_columns), strict=True)}

    @rule(
        topic=st.sampled_from([None, 0, 1]),
        from_ms=st.integers(-DAY_MS, 3 * DAY_MS),
        length_ms=st.integers(1, 100 * DAY_MS),
        together=st.booleans(),
        lanes_together=st.booleans(),
        buckets_max=st.sampled_from([3, 20, 1_000_000]),
    )
    def ask(
        self, topic: int | None, from_ms: int, length_ms: int, together: bool, lanes_together: bool, buckets_max: int
    ) -> None:
        first = self.now_ms + from_ms
        wanted = CountRequest(topic, first, first + length_ms, topic is None and together, lanes_together)
        check_buckets(self.model, tallied(self.counts, wanted, buckets_max), wanted)

    @rule(topic=st.integers(0, 3), minutes=st.integers(-100, 10_000))
    def ask_overdue(self, topic: int, minutes: int) -> None:
        minute = self.now_ms // MINUTE_MS + minutes
        snapshot = self.counts.snapshot()
        for lane, grain in snapshot.grains.items():
            start = span_start(grain, minute)
            count = sum(its == topic and due < start * MINUTE_MS for due, _, its in self.model.rows[lane])
            assert start <= minute
            assert due_before(snapshot, lane, topic, start) == count

    @invariant()
    def all_are_counted(self) -> None:
        if not hasattr(self, "model"):
            return
        for lane in LANES:
            assert self.counts.totals.get(lane, 0) == len(self.model.rows[lane])
        for topic in self.followed:
            count = sum(its == topic for rows in self.model.rows.values() for _, _, its in rows)
            assert self.counts.of_topic(topic) == count
        check_buckets(self.model, tallied(self.counts, CountRequest()), CountRequest())
        assert not self.counts.suspects

    def teardown(self) -> None:
        """At last all is as fine as there is room for, and within the limit."""
        if not hasattr(self, "model"):
            return
        while self.merging is not None:
            self.merge(1)
        while self.whole is not None:
            self.recount(0, 1)
        while self.refining is not None or self.counts.to_refine(self.now_ms) is not None:
            self.refine(1)
        for _ in self.counts.fold():
            pass
        self.all_are_counted()
        if self.counts.cells_max == 1_000_000:
            for lane, grain in self.counts.snapshot().grains.items():
                assert not self.model.rows[lane] or grain >= natural(self.now_ms), "a span was not refined"


Table.TestCase.settings = settings(stateful_step_count=30, report_multiple_bugs=False)
TestTable = Table.TestCase


def test_many_rows_are_summed() -> None:
    counts, dice = Counts(NOW_MS), np.random.default_rng(1)
    expected: Counter[tuple[int, int]] = Counter()
    for _ in range(40):
        count = int(dice.integers(1, 2 * BUFFER_ROWS))
        dues, topics = NOW_MS + dice.integers(0, 2 * DAY_MS, count), dice.integers(0, 30, count)
        counts.change(1_000, np.arange(count), dues, topics, 1)
        expected.update(zip((dues // MINUTE_MS).tolist(), topics.tolist(), strict=True))
        if counts.is_crowded:
            for _ in counts.merge():
                pass
    buckets = tallied(counts, CountRequest())
    rows = buckets.starts_ms // MINUTE_MS, buckets.topics, buckets.counts
    found = {row[:2]: row[2] for row in zip(*(one.tolist() for one in rows), strict=True)}
    assert found == expected


def test_table_of_many_topics_stays_within_its_limit() -> None:
    """The nearest stays by minute as long as there is room."""
    counts, dice = Counts(NOW_MS, cells_max=20_000), np.random.default_rng(1)
    for _ in range(100):
        dues, topics = NOW_MS + dice.integers(0, 3_000 * DAY_MS, 1_000), dice.integers(0, 1_000, 1_000)
        dues[:200] = NOW_MS + dice.integers(0, 10 * MINUTE_MS, 200)
        counts.change(1_000, np.arange(1_000), dues, topics, 1)
        if counts.is_full:
            for _ in counts.fold():
                pass
            assert counts.cell_count <= 20_000
    buckets = tallied(counts, CountRequest())
    assert buckets.counts.sum() == 100_000
    near = buckets.starts_ms < NOW_MS + 9 * MINUTE_MS
    assert set(buckets.widths_ms[near].tolist()) == {MINUTE_MS}
    assert LATER in widths_of(counts.snapshot().columns[0].keys)


def test_finer_grain_follows_the_coarser_one_in_one_read() -> None:
    """The clock leaps by 80 days before the lane has its first entry."""
    counts, now_ms = Counts(NOW_MS), NOW_MS + 80 * DAY_MS
    counts.change(3, np.arange(1), np.array([now_ms]), np.zeros(1, np.int64), 1)
    while (span := counts.to_refine(now_ms)) is not None:
        survey = LaneSurvey(*span)
        counts.begin(survey)
        if span.start_ms <= now_ms < span.stop_ms:
            survey.look(np.arange(1), np.array([now_ms]), np.zeros(1, np.int64))
        survey.end()
        counts.refine(span, survey)
    assert counts.grain(3) == natural(now_ms)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "version"])
def test_damaged_file_is_no_table(damage: str) -> None:
    counts = Counts(NOW_MS)
    counts.change(1, np.arange(3), NOW_MS + np.arange(3), np.zeros(3, np.int64), 1)
    data = countfile.encode(counts.snapshot(), [b"orders"], 5)
    assert countfile.decode(data).position == 5
    damaged = {
        "flip": data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
        "cut": data[:-8],
        "empty": b"",
        "version": data[:9] + b"\x02" + data[10:],
    }[damage]
    with pytest.raises(DamagedBytes):
        countfile.decode(damaged)


def test_spans_are_as_wide_as_they_say() -> None:
    assert SPANS[[MINUTE, HOUR]].tolist() == [1, 60]
