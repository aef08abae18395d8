"""Asynchronous clients in a second event loop: they raise an error, and never hang."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from duetime import (
    AsyncAdmin,
    AsyncDeadLetters,
    AsyncFinder,
    AsyncProducer,
    AsyncPuller,
    AsyncReceiver,
    Consumer,
    Decision,
    LeasedMessage,
    Message,
    WrongLoop,
)

from tests.sdk.gateway import Gateway

WITHIN_S = 60
SAYS = re.escape("make a client in each event loop")

USES: dict[str, tuple[Callable[[str], Any], list[Callable[[Any], Coroutine[Any, Any, Any]]]]] = {
    "producer": (
        AsyncProducer,
        [
            lambda one: one.send("orders", b"x"),
            lambda one: one.send_many([Message("orders", b"x")]),
            lambda one: one.send_many("orders", bodies=[b"x"]),
            lambda one: one.send_batch("orders", [b"x"]),
            lambda one: one.cancel("some-id"),
            lambda one: one.transaction("orders", b"x", group="g").__aenter__(),
            lambda one: one.prepare_many([Message("orders", b"x")], group="g"),
            lambda one: one.end_many([], Decision.COMMIT),
        ],
    ),
    "puller": (lambda server: AsyncPuller(server, "orders"), [lambda one: one.poll(wait="0s"), lambda one: anext(one)]),
    "receiver": (
        lambda server: AsyncReceiver(server, "orders", group="billing"),
        [lambda one: one.receive(wait="0s")],
    ),
    "finder": (AsyncFinder, [lambda one: one.find("orders", "42"), lambda one: anext(one.pending())]),
    "dead letters": (
        lambda server: AsyncDeadLetters(server, "billing"),
        [lambda one: anext(one.list()), lambda one: anext(one.redrive())],
    ),
    "admin": (AsyncAdmin, [lambda one: one.groups()]),
}


def in_new_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def within() -> Any:
        async with asyncio.timeout(WITHIN_S):
            return await work()

    return asyncio.run(within())


@pytest.mark.parametrize("kind", USES)
def test_second_loop_is_an_error(threaded_tap: Gateway, topic: str, kind: str) -> None:
    threaded_tap.nodes.run(threaded_tap.put(topic, b"0"))
    make, uses = USES[kind]
    client = make(threaded_tap.address)

    async def first() -> None:
        # The answer does not matter here: the client has a loop from now on.
        await asyncio.gather(uses[0](client), return_exceptions=True)

    with asyncio.Runner() as runner:
        runner.run(first())
        for use in [*uses, lambda one: one.close()]:
            with pytest.raises(WrongLoop, match=SAYS):
                in_new_loop(lambda use=use: use(client))  # type: ignore[misc]
        runner.run(client.close())


def test_client_made_outside_of_a_loop_belongs_to_the_first_that_uses_it(threaded_tap: Gateway, topic: str) -> None:
    producer = AsyncProducer(threaded_tap.address)

    async def work() -> None:
        async with producer:
            await producer.send(topic, b"x")

    in_new_loop(work)
    assert threaded_tap.count(topic) == 1


def test_client_of_an_ended_loop_gets_an_error_too(threaded_tap: Gateway, topic: str) -> None:
    """Such as one of a module, used by `asyncio.run` twice, with a send on its way when the first ended."""
    producer = AsyncProducer(threaded_tap.address)

    async def abandon() -> None:
        sending = asyncio.ensure_future(producer.send(topic, b"x"))
        await asyncio.sleep(0)
        sending.cancel()

    in_new_loop(abandon)
    with pytest.raises(WrongLoop, match=SAYS):
        in_new_loop(lambda: producer.send(topic, b"y"))


def test_consumer_runs_in_one_loop_after_the_other(threaded_tap: Gateway, topic: str, group: str) -> None:
    threaded_tap.nodes.run(threaded_tap.put(topic, b"0"))
    consumer = Consumer(threaded_tap.address, group=group)
    handled: list[bytes] = []

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        handled.append(message.body)
        consumer.stop()

    in_new_loop(consumer.run_async)
    threaded_tap.nodes.run(threaded_tap.put(topic, b"second"))
    in_new_loop(consumer.run_async)
    assert handled == [b"0", b"second"]
