"""Schedules through the SDK and the whole cluster on a fake clock: occurrences arrive, and changes take effect."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from duetime import (
    AlreadyExists,
    Conflict,
    Finder,
    InvalidArgument,
    InvalidMessage,
    LeasedMessage,
    Message,
    NotFound,
    Puller,
    Receiver,
    ScheduleDefinition,
    Schedules,
    SomeFailed,
)
from duetime.client.administering import schedules as module
from duetime_core.testing import LocalCluster

from tests.sdk.arrivals import bodies

TOPIC = "jobs"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def schedules(cluster: LocalCluster) -> Iterator[Schedules]:
    with Schedules(cluster.address) as schedules:
        yield schedules


def now(cluster: LocalCluster) -> datetime:
    return datetime.fromtimestamp(cluster.now_ms() / 1_000, UTC)


def test_each_occurrence_arrives_at_its_time(cluster: LocalCluster, schedules: Schedules) -> None:
    begun = now(cluster)
    made = schedules.put("poll", Message(TOPIC, {"kind": "poll"}, tags="t", properties={"a": "b"}), every="1m")
    assert (made.name, made.topic, made.every, made.missed, made.version) == ("poll", TOPIC, MINUTE, "one", 1)
    assert made.next_at == [begun + MINUTE]
    with Finder(cluster.address) as finder:
        assert [one.schedule for one in finder.pending(TOPIC, key="poll")] == ["poll"]
    with Puller(cluster.address, TOPIC, start="earliest") as puller:
        for number in range(1, 4):
            cluster.advance("59999ms")
            assert puller.poll(wait="100ms") == []
            cluster.advance("1ms")
            (found,) = puller.poll(wait="30s")
            assert (found.schedule, found.planned_at, found.keys) == ("poll", begun + number * MINUTE, ["poll"])
            assert (found.json(), found.tags, found.properties["a"]) == ({"kind": "poll"}, "t", "b")
            assert found.due_at == found.planned_at
    assert schedules.get(TOPIC, "poll", next_count=2).next_at == [begun + 4 * MINUTE, begun + 5 * MINUTE]
    schedules.delete(TOPIC, "poll")
    with pytest.raises(NotFound):
        schedules.get(TOPIC, "poll")


def test_a_schedule_put_at_each_start_is_one(cluster: LocalCluster, schedules: Schedules) -> None:
    first = schedules.put("nightly", Message(TOPIC, b"x"), every="1d")
    assert schedules.put("nightly", Message(TOPIC, b"x"), every="1d") == first
    with pytest.raises(AlreadyExists):
        schedules.put("nightly", Message(TOPIC, b"y"), every="1d", create_only=True)
    changed = schedules.put("nightly", Message(TOPIC, b"y"), every="1d")
    assert (changed.version, changed.next_at) == (2, first.next_at)
    assert [one.name for one in schedules.list(TOPIC)] == ["nightly"]
    schedules.delete(TOPIC, "nightly")


def test_a_paused_one_waits(cluster: LocalCluster, schedules: Schedules) -> None:
    schedules.put("paused", Message("pauses", b"planned"), every="1m", missed="all")
    assert schedules.pause("pauses", "paused").paused
    cluster.advance("1h")
    assert schedules.run("pauses", "paused")
    assert bodies(cluster, "pauses", 1) == [b"planned"]
    assert schedules.resume("pauses", "paused").next_at == [now(cluster) + MINUTE]
    cluster.advance("1m")
    assert bodies(cluster, "pauses", 2) == [b"planned"] * 2
    schedules.delete("pauses", "paused")


def test_listed_times_end(cluster: LocalCluster, schedules: Schedules) -> None:
    begun = now(cluster)
    times = [begun + timedelta(seconds=seconds) for seconds in (30, 5)]
    made = schedules.put("party", Message("parties", b"x"), at=times)
    assert (made.at, made.next_at) == (times[::-1], times[1:])
    cluster.advance("30s")
    assert bodies(cluster, "parties", 2) == [b"x"] * 2
    with pytest.raises(NotFound):
        schedules.pause("parties", "party")


def test_an_exhausted_one_is_not_resumed(cluster: LocalCluster, schedules: Schedules) -> None:
    schedules.put("late", Message("late_ones", b"x"), at=[now(cluster) + timedelta(seconds=5)])
    schedules.pause("late_ones", "late")
    cluster.advance("5s")
    with pytest.raises(Conflict):
        schedules.resume("late_ones", "late")
    schedules.delete("late_ones", "late")


def test_a_retried_occurrence_keeps_its_schedule_and_makes_no_other(
    cluster: LocalCluster, schedules: Schedules
) -> None:
    begun = now(cluster)
    schedules.put("retried", Message("retries", b"x", retry="1s,max=2"), at=[begun + timedelta(seconds=5)])
    cluster.advance("5s")
    with Receiver(cluster.address, "retries", group="workers") as receiver:
        found: list[LeasedMessage] = []
        for attempt in (1, 2):
            found = receiver.receive(wait="30s")
            assert [(one.schedule, one.planned_at, one.attempt) for one in found] == [
                ("retried", begun + timedelta(seconds=5), attempt)
            ]
            if attempt == 1:
                receiver.nack(found[0])
                cluster.advance("1s")
        receiver.ack(found)
    with pytest.raises(NotFound):
        schedules.get("retries", "retried")


def test_many_are_put_in_requests_of_their_own(
    cluster: LocalCluster, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUT_COUNT_MAX", 8)
    monkeypatch.setattr(module, "PUT_BYTES_MAX", 1_000)
    message = Message("many", {"kind": "x"}, tags="t", properties={"a": "b"}, flag=7, retry="1s,max=2", expires="1h")
    definitions = [ScheduleDefinition(f"s{number}", message, every="1m") for number in range(20)]
    definitions.append(ScheduleDefinition("s0", Message("many", b"x" * 2_000), every="1m"))
    definitions.append(ScheduleDefinition("paused", message, cron="0 6 * * *", zone="Europe/Berlin", paused=True))
    found = schedules.put_all(one for one in definitions)
    assert [(one.name, one.version) for one in found[:20]] == [(f"s{number}", 1) for number in range(20)]
    assert found[1:20] == [schedules.get("many", f"s{number}") for number in range(1, 20)]
    assert (found[20].name, found[20].version, found[20].body) == ("s0", 2, b"x" * 2_000)
    assert (found[21].paused, found[21].next_at, found[21].zone) == (True, [], "Europe/Berlin")
    counts = schedules.count("many")
    assert sum(one.count for one in counts.counts) == 21
    assert sum(one.paused for one in counts.counts) == 1
    assert counts.unreachable_shards == []
    assert set(counts.counts) <= set(schedules.count().counts)
    again = schedules.put_all(definitions[1:20])
    assert [one.version for one in again] == [1] * 19
    for one in {definition.name for definition in definitions}:
        schedules.delete("many", one)


def test_a_rejected_one_of_many_does_not_affect_the_others(schedules: Schedules) -> None:
    good, other = (ScheduleDefinition(name, Message("some", b"x"), every="1m") for name in ("good", "other"))
    wrong = ScheduleDefinition("wrong", Message("some", b"x"), every="1ms")
    local = ScheduleDefinition("local", Message("some", b"x"))
    outcomes = schedules.put_all([wrong, good, local, other], errors="return")
    assert [type(one).__name__ for one in outcomes] == ["InvalidArgument", "Schedule", "InvalidArgument", "Schedule"]
    with pytest.raises(SomeFailed, match=r"2 of 4 failed; the first, at index 0: .*every_ms") as caught:
        schedules.put_all([wrong, good, local, other])
    assert sorted(caught.value.errors) == [0, 2]
    changed = ScheduleDefinition("good", Message("some", b"y"), every="1m")
    (refused,) = schedules.put_all([changed], create_only=True, errors="return")
    assert isinstance(refused, AlreadyExists)
    assert schedules.put_all([]) == []
    with pytest.raises(InvalidArgument, match="errors"):
        schedules.put_all([good], errors="ignore")  # type: ignore[call-overload]
    for one in schedules.list("some"):
        schedules.delete("some", one.name)


def test_an_interval_may_start_in_1970(schedules: Schedules) -> None:
    start = datetime(1970, 1, 1, 6, tzinfo=UTC)
    for begin in (start, start - timedelta(hours=6)):
        first, second = schedules.preview("x", Message(TOPIC, b""), every="1d", start=begin, count=2)
        assert (first.time(), second - first) == (begin.time(), timedelta(days=1))


def test_wrong_arguments_are_refused(schedules: Schedules) -> None:
    with pytest.raises(InvalidArgument, match="every, at or cron"):
        schedules.put("x", Message(TOPIC, b""))
    with pytest.raises(InvalidArgument, match="every, at or cron"):
        schedules.put("x", Message(TOPIC, b""), every="1m", cron="* * * * *")
    for name, value in {"zone": "Europe/Berlin", "in_gap": "skip", "in_fold": "both"}.items():
        with pytest.raises(InvalidArgument, match=f"{name}: '{value}' is for `cron`, and the schedule has `every`"):
            schedules.put("x", Message(TOPIC, b""), every="1m", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"start: .* is for `every`, and the schedule has `cron`"):
        schedules.preview("x", Message(TOPIC, b""), cron="* * * * *", start=datetime.now(UTC))
    with pytest.raises(TypeError, match="a schedule has no argument 'begin'"):
        schedules.put("x", Message(TOPIC, b""), every="1m", begin=datetime.now(UTC))  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="at_ms: 0 is not within 1 and 256"):
        schedules.put("x", Message(TOPIC, b""), at=[])
    with pytest.raises(InvalidArgument, match="missed"):
        schedules.put("x", Message(TOPIC, b""), every="1m", missed="never")  # type: ignore[typeddict-item]
    with pytest.raises(InvalidMessage, match="time zone"):
        schedules.put("x", Message(TOPIC, b""), at=[datetime(2100, 1, 1)])
    for name, times in ("\ud800", {"every": "1m"}), (5, {"every": "1m"}), ("x", {"cron": "\ud800"}):
        with pytest.raises(InvalidArgument, match="is no text"):
            schedules.put(name, Message(TOPIC, b""), **times)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="every_ms"):
        schedules.put("x", Message(TOPIC, b""), every="1ms")
    with pytest.raises(InvalidArgument, match=r"schedule\.message\.keys"):
        schedules.put("x", Message(TOPIC, b"", key="k"), every="1m")
