"""Now and next: the past in bounded memory, steps of the picture, faults in words. Pure modules."""

from dataclasses import replace

from duetime.v1.gateway_pb2 import Lane
from duetime_console.overview.alarms import alarms
from duetime_console.overview.history import PENDING, RETRYING, SECONDS_MAX, ClusterHistory, Levels, Ring
from duetime_console.overview.picture import DAY_MS, OTHERS, STEPS_MAX, TOPICS_MAX, TopicBucket, paint, step_of
from duetime_console.overview.samples import (
    ACCEPTED,
    DEAD,
    LATE,
    RESTORED,
    GroupCounts,
    GroupSums,
    LaneSample,
    changes,
    figures,
)
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_800_000_000_000
HOUR_MS, MINUTE_MS, SECOND_MS = 3_600_000, 60_000, 1_000


def lane(**fields: object) -> Lane:
    return Lane(**{"level": 3, "owner": "s", "late_p50_ms": -1.0, "late_p99_ms": -1.0, **fields})  # type: ignore[arg-type]


def test_changes_are_differences_and_absent_after_a_shards_restart() -> None:
    before = LaneSample(NOW, [lane(max_offset=10, restored_count=4), lane(shard=1, restored_count=9)], ())
    now = LaneSample(
        NOW + 1,
        [lane(max_offset=15, restored_count=6), lane(shard=1, restored_count=1)],
        (),
        GroupSums(GroupCounts(dead_letters=5), 2, 2, came=3),
        True,
    )
    assert changes(before, now) == {ACCEPTED: 5, RESTORED: 2, DEAD: 3}
    assert changes(now, replace(now, is_counted=False))[DEAD] == 0
    assert changes(before, LaneSample(NOW, [lane(shard=7, restored_count=100)], ())) == {
        ACCEPTED: 0,
        RESTORED: 0,
        DEAD: 0,
    }


def test_figures_are_those_of_the_latest_lane_and_of_lanes_without_owner() -> None:
    lanes = [
        lane(pending_count=2, oldest_due_at_ms=NOW - 5, due_count=1, late_p50_ms=1, late_p99_ms=9),
        lane(shard=1, pending_count=1, oldest_due_at_ms=NOW + 5, next_due_at_ms=NOW + 5, owner="", late_p99_ms=3),
        lane(shard=1, owner="", pending_count=0),
        lane(shard=1, owner="", pending_count=1, paused=True),
    ]
    found = figures(LaneSample(NOW, lanes, (2,)), 1.0, 2.0)
    assert (found.late_p50_ms, found.late_p99_ms, found.pending_count, found.overdue_count) == (1, 9, 4, 1)
    assert (found.oldest_due_at_ms, found.next_due_at_ms) == (NOW - 5, NOW + 5)
    assert (found.shard_count, found.unreachable_shards, found.unowned_count) == (3, (2,), 1)


def test_ring_keeps_the_newest_spans_and_no_more() -> None:
    ring = Ring(SECOND_MS, 3)
    for second in range(5):
        ring.add(NOW + second * SECOND_MS, {RESTORED: second}, late=0)
    kept = list(ring.between(0, NOW + HOUR_MS))
    assert [(one.start_ms, one.counts[RESTORED]) for one in kept] == [(NOW + n * SECOND_MS, n) for n in (2, 3, 4)]
    ring.add(NOW + 4 * SECOND_MS, {RESTORED: 3}, late=7)
    ring.add(NOW + 4 * SECOND_MS, {}, late=2)
    (last,) = ring.between(NOW + 4 * SECOND_MS, NOW + 5 * SECOND_MS)
    assert (last.counts[RESTORED], last.counts[LATE]) == (7, 7)


def test_history_of_a_day_stays_within_its_memory() -> None:
    history = ClusterHistory(hours=1)
    for second in range(3 * 3_600):
        history.add(NOW + second * SECOND_MS, {ACCEPTED: 1}, late=0)
    end_ms = NOW + 3 * HOUR_MS
    minutes = history.between(0, end_ms, MINUTE_MS)
    assert len(minutes) == 60
    assert {one.counts[ACCEPTED] for one in minutes} == {60}
    assert len(history.between(0, end_ms, SECOND_MS)) == SECONDS_MAX
    assert history.per_s(ACCEPTED, end_ms - SECOND_MS, 10_000) == 1.0


def test_levels_have_the_last_value_of_each_minute_of_an_hour() -> None:
    levels = Levels()
    start_ms = NOW - NOW % MINUTE_MS
    for minute in range(90):
        if minute != 88:
            levels.note(start_ms + minute * MINUTE_MS, {PENDING: 7})
            levels.note(start_ms + minute * MINUTE_MS + SECOND_MS, {PENDING: minute})
    line = levels.line(PENDING, start_ms + 89 * MINUTE_MS)
    assert line == [*range(30, 88), None, 89]
    assert levels.line(RETRYING, start_ms + 89 * MINUTE_MS) == [None] * Levels.MINUTES


def test_rate_covers_the_known_past_only() -> None:
    history = ClusterHistory(hours=1)
    history.add(NOW, {}, late=0)
    history.add(NOW + 2_000, {ACCEPTED: 10}, late=0)
    assert history.per_s(ACCEPTED, NOW + 2_000, 10_000) == 5.0


buckets = st.lists(
    st.builds(
        TopicBucket,
        st.integers(0, 2 * 24 * 60).map(lambda minute: NOW // DAY_MS * DAY_MS + minute * MINUTE_MS),
        st.sampled_from([MINUTE_MS]),
        st.sampled_from([f"t{number}" for number in range(10)]),
        st.integers(1, 1_000),
    ),
    max_size=60,
)


@given(buckets, st.integers(MINUTE_MS, 4 * DAY_MS))
def test_picture_has_each_message_of_its_range_once(given_buckets: list[TopicBucket], length_ms: int) -> None:
    from_ms = NOW // DAY_MS * DAY_MS
    made = paint(given_buckets, [], from_ms, from_ms + length_ms, from_ms, MINUTE_MS)
    end_ms = made.from_ms + made.step_ms * len(made.rows[0].counts) if made.rows else from_ms
    inside = [one for one in given_buckets if one.start_ms < from_ms + length_ms]
    assert end_ms >= from_ms + length_ms or not made.rows
    assert abs(sum(sum(row.counts) for row in made.rows) - sum(one.count for one in inside)) < 1e-6
    assert len(made.rows) <= TOPICS_MAX + 1
    assert all(len(row.counts) <= STEPS_MAX + 1 for row in made.rows)


def test_wide_buckets_are_spread_and_later_messages_counted_apart() -> None:
    day = NOW // DAY_MS * DAY_MS
    given_buckets = [
        TopicBucket(day, HOUR_MS, "a", 60),
        TopicBucket(day, 60 * DAY_MS, "a", 5),
        TopicBucket(day, MINUTE_MS, "b", 1),
    ]
    made = paint(given_buckets, [], day, day + HOUR_MS, day, MINUTE_MS)
    rows = {row.topic: row.counts for row in made.rows}
    assert made.step_ms == MINUTE_MS
    assert rows["a"] == [1.0] * 60
    assert rows["b"][0] == 1
    assert made.later_count == 5


def test_small_topics_are_put_together() -> None:
    given_buckets = [TopicBucket(NOW, SECOND_MS, f"t{number}", 1 + number) for number in range(TOPICS_MAX + 2)]
    made = paint(given_buckets, [], NOW, NOW + MINUTE_MS, NOW, SECOND_MS)
    assert [row.topic for row in made.rows][-1] == OTHERS
    assert sum(made.rows[-1].counts) == 1 + 2


def test_steps_are_those_that_people_count_in() -> None:
    assert [step_of(length) for length in (20, MINUTE_MS, HOUR_MS, DAY_MS, 365 * DAY_MS)] == [
        1,
        500,
        15 * SECOND_MS,
        10 * MINUTE_MS,
        2 * DAY_MS,
    ]
    assert step_of(SECOND_MS, finest_ms=MINUTE_MS) == MINUTE_MS
    assert step_of(120 * 365 * DAY_MS) >= 120 * 365 * DAY_MS / STEPS_MAX


def test_alarms_name_problems_and_runbooks() -> None:
    assert alarms(LaneSample(NOW, [lane(pending_count=1, oldest_due_at_ms=NOW + 1)], ()), 0) == []
    late = lane(pending_count=3, due_count=2, oldest_due_at_ms=NOW - 9_000)
    found = alarms(LaneSample(NOW, [late, lane(shard=1, owner="", pending_count=1), lane(paused=True)], (4,)), 6)
    assert [one.runbook for one in found] == [
        "a-store-pod-dies",
        "a-lane-is-late",
        "a-lane-is-late",
        "a-lane-is-late",
        "dead-letters-grow",
    ]
    assert found[0].text == "Shard 4 does not answer: messages pending there are delayed."
    assert found[1].text == "2 messages are overdue, the oldest by 9 s: lane 3 of shard 0."


def test_runbooks_have_the_sections_that_alarms_name() -> None:
    import inspect
    import re

    from duetime_console.overview import alarms as module
    from duetime_console.overview import watch
    from duetime_console.pages.runbooks import _PLACES, _sections

    named = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', inspect.getsource(module) + inspect.getsource(watch)))
    assert {"a-lane-is-late", "calls-fail"} <= named | {"calls-fail"}
    anchors = {one.anchor for path in _PLACES if path.is_file() for one in _sections(path)}
    assert named - anchors == set()


def test_runbooks_are_rendered_without_links_to_other_pages() -> None:
    from duetime_console.pages.runbooks import _html

    text = _html(
        "1. Read [security](security.md#x) and [above](#a-lane-is-late).\n2. `ls <b>`\n\n| a |\n|---|\n| 1 |\n"
    )
    assert "<ol>" in text
    assert "<table>" in text
    assert 'Read security and <a href="#a-lane-is-late">above</a>' in text
    assert "<b>" not in text
