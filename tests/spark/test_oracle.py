"""Jobs and tables against plain Python, on the logs of clusters that lived through everything (story.py).

Two oracles: the story's own records, and the contents of the log, read record by record (reading.py).
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from duetime_format import record
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.properties import decode_properties
from duetime_spark.moment import take_moment
from duetime_spark.running import JobOptions, run, tables
from pyspark.sql import SparkSession

from tests.spark.reading import Log, id_of, percentile
from tests.spark.story import GROUP, RETRY_TOPIC, Moment, told

pytestmark = pytest.mark.proof

MINUTE_MS = 60_000
Found = dict[str, Any]
# Segments leave after two minutes, as soon as they are full.
CLEANED = {"retention_ms": 120_000, "retention_check_ms": 10_000}
STORIES: dict[str, Callable[[Path], Any]] = {
    "groups": lambda path: told(path, 1),
    "retention": lambda path: told(path, 3, consumes=False, **CLEANED),
}


@pytest.fixture(scope="module", params=STORIES)
def moment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Moment:
    found: Moment = asyncio.run(STORIES[request.param](tmp_path_factory.mktemp("story")))
    return found


@pytest.fixture(scope="module")
def log(moment: Moment) -> Log:
    return moment.log


@pytest.fixture(scope="module")
def job(spark: SparkSession, moment: Moment) -> Callable[..., Found]:
    at = take_moment([str(root) for root in moment.roots.values()])

    @cache
    def result(name: str, **options: Any) -> Found:
        return run(spark, JobOptions(name, **options), at).to_dict()

    return result


@pytest.fixture(scope="module")
def rows(spark: SparkSession, moment: Moment) -> Callable[..., list[tuple[Any, ...]]]:
    read = tables(spark, take_moment([str(root) for root in moment.roots.values()]))

    def found(table: str, columns: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in read(table, columns).collect()]

    return found


def is_whole(moment: Moment) -> bool:
    """Nothing has left."""
    return all(first == 0 for _, first, _, _ in moment.lanes.values())


# --- backlog --------------------------------------------------------------------------------------------------------


def test_backlog_equals_sent_messages_not_due(moment: Moment, job: Callable[..., Found]) -> None:
    found = job("backlog", now_ms=moment.now_ms)
    expected = Counter((one.level, one.topic) for one in moment.account.pending(moment.now_ms))
    counts: Counter[tuple[int, str]] = Counter()
    for row in found["pending"]:
        counts[row["level"], row["topic"]] += row["count"]
    # A damaged record that retention then moved has lost its topic.
    known = Counter({(level, topic): count for (level, topic), count in counts.items() if topic is not None})
    assert not known - expected
    unknown = Counter({level: count for (level, topic), count in counts.items() if topic is None})
    assert unknown.total() <= len(moment.account.damaged)
    assert (expected - known).total() == unknown.total()
    assert {level for level, _ in expected - known} == unknown.keys()
    assert found["pending_count"] == sum(expected.values())
    assert found["overdue_count"] == 0
    dues = Counter((one.due_at_ms // MINUTE_MS * MINUTE_MS, one.level) for one in moment.account.pending(moment.now_ms))
    assert {(row["at_ms"], row["level"]): row["count"] for row in found["due_minutes"]} == dues
    assert found["next_due_at_ms"] == min(one.due_at_ms for one in moment.account.pending(moment.now_ms))
    assert {(row["shard"], row["level"]): row["pending_count"] for row in found["lanes"]} == {
        lane: pending for lane, (*_, pending) in moment.lanes.items()
    }


def test_backlog_has_the_bytes_of_the_log(moment: Moment, log: Log, job: Callable[..., Found]) -> None:
    expected: dict[tuple[int, int, str | None], list[int]] = defaultdict(lambda: [0, 0])
    damaged = set(moment.account.damaged)
    for (shard, level), (watermark, _, behind, _) in moment.lanes.items():
        for offset in range(watermark, behind):
            one = log.entries[shard, level].get(offset)
            if one is None:
                assert (shard, level, offset) in damaged
                continue
            sums = expected[shard, level, decode_properties(one.properties)["REAL_TOPIC"]]
            sums[0] += 1
            sums[1] += one.size
    found = job("backlog", now_ms=moment.now_ms)["pending"]
    waiting = [lane for *lane, offset in damaged if offset >= moment.lanes[tuple(lane)][0]]
    for row in found:
        if row["topic"] is None:
            assert [row["shard"], row["level"]] in waiting
            continue
        count, size = expected.pop((row["shard"], row["level"], row["topic"]))
        if [row["shard"], row["level"]] not in waiting:
            assert (row["count"], row["bytes"]) == (count, size)
    assert not expected


def test_restores_of_the_last_ten_minutes_are_counted(log: Log, job: Callable[..., Found]) -> None:
    end_ms = max(one.stored_at_ms for records in log.records.values() for one in records)
    stored = [
        one.stored_at_ms
        for lane in log.restored.values()
        for copies in lane.values()
        for one in copies
        if one.stored_at_ms > end_ms - 600_000
    ]
    found = job("backlog")["forecast"]
    assert found["measured_per_s"] == round(len(stored) / 600, 3)
    assert found["measured_peak_per_s"] == max(Counter(at_ms // 1000 for at_ms in stored).values())


# --- audit ----------------------------------------------------------------------------------------------------------


def test_audit_proves_every_entrys_end(moment: Moment, log: Log, job: Callable[..., Found]) -> None:
    found = job("audit")
    assert found["is_proven"], (found["violation_counts"], found["violations"])
    names = ("accepted", "pending", "restored", "dead", "cancelled", "missing", "early", "violation_count")
    assert len(found["lanes"]) == len(moment.lanes)
    for row in found["lanes"]:
        lane = (row["shard"], row["level"])
        _, _, behind, pending = moment.lanes[lane]
        ends = (behind, pending, len(log.restored[lane]), len(log.dead[lane]), 0, 0, 0, 0)
        assert tuple(row[name] for name in names) == ends, lane
        assert row["expired"] == behind - pending - len(log.restored[lane]) - len(log.dead[lane])
    assert found["total"]["accepted"] == len(moment.account.waiting)
    assert found["total"]["pending"] == len(moment.account.pending(moment.now_ms))
    assert (found["total"]["expired"] == 0) == is_whole(moment)
    fallen_due = [lane for *lane, offset in moment.account.damaged if offset < moment.lanes[tuple(lane)][0]]
    assert found["total"]["dead"] == len(fallen_due) if is_whole(moment) else True
    assert fallen_due


# --- lateness -------------------------------------------------------------------------------------------------------


def test_lateness_is_that_of_each_restored_record(log: Log, job: Callable[..., Found]) -> None:
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for lane in log.restored.values():
        for copies in lane.values():
            for one in copies:
                entry = record.find_lane_entry(one.properties)
                assert entry is not None
                level, _, due_at_ms = entry
                minute_ms = due_at_ms // MINUTE_MS * MINUTE_MS
                for key in ((), (level, one.topic), (level, one.topic, minute_ms)):
                    groups[key].append(one.stored_at_ms - due_at_ms)
    found = job("lateness")
    assert found["undated_count"] == 0
    rows = {(row["level"], row["topic"], row["at_ms"]): row for row in found["minutes"]}
    rows |= {(row["level"], row["topic"]): row for row in found["topics"]}
    rows[()] = found["total"]
    assert rows.keys() == groups.keys()
    for key, values in groups.items():
        told = tuple(rows[key][name] for name in ("count", "p50_ms", "p99_ms", "p999_ms", "max_ms"))
        assert told == (len(values), *(percentile(values, share) for share in (500, 990, 999)), max(values))
    assert found["total"]["early_count"] == 0
    assert found["total"]["max_ms"] >= 50


# --- groups ---------------------------------------------------------------------------------------------------------


def test_retries_are_the_deliveries_that_were_given(moment: Moment, job: Callable[..., Found]) -> None:
    found = job("retries")
    account = moment.account
    told = {
        (row["topic"], end): row[name]
        for row in found["groups"]
        for end, name in (
            ("acked", "succeeded"),
            *((end, end) for end in ("failed", "expired", "dead", "returned", "open")),
        )
        if row[name]
    }
    assert told == account.ends
    assert {row["group"] for row in found["groups"]} == ({GROUP} if account.ends else set())
    by_attempt = {
        (row["topic"], attempt): count for row in found["groups"] for attempt, count in row["by_attempt"].items()
    }
    assert by_attempt == account.succeeded


def test_dead_letters_exclude_redriven_ones(moment: Moment, job: Callable[..., Found]) -> None:
    found = job("dead_letters")
    expected = Counter(moment.account.letters.values())
    groups = {(row["topic"], row["signature"], row["attempts"]): row["count"] for row in found["groups"]}
    assert groups == expected
    assert {row["group"] for row in found["groups"]} == ({GROUP} if expected else set())
    listed = {sample["id"] for row in found["groups"] for sample in row["samples"]}
    assert listed <= moment.account.letters.keys()


# --- tables ---------------------------------------------------------------------------------------------------------


def test_messages_are_the_records(log: Log, rows: Callable[..., list[tuple[Any, ...]]]) -> None:
    found = rows("messages", "shard,position,size,topic,queue,offset,id,tags,born_at_ms,stored_at_ms,body_size,damage")
    expected = []
    for shard, records in log.records.items():
        for one in records:
            properties = decode_properties(one.properties)
            place = (shard, one.position, one.size, one.topic, one.queue, one.queue_offset)
            texts = (properties.get("UNIQ_KEY"), properties.get("TAGS"))
            expected.append((*place, *texts, one.born_at_ms, one.stored_at_ms, len(one.body), None))
    assert sorted(row for row in found if row[-1] is None) == sorted(expected, key=lambda row: row[:2])


def test_queue_entries_are_the_places_of_records(
    moment: Moment, log: Log, rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    found = {row[:4]: row[4:] for row in rows("queue_entries", "shard,topic,queue,offset,position,size,due_at_ms")}
    expected = {}
    firsts: dict[Any, int] = {}
    for shard, topic, queue, offset in found:
        key = (shard, topic, queue)
        firsts[key] = min(offset, firsts.get(key, offset))
    for (shard, topic, queue), records in log.queues.items():
        for offset, one in records.items():
            if offset >= firsts.get((shard, topic, queue), 1 << 60):
                expected[shard, topic, queue, offset] = (one.position, one.size)
    damaged = {(shard, SCHEDULE_TOPIC, level - 1, offset) for shard, level, offset in moment.account.damaged}
    assert {key: row[:2] for key, row in found.items() if key in expected or key not in damaged} == expected
    dues = {row[-1] for key, row in found.items() if key[1] == SCHEDULE_TOPIC and row[-1] > moment.now_ms}
    assert dues == {one.due_at_ms for one in moment.account.pending(moment.now_ms)}


def test_pending_entries_are_the_messages_that_wait(
    moment: Moment, log: Log, rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    ids = set()
    for shard, level, offset, topic in rows("pending", "shard,level,offset,topic"):
        one = log.entries[shard, level].get(offset)
        if one is None:
            assert (shard, level, offset) in moment.account.damaged
        elif topic != RETRY_TOPIC:
            ids.add(id_of(one))
    waiting = {
        name
        for name, one in moment.account.waiting.items()
        if one.due_at_ms > moment.now_ms and one.topic != RETRY_TOPIC
    }
    assert ids <= waiting
    assert len(waiting) - len(ids) <= len(moment.account.damaged)
