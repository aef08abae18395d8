"""Acknowledged means done: handlers that swallow their end, return work undone, or raise in groups."""

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from duetime import Consumer, LeasedMessage, Middleware, Reject, Retry
from duetime.client.callables import check_returned
from duetime.client.consuming import handling
from duetime.client.consuming.failing import decision_of

from tests.sdk.consuming import consuming
from tests.sdk.groups import Groups
from tests.tap import WAIT_S

pytestmark = pytest.mark.usefixtures("quick")


async def test_a_handler_that_swallows_its_timeout_has_failed(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic, timeout="50ms", backoff="1h")
    async def charge(message: LeasedMessage) -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done"

    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("nack"))
    assert (groups.bodies("ack"), consumer.stats.failed) == ([], 1)


async def test_a_handler_that_ignores_its_timeout_fails_while_it_runs(
    groups: Groups, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling, "CANCEL_S", 0.05)
    await groups.fill(topic, 1)
    consumer, may_end = Consumer(groups.address, group=group), asyncio.Event()

    @consumer.handler(topic, timeout="50ms", backoff="1h")
    async def charge(message: LeasedMessage) -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("nack"))
        assert not may_end.is_set()
        may_end.set()
    assert (groups.bodies("ack"), consumer.stats.failed) == ([], 1)


@pytest.mark.parametrize("ends", ["returns", "is cancelled"])
async def test_a_handler_that_cancels_itself_ends_as_any_other(
    groups: Groups, topic: str, group: str, ends: str
) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic, backoff="1h")
    async def charge(message: LeasedMessage) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError if ends == "returns" else ()):
            await asyncio.sleep(0)

    settled = "ack" if ends == "returns" else "nack"
    async with consuming(consumer):
        await groups.until(lambda: groups.bodies(settled))
    assert [call for call, _ in groups.log if call != "receive"] == [settled]


@pytest.mark.parametrize("how", ["returns", "raises", "rejects"])
async def test_a_handler_that_a_drain_cancels_gives_its_message_back(
    groups: Groups, topic: str, group: str, how: str
) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group, drain="0ms")
    began = asyncio.Event()

    @consumer.handler(topic)
    async def charge(message: LeasedMessage) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if how == "raises":
                raise ValueError("the file is closed") from None
            if how == "rejects":
                raise Reject("no such order") from None

    async with consuming(consumer):
        await began.wait()
    ends = [call for call, _ in groups.log if call != "receive"]
    assert ends == ["dead" if how == "rejects" else "break off"]
    assert consumer.stats.failed == (how == "rejects")


class Later:
    """An awaitable that is no coroutine, as the query of an ORM."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from asyncio.sleep(0).__await__()


async def a_coroutine() -> None:
    pass


async def an_async_generator() -> AsyncIterator[int]:
    yield 1


class Rows:
    """An asynchronous iterator that is no generator, as drivers of databases have."""

    def __aiter__(self) -> "Rows":
        return self

    async def __anext__(self) -> int:
        raise StopAsyncIteration


RETURNED: dict[str, Callable[[], object]] = {
    "awaitable": Later,
    "coroutine": a_coroutine,
    "future": Future,
    "generator": lambda: (n for n in [1]),
    "async generator": an_async_generator,
    "map": lambda: map(str, [1]),
    "filter": lambda: filter(None, [1]),
    "zip of a library": lambda: itertools.zip_longest([1], [2]),
    "async iterator": Rows,
}


@pytest.mark.parametrize("where", ["plain", "async", "before"])
@pytest.mark.parametrize("returned", RETURNED)
async def test_undone_work_that_is_returned_fails_the_message(
    groups: Groups, topic: str, group: str, returned: str, where: str
) -> None:
    await groups.fill(topic, 1)

    def plain(*_: object) -> object:
        return RETURNED[returned]()

    async def coroutine(message: LeasedMessage) -> object:
        return plain()

    class Hook(Middleware):
        before = plain

    middleware = [Hook()] if where == "before" else []
    consumer = Consumer(groups.address, group=group, middleware=middleware)
    function = {"plain": plain, "async": coroutine, "before": lambda message: None}[where]
    consumer.handler(topic, backoff="1h")(function)
    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("nack"))
    assert groups.bodies("ack") == []
    (nack,) = groups.nacks[0].nacks
    assert nack.error.message.startswith("the handler returned ")


async def test_returned_files_cursors_and_containers_are_results(
    groups: Groups, topic: str, group: str, tmp_path: Path
) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)
    with sqlite3.connect(":memory:") as database, (tmp_path / "file").open("w") as file:
        for result in (database.execute("select 1"), file, [1], {"a": 1}, range(3), "text"):
            assert check_returned(result) is result
        consumer.handler(topic, backoff="1h")(lambda message: file)
        async with consuming(consumer):
            await groups.until(lambda: groups.bodies("ack"))
    database.close()


async def test_an_awaitable_of_a_hook_is_awaited(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 1)
    done: list[str] = []

    class Hook(Middleware):
        def before(self, message: LeasedMessage) -> Awaitable[None]:
            return asyncio.ensure_future(self._note())

        async def _note(self) -> None:
            done.append("before")

    consumer = Consumer(groups.address, group=group, middleware=[Hook()])

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        done.append("handler")

    async with consuming(consumer):
        await groups.until(lambda: groups.bodies("ack"))
    assert done == ["before", "handler"]


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_generator_exit_of_a_handler_fails_the_message_and_ends_the_consumer(
    groups: Groups, topic: str, group: str, *, plain: bool
) -> None:
    await groups.fill(topic, 1)
    failed: list[type[BaseException]] = []

    class Hook(Middleware):
        def failed(self, message: LeasedMessage, error: BaseException) -> None:
            failed.append(type(error))

    def leave(message: LeasedMessage) -> None:
        raise GeneratorExit

    async def leave_too(message: LeasedMessage) -> None:
        raise GeneratorExit

    consumer = Consumer(groups.address, group=group, middleware=[Hook()])
    consumer.handler(topic)(leave if plain else leave_too)
    with pytest.raises(GeneratorExit):
        async with asyncio.timeout(WAIT_S):
            await consumer.run_async()
    assert (failed, groups.bodies("nack"), groups.leases) == ([GeneratorExit], [b"0"], {})


@pytest.mark.parametrize(("error", "end"), [(Reject("no such order"), "dead"), (Retry("1h"), "nack")])
async def test_the_decision_of_a_part_counts_in_a_task_group(
    groups: Groups, topic: str, group: str, error: Exception, end: str
) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)

    async def part() -> None:
        raise error

    @consumer.handler(topic, backoff="1s")
    async def handle(message: LeasedMessage) -> None:
        async with asyncio.TaskGroup() as parts:
            parts.create_task(part())

    async with consuming(consumer):
        await groups.until(lambda: groups.bodies(end))
    (nack,) = groups.nacks[0].nacks
    assert (nack.reject, nack.delay_ms) == ((True, 0) if end == "dead" else (False, 3_600_000))


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (ExceptionGroup("", [ValueError("x"), Retry("5s", reason="a"), Retry("1m", reason="b")]), "b"),
        (ExceptionGroup("", [Retry(reason="a"), ExceptionGroup("", [Reject("r"), KeyError("x")])]), "r"),
        (ExceptionGroup("", [Retry(reason="a"), Retry("0s", reason="b")]), "b"),
        (BaseExceptionGroup("", [SystemExit(), Reject("r")]), "r"),
        (ValueError("alone"), "alone"),
    ],
)
def test_a_group_decides_by_its_reject_or_its_longest_retry(group: BaseException, text: str) -> None:
    assert str(decision_of(group)) == text


def test_a_group_of_other_errors_is_the_error_itself() -> None:
    group = ExceptionGroup("both", [ValueError("x"), KeyError("y")])
    assert decision_of(group) is group
