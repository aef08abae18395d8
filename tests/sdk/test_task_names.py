"""Tasks named by a property of their messages, in place of the tag."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest
from duetime import App, DeadLetters, InvalidArgument, LeasedMessage, Message, Middleware, Producer, Schedules
from duetime.cli.worker import RunningTasks
from duetime.client.tasks.eager import EagerMessage
from duetime.v1 import message_pb2
from duetime_core.testing import LocalCluster

from tests.sdk.consuming import consuming, until


@pytest.mark.parametrize(
    ("named_by", "says"),
    [
        ("", "named_by: the name is empty"),
        ("TAGS", "named_by: TAGS is a system property; use the field tags"),
        ("a\x01", r"named_by: U\+0001 and U\+0002 separate properties"),
        ("content_type", "named_by: content_type has another meaning in messages of tasks"),
        ("duetime_app", "named_by: duetime_app has another meaning"),
    ],
)
def test_property_that_messages_can_not_have_is_rejected(named_by: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        App("shop", named_by=named_by)


def test_own_messages_have_the_name_in_the_property_and_the_tag() -> None:
    app = App("shop", named_by="type")

    @app.task(name="order.paid")
    def paid(order_id: int) -> None: ...

    message = paid.with_options(properties={"region": "eu"}).message(1)
    assert message.tags == "order.paid"
    assert message.properties == {"region": "eu", "type": "order.paid", "content_type": "application/json"}
    assert paid.with_options(properties={"type": "order.paid"}).message(1).properties["type"] == "order.paid"
    with pytest.raises(InvalidArgument, match=r"properties: type is 'order.open', and it names the task order\.paid"):
        paid.with_options(properties={"type": "order.open"}).message(1)


def test_eager_mode_runs_named_tasks_and_schedules() -> None:
    runs: list[str] = []

    class Noting(Middleware):
        def before(self, message: LeasedMessage) -> None:
            runs.append(f"{app.name_of(message)} {message.properties['type']}")

    app = App("shop", named_by="type", middleware=[Noting()])

    @app.task
    def paid(order_id: int) -> None: ...

    @app.every("1h")
    def hourly() -> None: ...

    with app.eager() as eager:
        paid.send(1)
        eager.advance("1h")
    assert runs == ["paid paid", "hourly hourly"]


def test_worker_leaves_named_tasks_in_processes_to_their_time_limit() -> None:
    running = RunningTasks(App("shop", named_by="type").name_of)
    running.hosted = {"render"}
    for name in ("render", "paid"):
        stored = message_pb2.StoredMessage(id=name, properties={"type": name})
        running.before(cast("LeasedMessage", EagerMessage(stored, 1, None)))
    late = running.longer_than(-1)
    assert late is not None
    assert late.id == "paid"


@pytest.fixture
def app(nodes: LocalCluster, group: str) -> Iterator[App]:
    with App(group, nodes.address, named_by="type") as app:
        yield app


@pytest.fixture
def runs(app: App) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []

    @app.task
    async def paid(n: int) -> None:
        found.append(("paid", n))

    @app.task
    def refunded(n: int) -> None:
        found.append(("refunded", n))

    return found


def foreign(app: App, n: int, **options: Any) -> Message:
    return Message(app.name, {"n": n}, **options)


@pytest.mark.usefixtures("quick")
async def test_property_of_a_message_names_its_task_and_the_tag_one_without_it(
    app: App, nodes: LocalCluster, runs: list[tuple[str, int]]
) -> None:
    app.tasks["paid"].send(1)
    # An app of the same tasks without the option: one of another version, for instance.
    other = App(app.name, nodes.address)
    other.task(name="refunded")(app.tasks["refunded"].__wrapped__)
    other.tasks["refunded"].send(2)
    with other, Producer(nodes.address) as producer:
        producer.send_many(
            [
                foreign(app, 3, properties={"type": "refunded"}),
                # The property decides.
                foreign(app, 4, properties={"type": "paid"}, tags="refunded"),
                foreign(app, 5, properties={"type": "refunded"}, tags="eu"),
            ]
        )
    consumer = app.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 5)
    assert sorted(runs) == [("paid", 1), ("paid", 4), ("refunded", 2), ("refunded", 3), ("refunded", 5)]


@pytest.mark.usefixtures("quick")
async def test_unknown_name_is_retried_or_rejected(app: App, nodes: LocalCluster, runs: list[tuple[str, int]]) -> None:
    with Producer(nodes.address) as producer:
        # Its tag is a task's, and its property decides.
        producer.send_message(foreign(app, 1, properties={"type": "lost"}, tags="paid"))
    consumer = app.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.retried == 1)
    strict = App(app.name, nodes.address, named_by="type", unhandled="reject")
    strict.task(name="paid")(app.tasks["paid"].__wrapped__)
    await asyncio.to_thread(nodes.advance, "1h")
    consumer = strict.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.dead == 1)
    with DeadLetters(nodes.address, app.name) as letters:
        (letter,) = letters.list()
    assert letter.error.endswith(f"no handler of {app.name} is for 'lost': there are paid")
    assert letter.properties["type"] == "lost"

    # A worker that has the task takes the dead letter.
    @app.task
    def lost(n: int) -> None:
        runs.append(("lost", n))

    with DeadLetters(nodes.address, app.name) as letters:
        assert len(list(letters.redrive())) == 1
    consumer = app.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 1)
    assert runs == [("lost", 1)]


@pytest.mark.usefixtures("quick")
async def test_occurrence_of_a_schedule_has_the_property(app: App, nodes: LocalCluster) -> None:
    seen: list[tuple[str, str]] = []

    class Noting(Middleware):
        def before(self, message: LeasedMessage) -> None:
            seen.append((message.tags, message.properties["type"]))

    @app.every("1h")
    def hourly() -> None: ...

    await asyncio.to_thread(app.put_schedules)
    await asyncio.to_thread(nodes.advance, "1h")
    consumer = app.consumer(middleware=[Noting()])
    async with consuming(consumer):
        await until(lambda: consumer.stats.handled == 1)
    assert seen == [("hourly", "hourly")]
    with Schedules(nodes.address) as schedules:
        schedules.delete(app.name, "hourly")
