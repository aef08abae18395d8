"""Functions with a schedule: checked when they are decorated, in the eager mode, and on a cluster."""

import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from duetime import App, Context, InvalidArgument, Message, Occurrence, Retry, Schedules
from duetime.client.message import moment
from duetime_core.testing import FakeClock, LocalCluster

from tests.sdk.consuming import consuming, until

# 2023-11-14, a Tuesday, 22:13:20 UTC.
START = datetime.fromtimestamp(FakeClock().now_ms() / 1000, UTC)


def test_function_gets_its_occurrence_in_the_zone() -> None:
    app, runs = App("shop"), list[Occurrence]()

    @app.every("30 2 * * mon-fri", zone="Europe/Berlin")
    def nightly(occurrence: Any) -> None:
        runs.append(occurrence)

    with app.eager(FakeClock()) as eager:
        eager.advance("3d")
        assert eager.pending == []
    # The fourth night is Saturday's.
    planned = [datetime(2023, 11, day, 1, 30, tzinfo=UTC) for day in (15, 16, 17)]
    assert runs == [Occurrence("nightly", one) for one in planned]


@pytest.mark.parametrize("missed", ["one", "all", "skip"])
def test_missed_occurrences_follow_their_policy(missed: Any) -> None:
    app, runs = App("shop"), list[timedelta]()

    @app.every("1h", missed=missed)
    async def hourly(when: Occurrence) -> None:
        runs.append(when.planned_at - START)

    clock = FakeClock()
    with app.eager(clock) as eager:
        eager.advance("1h")
        # Nothing runs meanwhile.
        clock.move(3 * 3_600_000 + 61_000)
        eager.advance("0s")
        eager.advance("1h")
    hours = [one / timedelta(hours=1) for one in runs]
    assert hours == {"one": [1, 2, 5], "all": [1, 2, 3, 4, 5], "skip": [1, 5]}[missed]


def test_failed_occurrence_runs_again_with_an_equal_value_and_the_schedule_continues() -> None:
    app, runs = App("shop"), list[tuple[str, int, float]]()

    @app.every(timedelta(seconds=90), name="poll")
    def poll_all(occurrence: Occurrence, context: Context) -> None:
        runs.append((occurrence.schedule, context.attempt, (occurrence.planned_at - START).total_seconds()))
        if len(runs) == 1:
            raise Retry("1s")
        if len(runs) == 3:
            raise ValueError("broken")

    with app.eager(FakeClock()) as eager:
        eager.advance("91s")
        with pytest.raises(ValueError, match="broken"):
            eager.advance("89s")
        eager.advance("90s")
    assert runs == [("poll", 1, 90), ("poll", 2, 90), ("poll", 1, 180), ("poll", 1, 270)]


async def test_occurrences_run_in_an_event_loop() -> None:
    app, count = App("shop"), 0

    @app.every("@hourly")
    async def tick() -> None:
        nonlocal count
        count += 1

    with app.eager() as eager:
        await eager.aadvance("3h")
    assert count == 3


def test_call_by_hand_has_the_time_of_its_sending() -> None:
    app, runs = App("shop"), list[Occurrence]()

    @app.every("1h")
    def hourly(occurrence: Occurrence, limit: int = 5) -> None:
        runs.append(occurrence)
        assert limit == 7

    with app.eager(FakeClock()):
        hourly.send(limit=7)
        hourly(occurrence=Occurrence("hourly", START), limit=7)
    assert runs == [Occurrence("hourly", START)] * 2


def test_cron_expression_without_the_servers_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop")

    @app.every("0 1 * * *")
    def nightly() -> None: ...

    monkeypatch.setitem(sys.modules, "duetime_core.planning", None)
    with app.eager() as eager:
        nightly.send()
        with pytest.raises(
            InvalidArgument, match=r"nightly: a cron expression in app.eager\(\) needs the server's code"
        ):
            eager.advance("1m")


def test_unknown_zone_and_expression_are_named() -> None:
    app = App("shop")

    @app.every("0 1 * * *", zone="Europe/Berlyn")
    def nightly() -> None: ...

    with app.eager() as eager, pytest.raises(InvalidArgument, match="nightly: unknown time zone 'Europe/Berlyn'"):
        eager.advance("1m")


@pytest.mark.parametrize(
    ("times", "settings", "says"),
    [
        ("500ms", {}, "every: '500ms' is below 1000 ms"),
        (90, {}, "90 has no unit"),
        ("90s", {"zone": "UTC"}, "zone: 'UTC' is for `cron`, and the schedule has `every`"),
        ("90s", {"missed": "never"}, "missed: 'never' is none of skip, one, all"),
        ("* * * * *", {"in_gap": "never"}, "in_gap: 'never' is none of end, skip"),
        ("* * * * *", {"max_attempts": 0}, "max_attempts"),
    ],
)
def test_times_are_checked_when_a_function_is_decorated(times: Any, settings: Any, says: str) -> None:
    app = App("shop")
    with pytest.raises(InvalidArgument, match=says):
        app.every(times, **settings)(lambda: None)
    assert app.tasks == {}


def test_schedule_gives_no_arguments() -> None:
    app = App("shop")

    def nightly(occurrence: str) -> None: ...

    with pytest.raises(InvalidArgument, match="nightly: a schedule does not give 'occurrence': give it a default"):
        app.every("1h")(nightly)

    def occurring(occurrence: int) -> None: ...

    # A task without a schedule may have a parameter of this name.
    assert app.task(occurring).message(3).body == b'{"occurrence":3}'


@pytest.fixture
def app(nodes: LocalCluster, group: str) -> Iterator[App]:
    with App(group, nodes.address) as app:
        yield app


@pytest.fixture
def schedules(nodes: LocalCluster) -> Iterator[Schedules]:
    with Schedules(nodes.address) as schedules:
        yield schedules


@pytest.mark.usefixtures("quick")
async def test_cluster_sends_each_occurrence(app: App, nodes: LocalCluster, schedules: Schedules) -> None:
    runs = list[Occurrence]()

    @app.every("90s", max_attempts=2, retry="1s")
    def poll(occurrence: Any) -> None:
        runs.append(occurrence)
        if len(runs) == 1:
            raise ValueError("again")

    began = moment(nodes.now_ms())
    app.put_schedules()
    app.put_schedules()
    (found,) = schedules.list(app.name)
    assert (found.name, found.version, found.tags) == ("poll", 1, "poll")
    nodes.advance("90s")
    consumer = app.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.retried == 1)
        nodes.advance("2s")
        await until(lambda: consumer.stats.handled == 1)
        schedules.run(app.name, "poll")
        await until(lambda: consumer.stats.handled == 2)
    first, again, extra = runs
    assert first == again == Occurrence("poll", began + timedelta(seconds=90))
    assert extra.schedule == "poll"


async def test_changed_times_are_an_update_and_a_removed_function_is_reported(
    app: App, nodes: LocalCluster, schedules: Schedules, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None: ...

    app.every("90s", name="poll")(work)
    app.every("@daily", name="gone")(work)
    app.put_schedules()
    schedules.put("of-others", Message(app.name, {}), every="1h")
    schedules.pause(app.name, "poll")
    later = App(app.name, nodes.address)
    later.every("2m", name="poll")(work)
    caplog.set_level(logging.INFO, "duetime")
    later.put_schedules()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"schedule gone of {app.name} has no function any more; to end it: "
        f"duetime schedules delete gone --topic {app.name}"
    ]
    assert f"schedule poll of {app.name}: paused" in caplog.messages
    found = {one.name: one for one in schedules.list(app.name)}
    assert found.keys() == {"poll", "gone", "of-others"}
    assert (found["poll"].every, found["poll"].version, found["poll"].paused) == (timedelta(minutes=2), 3, True)


def test_schedule_that_the_server_rejects_ends_the_worker(app: App) -> None:
    app.every("0 25 * * *", name="never")(lambda: None)
    with pytest.raises(InvalidArgument, match="cron expression '0 25"):
        app.run()
