"""Tasks: their signatures as messages, direct calls, injected values, and the eager mode on a test's clock."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, assert_type

import pytest
from duetime import (
    App,
    CancelResult,
    Closed,
    Context,
    Depends,
    InvalidArgument,
    InvalidMessage,
    LeasedMessage,
    Middleware,
    Receipt,
    Reject,
    Retry,
    Task,
    current,
)
from duetime.client.tasks.eager import EagerMessage
from duetime.v1 import message_pb2
from duetime_core.testing import FakeClock
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


# --- the eager mode ---------------------------------------------------------------------------------------------------


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def note(app: App, notes: list[str]) -> Task[[str], None]:
    @app.task(name="note")
    def add(text: str) -> None:
        notes.append(text)

    return add


def test_tasks_run_in_order_of_their_due_times(app: App, note: Task[[str], None], notes: list[str]) -> None:
    clock = FakeClock()
    with app.eager(clock) as eager:
        note.later("2h", "later")
        note.at(datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(hours=1), "sooner")
        note.send("now")
        assert notes == ["now"]
        assert [message.body for message in eager.pending] == [b'{"text":"sooner"}', b'{"text":"later"}']
        eager.advance("90m")
        assert notes == ["now", "sooner"]
        clock.move(1_800_000)
        eager.advance("0s")
        assert notes == ["now", "sooner", "later"]


def test_pending_tasks_are_cancelled_and_replaced(app: App, note: Task[[str], None], notes: list[str]) -> None:
    with app.eager() as eager:
        first = note.later("1h", "first")
        assert note.cancel(first) is CancelResult.CANCELLED
        assert note.cancel(first.message_id) is CancelResult.NOT_FOUND
        assert note.cancel(note.send("now")) is CancelResult.ALREADY_FIRED
        of_ann = note.with_options(key="ann", replace=True)
        before = of_ann.later("1h", "before")
        note.with_options(key="bob", replace=True).later("1h", "of bob")
        assert of_ann.later("2h", "after").replaced_id == before.message_id
        eager.advance("2h")
    assert notes == ["now", "of bob", "after"]


def test_replaced_task_waits_no_longer_than_its_maximum(app: App, note: Task[[str], None], notes: list[str]) -> None:
    debounced = note.with_options(key="ann", replace=True, max_wait="1h")
    with app.eager() as eager:
        for text in ("first", "second", "third"):
            debounced.later("40m", text)
            eager.advance("20m")
        assert notes == ["third"]
        assert eager.pending == []


def test_repeated_id_runs_once(app: App, note: Task[[str], None], notes: list[str]) -> None:
    once = note.with_options(id="one")
    with app.eager():
        receipts = once.send("first"), once.send("second")
    assert notes == ["first"]
    assert [(one.message_id, one.duplicate) for one in receipts] == [("one", False), ("one", True)]


def test_decision_in_a_group_counts(app: App, notes: list[str]) -> None:
    @app.task
    def fragile(reject: bool) -> None:
        notes.append(f"{current().attempt}")
        if current().attempt == 1:
            raise ExceptionGroup("both", [Reject("no") if reject else ValueError(), Retry("1m")])

    with app.eager() as eager:
        with pytest.raises(Reject, match="no"):
            fragile.send(reject=True)
        fragile.send(reject=False)
        eager.advance("1m")
    assert notes == ["1", "1", "2"]


async def test_unfinished_work_of_a_task_is_an_error(app: App) -> None:
    async def late() -> None: ...

    @app.task
    def plain() -> Any:
        return late()

    @app.task
    async def awaited() -> Any:
        return late()

    with app.eager():
        with pytest.raises(TypeError, match="returned a coroutine"):
            plain.send()
        with pytest.raises(TypeError, match="returned a coroutine"):
            await awaited.asend()


def test_task_sent_by_a_task_runs_after_it(app: App, note: Task[[str], None], notes: list[str]) -> None:
    @app.task
    async def parent() -> None:
        note.send("child")
        await note.asend("second child")
        notes.append("parent")

    with app.eager():
        parent.send()
    assert notes == ["parent", "child", "second child"]


def test_errors_reach_the_caller_and_a_retry_runs_again(app: App, notes: list[str]) -> None:
    @app.task
    def fragile(text: str) -> None:
        notes.append(f"{text} {current().attempt}")
        if text == "bad":
            raise ValueError("no")
        if text == "locked" and current().attempt < 3:
            raise Retry("1m")
        if text == "soon":
            raise Retry

    with app.eager() as eager:
        for text, error in (("bad", ValueError), ("soon", Retry)):
            with pytest.raises(error):
                fragile.send(text)
        fragile.send("locked")
        eager.advance("2m")
    assert notes == ["bad 1", "soon 1", "locked 1", "locked 2", "locked 3"]


async def test_coroutine_in_a_loop_needs_the_asynchronous_twin(app: App, notes: list[str]) -> None:
    @app.task
    async def wait(text: str) -> None:
        await asyncio.sleep(0)
        notes.append(text)

    with app.eager() as eager:
        await wait.asend("now")
        await wait.alater("1h", "in an hour")
        await wait.aat(datetime(2020, 1, 1, tzinfo=UTC), "past")
        assert await wait.acancel(await wait.alater("1h", "never")) is CancelResult.CANCELLED
        await eager.aadvance("1h")
        assert notes == ["now", "past", "in an hour"]
        with pytest.raises(Closed, match=r"an event loop runs here: await asend\(...\)"):
            wait.send("now")


def test_middleware_wraps_eager_tasks(notes: list[str]) -> None:
    class Noting(Middleware):
        def before(self, message: LeasedMessage) -> None:
            notes.append(f"before {message.tags} {message.attempt}")

        def after(self, message: LeasedMessage) -> None:
            notes.append("after")

    app = App("shop", middleware=[Noting()])

    @app.task
    def work() -> None:
        notes.append("work")

    with app.eager():
        work.send()
    assert notes == ["before work 1", "work", "after"]


def test_send_in_needs_an_outbox(app: App, note: Task[[str], None]) -> None:
    with pytest.raises(InvalidArgument, match=r"outbox: the app has none: App\(..., outbox=Outbox\(metadata\)\)"):
        note.send_in(None, "text")
