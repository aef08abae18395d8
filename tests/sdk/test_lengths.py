"""Every length of time is a text with its unit or a timedelta; a bare number is rejected with the form to use."""

from collections.abc import Callable

import pytest
from duetime import (
    AsyncAdmin,
    AsyncDeadLetters,
    AsyncFinder,
    AsyncProducer,
    AsyncPuller,
    AsyncReceiver,
    Consumer,
    InvalidArgument,
    Message,
    Retry,
    to_proto,
)
from duetime.client.lengths import Length
from duetime.outbox import Relay
from sqlalchemy import create_engine

SERVER = "localhost:9800"
TAKERS: dict[str, Callable[[Length], object]] = {
    "delay": lambda length: to_proto(Message("orders", b"x", delay=length)),
    "max_wait": lambda length: to_proto(Message("orders", b"x", delay="1h", key="a", replace=True, max_wait=length)),
    "expires": lambda length: to_proto(Message("orders", b"x", expires=length)),
    "after": Retry,
    "backoff": lambda length: Consumer(SERVER, group="g").handler("orders", backoff=[length]),
    "lease": lambda length: Consumer(SERVER, group="g").handler("orders", lease=length),
    "timeout of a handler": lambda length: Consumer(SERVER, group="g").handler("orders", timeout=length),
    "drain": lambda length: Consumer(SERVER, group="g", drain=length),
    "lease of a receiver": lambda length: AsyncReceiver(SERVER, "orders", group="g", lease=length),
    "long_poll": lambda length: AsyncPuller(SERVER, "orders", long_poll=length),
    "timeout of a producer": lambda length: AsyncProducer(SERVER, timeout=length),
    "timeout of a finder": lambda length: AsyncFinder(SERVER, timeout=length),
    "timeout of an admin": lambda length: AsyncAdmin(SERVER, timeout=length),
    "timeout of dead letters": lambda length: AsyncDeadLetters(SERVER, "g", timeout=length),
    "timeout of a relay": lambda length: Relay(create_engine("sqlite://"), SERVER, timeout=length),
    "window": lambda length: Relay(create_engine("sqlite://"), SERVER, window=length),
    "retention": lambda length: Relay(create_engine("sqlite://"), SERVER, retention=length),
    "keep": lambda length: Relay(create_engine("sqlite://"), SERVER, keep=length),
    "poll": lambda length: Relay(create_engine("sqlite://"), SERVER, poll=length),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_bare_number_is_rejected_with_the_form_to_use(taker: str) -> None:
    for number in (0, 30, 1.5, "30"):
        with pytest.raises(InvalidArgument) as raised:
            TAKERS[taker](number)  # type: ignore[arg-type]
        (violation,) = raised.value.violations
        assert violation.field == taker.split()[0]
        assert violation.description == (
            f"{number!r} has no unit: {number} seconds are '{number}s' or timedelta(seconds={number})"
        )


@pytest.mark.parametrize("length", ["9ms", "31s"])
def test_long_poll_out_of_range_is_rejected(length: str) -> None:
    with pytest.raises(InvalidArgument, match=f"long_poll: '{length}' is not within 10 ms and 30 s"):
        AsyncPuller(SERVER, "orders", long_poll=length)


@pytest.mark.parametrize("taker", TAKERS)
def test_text_with_its_unit_is_accepted(taker: str) -> None:
    TAKERS[taker]("2s")
