"""Tasks: their signatures as messages, direct calls and injected values."""

import asyncio
import contextvars
import functools
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, assert_type, cast
from uuid import UUID

import pytest
from duetime import (
    App,
    Consumer,
    Context,
    Depends,
    InvalidArgument,
    InvalidMessage,
    Receipt,
    Reject,
    Retry,
    Task,
    current,
)
from duetime.client.tasks.eager import EagerMessage
from duetime.v1 import message_pb2
from pydantic import AnyUrl, Field


@dataclass
class Line:
    article: str
    price: Decimal


@pytest.fixture
def app() -> App:
    return App("shop")


# --- arguments --------------------------------------------------------------------------------------------------------


def test_message_names_the_task_and_its_arguments(app: App) -> None:
    @app.task(topic="mail")
    def send_mail(order_id: int, kind: Literal["late", "paid"] = "late", *, lines: list[Line]) -> None: ...

    message = send_mail.message(42, lines=[Line("tea", Decimal("2.50"))])
    assert (message.topic, message.tags) == ("mail", "send_mail")
    assert message.body == b'{"order_id":42,"lines":[{"article":"tea","price":"2.50"}]}'
    assert message.properties == {"content_type": "application/json"}
    assert repr(send_mail) == "Task(send_mail, topic='mail')"
    assert repr(app) == "App(localhost:9800, name='shop', tasks=['send_mail'])"


def test_argument_is_the_sharding_key(app: App) -> None:
    @dataclass
    class Customer:
        name: str

    @app.task(sharding_key="customer")
    def bill(amount: Decimal, customer: Customer | UUID | str | None = "nobody", *, item: int = 0) -> None: ...

    @app.task(topic="mail", per_key=2)
    def send_mail(order_id: int | None, kind: Literal["late", "paid"] = "late") -> None: ...

    @app.task(sharding_key="")
    def free(order_id: int) -> None: ...

    number = UUID(int=1)
    assert bill.message(Decimal(2), "ann").sharding_key == "ann"
    assert bill.message(Decimal(2)).sharding_key == "nobody"
    assert bill.message(Decimal(2), customer=number).sharding_key == str(number)
    assert bill.message(Decimal(2), Customer("ann")).sharding_key == '{"name":"ann"}'
    assert bill.message(Decimal(2), None).sharding_key == ""
    assert bill.with_options(sharding_key="own").message(Decimal(2), "ann").sharding_key == "own"
    assert (send_mail.message(42).sharding_key, send_mail.message(None).sharding_key) == ("42", "")
    assert free.message(42).sharding_key == ""


def test_limits_of_tasks_are_checked_when_they_are_declared(app: App) -> None:
    def work(n: int) -> None: ...

    def idle() -> None: ...

    for options, why in (
        ({"per_key": 0}, "0 is not within 1 and 10000"),
        ({"rate": "fast"}, "'fast' is not a rate such as 50/s"),
        ({"sharding_key": "m"}, "the sharding key 'm' is none of its parameters"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            app.task(**options)(work)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="per_key takes a sharding key, and it has no parameter"):
        app.task(per_key=1)(idle)
    app.task(name="first", rate="50/s", per_key=1)(work)
    with pytest.raises(InvalidArgument, match="rate: None differs from 50/s of the task first: tasks of one topic"):
        app.task(idle)
    with pytest.raises(InvalidArgument, match="per_key: 2 differs from 1 of the task first"):
        app.task(rate="50/s", per_key=2)(work)
    app.task(rate="50/s", name="second")(work)
    app.task(topic="mail")(idle)
    assert [(one.topic, one.rate.count, one.per_key) for one in app.consumer(topics=["mail"]).limits] == [
        ("shop", 50, 1)
    ]
    with pytest.raises(TypeError, match=r"every\(\) has no argument 'per_key'"):
        app.every("1h", per_key=1)  # type: ignore[call-arg]


def test_options_of_a_send_are_those_of_a_message(app: App) -> None:
    @app.task
    def remind(user: str) -> None: ...

    message = remind.with_options(key="ann", replace=True, delay="1h", max_wait="1d", expires="2h").message("ann")
    assert (message.topic, message.key, message.replace, message.expires) == ("shop", "ann", True, "2h")
    assert (message.delay, message.max_wait) == ("1h", "1d")
    assert remind.message("ann").delay is None


@pytest.mark.parametrize(
    ("arguments", "named", "error", "says"),
    [
        ((), {}, TypeError, r"^send_mail\(order_id: int, kind: Literal.*\): missing a required argument: 'order_id'"),
        ((1, "late", 3), {}, TypeError, "too many positional arguments"),
        ((1,), {"color": "red"}, TypeError, "got an unexpected keyword argument 'color'"),
        (("1",), {}, InvalidArgument, "arguments: order_id is a text, not a whole number: send_mail"),
        ((1, "lost"), {}, InvalidArgument, "kind is a text, not one of 'late', 'paid'"),
        ((object(),), {}, InvalidMessage, "has no JSON form: JSON can't hold object"),
    ],
)
def test_wrong_arguments_are_rejected_by_the_send(
    app: App, arguments: Any, named: Any, error: type[Exception], says: str
) -> None:
    @app.task
    def send_mail(order_id: int, kind: Literal["late", "paid"] = "late") -> None: ...

    with app.eager(), pytest.raises(error, match=says):
        send_mail.send(*arguments, **named)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{}", "f(order_id: int, kind: str = 'late') does not take these arguments: order_id is missing"),
        (b'{"order_id":1,"color":"red"}', "color is unknown"),
        (b'{"order_id":"1"}', "order_id is a text, not a whole number"),
        (b'{"order_id":1,"kind":null}', "kind is null, not a text"),
        (b"[1]", "does not take these arguments: the body is not an object"),
        (b"x", "the body can't be read: it is not JSON"),
    ],
)
def test_arguments_of_another_signature_are_rejected_without_a_run(app: App, body: bytes, reason: str) -> None:
    def f(order_id: int, kind: str = "late") -> None:
        raise AssertionError

    task = app.task(f)

    class Sent:
        content_type = ""

    sent: Any = Sent()
    sent.body = body
    with pytest.raises(Reject) as raised:
        task.handler()(sent)
    assert reason in str(raised.value)


def test_abandoned_coroutine_ends_in_another_context(app: App) -> None:
    @app.task
    async def stay() -> None:
        await asyncio.sleep(0)

    class Sent:
        content_type, body = "", b"{}"

    coroutine = stay.handler()(cast("Any", Sent()))
    contextvars.copy_context().run(coroutine.send, None)
    coroutine.close()


def test_values_keep_their_types(app: App) -> None:
    seen = []

    @app.task
    def note(line: Line, when: datetime, maybe: int | None, tags: set[str]) -> None:
        seen.append((line, when, maybe, tags))

    values = (Line("tea", Decimal(2)), datetime(2026, 1, 1, tzinfo=UTC), None, {"a"})
    with app.eager():
        note.send(*values)
    assert seen == [values]


def test_pydantic_takes_types_that_the_rules_of_bodies_do_not_know(app: App) -> None:
    seen = []

    @app.task
    def post(count: Annotated[int, Field(gt=0)], to: AnyUrl) -> None:
        seen.append((count, to))

    to = AnyUrl("https://example.com/hook")
    assert post.message(2, to).body == b'{"count":2,"to":"https://example.com/hook"}'
    with app.eager():
        post.send(2, to)
        with pytest.raises(InvalidArgument, match="count: it: Input should be greater than 0"):
            post.send(0, to)
    assert seen == [(2, to)]


def test_bytes_that_are_no_text_are_rejected_by_the_send(app: App) -> None:
    @app.task
    def post(data: bytes) -> None: ...

    with pytest.raises(InvalidArgument, match=r"arguments: .*utf-8"):
        post.message(b"\xff")


class Adder:
    async def __call__(self, n: int, to: int) -> int:
        return n + to


async def test_partial_and_callable_object_and_static_method_are_tasks(app: App) -> None:
    class Tasks:
        @app.task
        @staticmethod
        async def add(n: int) -> int:
            return n + 1

    adder = app.task(name="adder")(Adder())
    partly = app.task(name="partly")(functools.partial(Adder(), to=2))
    assert (await Tasks.add(1), await adder(1, 2), await partly(1)) == (2, 3, 3)
    for task in (Tasks.add, partly):
        with pytest.raises(InvalidArgument, match="n is a text"):
            task.message("1")


def test_error_names_the_extra_without_pydantic(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)

    def post(to: complex) -> None: ...

    with pytest.raises(InvalidArgument, match=r"post: to: JSON can't hold .*, without duetime\[pydantic\]"):
        app.task(post)


def variadic(*names: str) -> None: ...
def named(**names: str) -> None: ...
def positional(name: str, /) -> None: ...
def unknown(name: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def of_class(name: asyncio.Event) -> None: ...


def yields(name: str) -> Iterator[None]:
    yield


async def connect() -> str:
    return "connection"


def waits(connection: str = Depends(connect)) -> None: ...
def needs(session: str = Depends(cast("Any", positional))) -> None: ...
def method(self: Any, name: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (variadic, r"\*names: str has no name in a message"),
        (named, r"\*\*names: str has no name in a message"),
        (positional, "name: str has no name in a message"),
        (unknown, "an annotation is unknown: name 'Nowhere' is not defined"),
        (of_class, "JSON can't hold"),
        (yields, "is a generator, which would never run"),
        (waits, "connect is asynchronous: make the task an `async def`"),
        (needs, "positional needs an argument: missing a required argument: 'name'"),
        (method, "method: is a method, and a message has no object"),
        (Line, "Line is a class, not a function"),
    ],
)
def test_functions_that_can_not_be_tasks_are_rejected(app: App, function: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        app.task(function)
    assert app.tasks == {}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "a b"}, "name: 'a b' is not one tag"),
        ({"name": "taken"}, "name: taken is a task already"),
        ({"timeout": "30"}, "timeout"),
        ({"retry": "soon"}, "backoff"),
        ({"max_attempts": 0}, "max_attempts: 0 is not within 1 and"),
    ],
)
def test_wrong_options_of_a_task_are_rejected(app: App, options: dict[str, Any], says: str) -> None:
    @app.task(name="taken")
    def first() -> None: ...

    with pytest.raises(InvalidArgument, match=says):
        app.task(**options)(connect)


def test_consumer_needs_tasks_of_its_topics(app: App) -> None:
    with pytest.raises(InvalidArgument, match=r"topics: shop has no task$"):
        app.consumer()
    app.task(topic="mail")(connect)
    with pytest.raises(InvalidArgument, match="topics: shop has no task of the topic male"):
        app.consumer(topics=["male"])
    assert "topics=['mail']" in repr(app.consumer())


# --- calls ------------------------------------------------------------------------------------------------------------


async def test_call_runs_the_function_itself(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    @app.task
    async def triple(n: int) -> int:
        return 3 * n

    assert assert_type(double(2), int) == 4
    assert assert_type(await triple(n=2), int) == 6
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    with app.eager():
        assert_type(double.send(1), Receipt)
        assert_type(await triple.alater("1s", 1), Receipt)
        with pytest.raises(TypeError):
            double.send(1, 2)  # type: ignore[call-arg]
        with pytest.raises(InvalidArgument):
            double.send("1")  # type: ignore[arg-type]


def open_session() -> Iterator[str]:
    events.append("open")
    yield "session"
    events.append("close")


async def open_pool() -> AsyncIterator[int]:
    events.append("open pool")
    yield 5
    events.append("close pool")


events: list[str] = []


async def test_injected_values_are_made_for_each_run(app: App) -> None:
    events.clear()

    @app.task
    def store(row: int, session: str = Depends(open_session)) -> None:
        events.append(f"{row} {session}")

    @app.task
    async def load(
        row: int, *, pool: int = Depends(open_pool), of: str = Depends(connect), session: str = Depends(open_session)
    ) -> None:
        events.append(f"{row} {pool} {of} {session}")

    with app.eager():
        store.send(1)
        await load.asend(2)
    store(3)
    store(4, session="mine")
    expected = ["open", "1 session", "close", "open pool", "open", "2 5 connection session", "close", "close pool"]
    assert events == [*expected, "open", "3 session", "close", "4 mine"]
    assert store.message(1).body == b'{"row":1}'


def open_quietly() -> Iterator[str]:
    try:
        yield "session"
    except Exception as error:
        events.append(f"rolled back: {error!r}")


async def open_quietly_async() -> AsyncIterator[str]:
    try:
        yield "session"
    except Exception as error:
        events.append(f"rolled back: {error!r}")


@pytest.mark.parametrize("error", [RuntimeError("lost"), Retry("1m"), Reject("lost")])
async def test_provider_that_catches_the_error_does_not_hide_it(app: App, error: Exception) -> None:
    @app.task
    def store(session: str = Depends(open_quietly)) -> None:
        raise error

    @app.task
    async def load(session: str = Depends(open_quietly), pool: str = Depends(open_quietly_async)) -> None:
        raise error

    events.clear()
    sent: Any = EagerMessage(message_pb2.StoredMessage(body=b"{}"), 1, None)
    with pytest.raises(type(error)):
        store.handler()(sent)
    with pytest.raises(type(error)):
        await load.handler()(sent)
    assert events == [f"rolled back: {error!r}"] * 3


def test_overrides_replace_providers(app: App) -> None:
    seen = []

    @app.task
    def store(session: str = Depends(open_session)) -> None:
        seen.append(session)

    app.overrides[open_session] = lambda: "fake"
    with app.eager():
        store.send()
    store()
    assert seen == ["fake", "fake"]


def test_limit_of_no_time_is_rejected(app: App) -> None:
    consumer = Consumer(group="shop")
    makers: list[Any] = [app.task, functools.partial(app.every, "1h"), functools.partial(consumer.handler, "mail")]
    for make in makers:
        with pytest.raises(InvalidArgument, match="timeout: '0s' is below 1 ms"):
            make(timeout="0s")
    app.task(name="mail")(lambda: None)
    with pytest.raises(InvalidArgument, match="time_limit"):
        app.consumer(time_limit="0s")


def test_task_knows_its_delivery(app: App) -> None:
    seen: list[Context] = []

    @app.task(timeout="5s")
    def note(context: Context, other: Context = Depends(current)) -> None:  # noqa: B008
        assert context is other is current()
        seen.append(context)

    untyped: Task[..., None] = note
    with app.eager() as eager:
        receipt = untyped.later("1h")
        eager.advance("1h")
    (context,) = seen
    assert (context.task, context.topic, context.message_id) == ("note", "shop", receipt.message_id)
    assert (context.attempt, context.due_at) == (1, receipt.deliver_at)
    assert context.deadline is not None
    with pytest.raises(LookupError, match="no task runs here"):
        current()


def test_send_in_needs_an_outbox(app: App) -> None:
    @app.task
    def note(text: str) -> None: ...

    with pytest.raises(InvalidArgument, match=r"outbox: the app has none: App\(..., outbox=Outbox\(metadata\)\)"):
        note.send_in(None, "text")
