"""Valid handlers: functions that accept a message and do something with it."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from duetime import AsyncProducer, Consumer, InvalidArgument, LeasedMessage, Producer

from tests.sdk.consuming import consuming
from tests.sdk.groups import Groups


def none() -> None: ...


def two(message: LeasedMessage, other: int) -> None: ...


def named_only(*, message: LeasedMessage) -> None: ...


def yields(message: LeasedMessage) -> Iterator[None]:
    yield


async def yields_awaited(message: LeasedMessage) -> AsyncIterator[None]:
    yield


class Handles:
    def method(self, message: LeasedMessage) -> None: ...

    def __call__(self, message: LeasedMessage, other: int) -> None: ...


REFUSED: list[tuple[Any, str]] = [
    (none, r"handler: none\(\) -> None can't be called with \(message\): too many positional arguments"),
    (two, r"handler: two\(.*\) -> None can't be called with \(message\): missing a required argument: 'other'"),
    (named_only, r"named_only\(.*\) -> None can't be called with \(message\)"),
    (Handles.method, r"Handles.method\(.*\) .* missing a required argument: 'message'"),
    (Handles(), r"can't be called with \(message\): missing a required argument: 'other'"),
    (Handles, "Handles is a class, not a function"),
    (yields, "yields is a generator, which would never run"),
    (yields_awaited, "yields_awaited is a generator"),
    (functools.partial(yields), "is a generator"),
    ("settle", "'settle' is str, not a function"),
    (None, "None is NoneType, not a function"),
]


@pytest.mark.parametrize(("function", "says"), REFUSED)
def test_unusable_handler_is_rejected_at_registration(function: Any, says: str) -> None:
    consumer = Consumer(group="billing")
    with pytest.raises(InvalidArgument, match=says):
        consumer.handler("orders")(function)
    assert repr(consumer) == "Consumer(localhost:9800, group='billing', topics=[], stopped)"


@pytest.mark.parametrize(
    "function",
    [
        Handles().method,
        functools.partial(two, other=1),
        lambda *messages: None,
        lambda message, other=None: None,
        print,
    ],
)
def test_any_callable_of_one_message_is_a_handler(function: Callable[..., Any]) -> None:
    assert Consumer(group="billing").handler("orders")(function) is function


@pytest.mark.parametrize(
    ("function", "says"),
    [(none, r"can't be called with \(body\) or \(body, message\): too many"), (two, "")],
)
def test_handler_of_bodies_takes_one_or_both(function: Any, says: str) -> None:
    register = Consumer(group="billing").handler("orders", body=dict)
    if says:
        with pytest.raises(InvalidArgument, match=says):
            register(function)
    else:
        register(function)


def test_decorator_without_its_topic_is_an_error() -> None:
    """It would make the handler's name that of a decorator, and register nothing."""
    with pytest.raises(InvalidArgument, match=r"topic: <function .*handle at .*> is function, not str"):

        @Consumer(group="billing").handler  # type: ignore[arg-type]
        def handle(message: LeasedMessage) -> None: ...


async def test_check_handlers_are_checked_too() -> None:
    async with AsyncProducer() as producer:
        with pytest.raises(InvalidArgument, match=r"check: none\(\) -> None can't be called with \(message\)"):
            producer.check("billing")(none)
    with Producer() as plain, pytest.raises(InvalidArgument, match="check: none"):
        plain.check("billing")(none)


async def test_plain_function_that_returns_a_coroutine_has_failed(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 1)
    consumer = Consumer(groups.address, group=group)

    async def settle(message: LeasedMessage) -> None: ...

    consumer.handler(topic)(lambda message: settle(message))
    async with consuming(consumer):
        await groups.until(lambda: bool(groups.nacks))
    (nack,) = groups.nacks[0].nacks
    assert nack.error.message == "the handler returned a coroutine: make it an `async def`"
