"""Whole numbers among the arguments: other values are named with their range, without a call to the server."""

from collections.abc import Callable
from typing import Any

import pytest
from duetime import (
    Admin,
    App,
    Consumer,
    DeadLetters,
    Finder,
    InvalidArgument,
    Message,
    Producer,
    Puller,
    Receiver,
    Schedules,
    Webhooks,
)

# No server listens there.
SERVER = "127.0.0.1:1"
MESSAGE = Message("t", b"")


def app(**own: Any) -> App:
    found = App("shop", server=SERVER)
    found.task(topic="t", **own)(lambda: None)
    return found


CALLS: dict[str, Callable[[Any], Any]] = {
    "concurrency": lambda value: Consumer(SERVER, group="g").handler("t", concurrency=value),
    "concurrency of checks": lambda value: Producer(SERVER).check("g", concurrency=value),
    "concurrency of tasks": lambda value: app().consumer(concurrency=value),
    "concurrency of webhooks": lambda value: Webhooks(SERVER).create(
        "w", topic="t", group="g", url="https://x", concurrency=value
    ),
    "concurrency of changed webhooks": lambda value: Webhooks(SERVER).update("w", concurrency=value),
    "max_attempts": lambda value: Consumer(SERVER, group="g").handler("t", max_attempts=value),
    "max_attempts of receivers": lambda value: Receiver(SERVER, "t", group="g", max_attempts=value),
    "max_attempts of tasks": lambda value: app(max_attempts=value),
    "max_attempts of groups": lambda value: Admin(SERVER).create_group("g", max_attempts=value),
    "per_key": lambda value: Admin(SERVER).limit_group("g", per_key=value),
    "per_key of tasks": lambda value: app(per_key=value),
    "queues": lambda value: Admin(SERVER).create_topic("t", queues=value),
    "max": lambda value: Receiver(SERVER, "t", group="g").receive(max=value),
    "max of polls": lambda value: Puller(SERVER, "t").poll(max=value),
    "max of found ones": lambda value: Finder(SERVER).find("t", max=value),
    "max of redriven ones": lambda value: [*DeadLetters(SERVER, "g").redrive(max=value)],
    "next_count": lambda value: Schedules(SERVER).get("t", "s", next_count=value),
    "count": lambda value: Schedules(SERVER).preview("s", MESSAGE, every="1m", count=value),
}


@pytest.mark.parametrize("value", [2.5, "8", 0, 2**40])
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_number_is_named_with_its_range(call: str, value: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=rf"^{call.split()[0]}: {value!r} is not (a whole number )?within 1 and \d"
    ):
        CALLS[call](value)
