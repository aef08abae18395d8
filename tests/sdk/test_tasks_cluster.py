"""Tasks sent to a real cluster and run by their app's consumer."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from duetime import (
    Admin,
    App,
    AsyncReceiver,
    CancelResult,
    Conflict,
    DeadLetters,
    LeasedMessage,
    Middleware,
    Task,
    current,
)
from duetime.client.message import moment
from duetime_core.testing import LocalCluster

from tests.sdk.consuming import consuming, until

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def app(nodes: LocalCluster, group: str) -> Iterator[App]:
    with App(group, nodes.address) as app:
        yield app


@pytest.fixture
def runs() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture
def plain(app: App, runs: list[tuple[str, int, int]]) -> Task[[int], None]:
    @app.task(max_attempts=2, retry="1s")
    def plain(n: int) -> None:
        runs.append(("plain", n, current().attempt))
        if n < 0:
            raise ValueError(n)

    return plain


@pytest.fixture
def awaited(app: App, runs: list[tuple[str, int, int]]) -> Task[[int], None]:
    @app.task(name="awaited")
    async def run(n: int) -> None:
        runs.append(("awaited", n, current().attempt))

    return run  # type: ignore[return-value]


async def test_each_message_runs_the_function_that_it_names(
    app: App, plain: Task[[int], None], awaited: Task[[int], None], runs: list[tuple[str, int, int]]
) -> None:
    receipt = plain.send(1)
    await asyncio.gather(awaited.asend(2), plain.asend(3))
    app.producer.send_many([awaited.message(n) for n in (4, 5)])
    consumer = app.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 5)
    assert sorted(runs) == [("awaited", 2, 1), ("awaited", 4, 1), ("awaited", 5, 1), ("plain", 1, 1), ("plain", 3, 1)]
    assert receipt.topic == app.name


async def test_delayed_tasks_run_at_their_time_unless_cancelled_or_replaced(
    app: App, nodes: LocalCluster, awaited: Task[[int], None], runs: list[tuple[str, int, int]]
) -> None:
    awaited.at(moment(nodes.now_ms()) + timedelta(minutes=30), 1)
    assert awaited.cancel(awaited.later("10m", 2)) is CancelResult.CANCELLED
    assert await awaited.acancel((await awaited.alater("10m", 3)).message_id) is CancelResult.CANCELLED
    keyed = awaited.with_options(key="ann", replace=True)
    first = keyed.later("10m", 4)
    assert (await keyed.alater("20m", 5)).replaced_id == first.message_id
    # A lease would end during the leap, so nothing receives meanwhile.
    await asyncio.to_thread(nodes.advance, "30m")
    consumer = app.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 2)
    assert sorted(runs) == [("awaited", 1, 1), ("awaited", 5, 1)]


async def test_failed_task_runs_again_by_its_own_policy(
    app: App, nodes: LocalCluster, plain: Task[[int], None], runs: list[tuple[str, int, int]]
) -> None:
    plain.send(-1)
    consumer = app.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.retried == 1)
        await asyncio.to_thread(nodes.advance, "2s")
        await until(lambda: consumer.stats.dead == 1)
    assert runs == [("plain", -1, 1), ("plain", -1, 2)]


async def test_attempts_of_dead_processes_count_beside_a_task_without_a_number(
    app: App, nodes: LocalCluster, awaited: Task[[int], None], runs: list[tuple[str, int, int]]
) -> None:
    @app.task(max_attempts=1)
    def once(n: int) -> None:
        runs.append(("once", n, current().attempt))

    once.send(1)
    once.with_options(retry="1s").send(2)
    awaited.send(3)
    async with AsyncReceiver(nodes.address, app.name, group=app.name) as dying:
        await until_received(dying, 3)
    await asyncio.to_thread(nodes.advance, "61s")
    consumer = app.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled + consumer.stats.dead == 3)
    # The message with a policy of its own has the group's number.
    assert sorted(runs) == [("awaited", 3, 2), ("once", 2, 2)]
    with DeadLetters(nodes.address, app.name) as letters:
        (letter,) = letters.list()
    assert letter.error.endswith("attempt 2 exceeds max_attempts 1")


async def until_received(receiver: AsyncReceiver, count: int) -> None:
    while count > 0:
        count -= len(await receiver.receive())


async def test_changed_signature_makes_a_dead_letter_with_its_reason(
    app: App, nodes: LocalCluster, plain: Task[[int], None]
) -> None:
    plain.send(1)
    newer = App(app.name, nodes.address)

    @newer.task(name="plain", max_attempts=8)
    def grown(n: int, color: str) -> None:
        raise AssertionError

    consumer = newer.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.dead == 1)
    with DeadLetters(nodes.address, app.name) as letters:
        (letter,) = letters.list()
    assert letter.error.endswith("grown(n: int, color: str) does not take these arguments: color is missing")
    assert len(letter.attempts) == 1


async def test_task_of_a_newer_version_waits_for_its_worker(
    app: App, nodes: LocalCluster, plain: Task[[int], None], runs: list[tuple[str, int, int]]
) -> None:
    older = App(app.name, nodes.address)

    @older.task
    def other() -> None: ...

    plain.send(1)
    consumer = older.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.retried == 1)
    await asyncio.to_thread(nodes.advance, "1h")
    consumer = app.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 1)
    assert runs == [("plain", 1, 2)]


@pytest.mark.parametrize(("time_limit", "lease"), [("1s", 60), ("2m", 270), ("24h", 43_200)])
async def test_lease_outlasts_the_time_limit(
    app: App, nodes: LocalCluster, plain: Task[[int], None], time_limit: str, lease: int
) -> None:
    ends: list[float] = []

    class Noting(Middleware):
        def before(self, message: LeasedMessage) -> None:
            ends.append(message.lease_ends_at.timestamp())

    plain.send(1)
    began_s = nodes.now_ms() // 1000
    consumer = app.consumer(time_limit=time_limit, middleware=[Noting()])
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 1)
    assert began_s + lease <= ends[0] <= nodes.now_ms() / 1000 + lease


async def test_deadline_keeps_the_time_limit_of_the_worker(app: App) -> None:
    seen: list[timedelta] = []

    @app.task(timeout="1h")
    def note() -> None:
        deadline = current().deadline
        assert deadline is not None
        seen.append(deadline - datetime.now(UTC))

    note.send()
    consumer = app.consumer(time_limit="30m")
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 1)
    assert timedelta(0) < seen[0] <= timedelta(minutes=30)


def test_closed_app_connects_again(app: App, plain: Task[[int], None]) -> None:
    plain.send(1)
    before = app.producer
    app.close()
    assert plain.send(2).topic == app.name
    assert app.producer is not before


async def test_calls_of_one_key_run_one_at_a_time_in_order_at_two_workers(app: App, nodes: LocalCluster) -> None:
    began, ended, go = list[tuple[str, int]](), list[tuple[str, int]](), asyncio.Event()

    @app.task(per_key=1, sharding_key="customer")
    async def bill(customer: str, n: int) -> None:
        began.append((customer, n))
        await go.wait()
        ended.append((customer, n))

    calls = [("ann", n) for n in range(5)] + [("ben", n) for n in range(5)]
    for call in calls:
        await bill.asend(*call)
    first, second = app.consumer(), app.consumer()
    async with consuming(first), consuming(second):
        await until(lambda: len(began) == 2)
        # A message without a key overtakes the waiting ones.
        await app.tasks["bill"].with_options(sharding_key="").asend("nobody", 0)
        await until(lambda: len(began) == 3)
        assert sorted(began) == [("ann", 0), ("ben", 0), ("nobody", 0)]
        go.set()
        await until(lambda: len(ended) == 11)
    for customer in ("ann", "ben"):
        assert [one for one in ended if one[0] == customer] == [one for one in calls if one[0] == customer]


async def test_worker_declares_the_limits_of_its_tasks(app: App, nodes: LocalCluster) -> None:
    def work(n: int) -> None: ...

    def limits() -> list[tuple[str, str | None, int | None, bool]]:
        found = admin.group(app.name).group.limits
        return [(one.topic.removeprefix(app.name), one.rate, one.per_key, one.declared) for one in found]

    app.task(rate="50/s", per_key=2)(work)
    app.task(topic=f"{app.name}-mail", name="mail", per_key=1)(work)
    with Admin(nodes.address) as admin:
        async with consuming(app.consumer(topics=[app.name])):
            assert limits() == [("", "50/s", 2, True), ("-mail", None, 1, True)]
        admin.create_topic(app.name)
        admin.limit_group(app.name, "1/s", topic=app.name)
        changed = App(app.name, nodes.address)
        changed.task(per_key=3)(work)
        async with consuming(changed.consumer()):
            assert limits() == [("", None, 3, True), ("", "1/s", None, False)]
        plain = App(app.name, nodes.address)
        plain.task(work)
        async with consuming(plain.consumer()):
            assert limits() == [("", "1/s", None, False)]


async def test_worker_of_an_ordered_group_cannot_limit_keys(app: App, nodes: LocalCluster) -> None:
    with Admin(nodes.address) as admin:
        admin.create_group(app.name, ordered=True)

    @app.task(per_key=1)
    def work(n: int) -> None: ...

    with pytest.raises(Conflict, match="is ordered"):
        async with consuming(app.consumer()):
            pass
