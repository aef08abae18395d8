"""The eager mode of an app: tasks run in their test, on the test's clock."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from duetime import (
    App,
    CancelResult,
    Closed,
    LeasedMessage,
    MessageCancelled,
    Middleware,
    Reject,
    Retry,
    Task,
    current,
)
from duetime_core.testing import FakeClock


@pytest.fixture
def app() -> App:
    return App("shop")


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


def test_limited_tasks_run_when_they_are_due(app: App, notes: list[str]) -> None:
    @app.task(per_key=1, rate="1/d")
    def ship(order_id: int, text: str) -> None:
        notes.append(text)

    with app.eager() as eager:
        ship.later("1h", 42, "first")
        ship.with_options(sharding_key="all").later("1h", 42, "second")
        eager.advance("1h")
    assert notes == ["first", "second"]


def test_pending_tasks_are_cancelled_and_replaced(app: App, note: Task[[str], None], notes: list[str]) -> None:
    with app.eager() as eager:
        first = note.later("1h", "first")
        assert note.cancel(first) is CancelResult.CANCELLED
        assert note.cancel(first.message_id) is CancelResult.CANCELLED
        assert note.cancel("unknown") is CancelResult.NOT_FOUND
        assert note.cancel(note.send("now")) is CancelResult.ALREADY_FIRED
        of_ann = note.with_options(key="ann", replace=True)
        before = of_ann.later("1h", "before")
        note.with_options(key="bob", replace=True).later("1h", "of bob")
        assert of_ann.later("2h", "after").replaced_id == before.message_id
        assert note.cancel(before) is CancelResult.CANCELLED
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


def test_id_of_a_withdrawn_call_is_not_used_again(app: App, note: Task[[str], None], notes: list[str]) -> None:
    once = note.with_options(id="one")
    replaced = note.with_options(id="two", key="ann", replace=True)
    with app.eager() as eager:
        once.cancel(once.later("1h", "first"))
        replaced.later("1h", "second")
        note.with_options(key="ann", replace=True).later("1h", "third")
        for call, end in (once, "CANCELLED"), (replaced, "REPLACED"):
            with pytest.raises(MessageCancelled, match=f"was {end.lower()} and is never delivered") as raised:
                call.later("1h", "again")
            assert raised.value.end == end
        eager.advance("1h")
    assert notes == ["third"]


def test_past_due_time_is_now(app: App) -> None:
    due = []

    @app.task
    def note() -> None:
        due.append(current().due_at)

    clock = FakeClock()
    with app.eager(clock):
        receipt = note.at(datetime(2020, 1, 1, tzinfo=UTC))
    assert due == [receipt.deliver_at] == [datetime.fromtimestamp(clock.now_ms() / 1000, UTC)]


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
