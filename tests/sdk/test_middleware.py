"""Middleware: calls around handlers, their place and order, and the meaning of their errors."""

import asyncio
import logging
import threading
from typing import Any

import pytest
from duetime import Consumer, InvalidArgument, LeasedMessage, Middleware, Reject, Retry

from tests.sdk.consuming import consuming
from tests.sdk.groups import Groups

pytestmark = pytest.mark.usefixtures("quick")


class Noting(Middleware):
    """Records its calls with their threads, and raises a given error."""

    def __init__(self, name: str, calls: list[tuple[str, bool]], **raises: BaseException) -> None:
        self.name = name
        self.calls = calls
        self.raises = raises

    def note(self, hook: str, message: LeasedMessage) -> None:
        assert message.topic.startswith("orders-")
        self.calls.append((f"{hook} {self.name}", threading.current_thread() is threading.main_thread()))
        if hook in self.raises:
            raise self.raises[hook]

    def before(self, message: LeasedMessage) -> None:
        self.note("before", message)

    def after(self, message: LeasedMessage) -> None:
        self.note("after", message)

    def failed(self, message: LeasedMessage, error: BaseException) -> None:
        self.note("failed", message)
        self.calls.append((f"{type(error).__name__}", True))


class NotingAwaited(Noting):
    async def before(self, message: LeasedMessage) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().before(message)

    async def after(self, message: LeasedMessage) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().after(message)

    async def failed(self, message: LeasedMessage, error: BaseException) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().failed(message, error)


async def run(
    groups: Groups, topic: str, middleware: list[Any], plain: bool, error: BaseException | None = None
) -> None:
    """Handles one message."""
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=f"{topic}-group", middleware=middleware)

    def handle(message: LeasedMessage) -> None:
        if error is not None:
            raise error

    async def handle_awaited(message: LeasedMessage) -> None:
        handle(message)

    consumer.handler(topic)(handle if plain else handle_awaited)
    async with consuming(consumer):
        await groups.until(lambda: bool(groups.bodies("ack") or groups.nacks))


ALL = ["before a", "before b", "after b", "after a"]


@pytest.mark.parametrize("plain", [True, False], ids=["thread", "loop"])
async def test_first_is_outermost_and_all_run_where_the_handler_does(groups: Groups, topic: str, plain: bool) -> None:
    calls: list[tuple[str, bool]] = []
    await run(groups, topic, [Noting("a", calls), Noting("b", calls)], plain)
    assert calls == [(call, not plain) for call in ALL]


async def test_coroutine_functions_are_awaited(groups: Groups, topic: str) -> None:
    calls: list[tuple[str, bool]] = []
    await run(groups, topic, [NotingAwaited("a", calls), Noting("b", calls)], plain=False)
    assert calls == [(call, True) for call in ALL]
    assert groups.bodies("ack") == [b"0"]


@pytest.mark.parametrize("plain", [True, False], ids=["thread", "loop"])
async def test_error_of_a_handler_reaches_all(groups: Groups, topic: str, plain: bool) -> None:
    calls: list[tuple[str, bool]] = []
    await run(groups, topic, [Noting("a", calls), Noting("b", calls)], plain, ValueError("no"))
    names = [call for call, _ in calls]
    assert names == ["before a", "before b", "failed b", "ValueError", "failed a", "ValueError"]
    (nack,) = groups.nacks[0].nacks
    assert (nack.error.type, nack.error.message) == ("ValueError", "no")
    # It starts with the user's code.
    assert "wrapping.py" not in nack.error.trace.split("in handle")[0]


@pytest.mark.parametrize(
    ("hook", "names"),
    [
        ("before", ["before a", "before b", "failed b", "Reject", "failed a", "Reject"]),
        ("after", ["before a", "before b", "after b", "failed b", "Reject", "failed a", "Reject"]),
    ],
)
@pytest.mark.parametrize("plain", [True, False], ids=["thread", "loop"])
async def test_errors_of_middleware_count_as_the_handler_s(
    groups: Groups, topic: str, plain: bool, hook: str, names: list[str]
) -> None:
    calls: list[tuple[str, bool]] = []
    kind = Noting if plain else NotingAwaited
    raising = kind("b", calls, **{hook: Reject("seen before")})
    await run(groups, topic, [Noting("a", calls), raising, *([Noting("c", calls)] if hook == "before" else [])], plain)
    assert [call for call, _ in calls] == names
    (nack,) = groups.nacks[0].nacks
    assert (nack.reject, nack.error.message) == (True, "seen before")


@pytest.mark.parametrize("plain", [True, False], ids=["thread", "loop"])
async def test_error_in_failed_is_logged_and_changes_nothing(
    groups: Groups, topic: str, caplog: pytest.LogCaptureFixture, plain: bool
) -> None:
    calls: list[tuple[str, bool]] = []
    with caplog.at_level(logging.WARNING, "duetime"):
        await run(groups, topic, [Noting("a", calls), Noting("b", calls, failed=KeyError("oops"))], plain, Retry("30s"))
    assert "id-0: Noting.failed: KeyError: 'oops'" in [record.getMessage() for record in caplog.records]
    assert "failed a" in [call for call, _ in calls]
    assert groups.nacks[0].nacks[0].delay_ms == 30_000


async def test_middleware_sees_a_cancelled_handler(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 1)
    calls: list[tuple[str, bool]] = []
    consumer = Consumer(groups.address, group=group, middleware=[NotingAwaited("a", calls)], drain="0s")
    begun = asyncio.Event()

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with consuming(consumer):
        await begun.wait()
    assert [call for call, _ in calls] == ["before a", "failed a", "CancelledError"]


def test_coroutine_functions_around_a_plain_handler_are_refused() -> None:
    consumer = Consumer(group="billing", middleware=[NotingAwaited("a", [])])
    with pytest.raises(InvalidArgument, match=r"NotingAwaited\.before is a coroutine function, and print is not"):
        consumer.handler("orders")(print)


class Short(Middleware):
    def failed(self, message: LeasedMessage) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize(
    ("middleware", "says"),
    [
        (Short(), r"middleware: Short.failed\(.*can't be called with \(message, error\)"),
        (Noting, "is not a Middleware"),
        (print, "is not a Middleware"),
    ],
)
def test_invalid_middleware_is_refused(middleware: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Consumer(group="billing", middleware=[middleware])
