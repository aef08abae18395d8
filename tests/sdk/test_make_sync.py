"""The synchronous clients equal the generator's output for the asynchronous ones, and have the same interface."""

import inspect
import threading
from collections.abc import Iterator

import duetime
import pytest
from duetime import Message, Producer, Receiver

from sdk import make_sync
from tests.sdk.gateway import Gateway

TWINS = [(source.twin, source.name) for source in make_sync.SOURCES]


def public_members(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(function: object) -> list[tuple[object, ...]]:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    return [(one.name, one.kind, one.default, one.annotation) for one in signature.parameters.values()]


def test_the_generated_module_is_current() -> None:
    assert make_sync.GENERATED.read_text() == make_sync.generate(), "run `make sync`"


def test_every_asynchronous_client_has_a_twin() -> None:
    assert sorted(name for _, name in TWINS) == sorted(name for name in duetime.__all__ if name.startswith("Async"))


@pytest.mark.parametrize(("twin", "original"), TWINS)
def test_twins_have_the_same_members_and_parameters(twin: str, original: str) -> None:
    plain, asynchronous = getattr(duetime, twin), getattr(duetime, original)
    assert public_members(plain) == public_members(asynchronous)
    if plain.__name__ not in make_sync.MADE.values():
        assert parameters(plain.__init__) == parameters(asynchronous.__init__)
    for name in public_members(plain):
        ours, theirs = inspect.getattr_static(plain, name), inspect.getattr_static(asynchronous, name)
        assert inspect.getdoc(ours) == inspect.getdoc(theirs)
        if not isinstance(ours, property):
            assert not inspect.iscoroutinefunction(ours)
            assert parameters(ours) == parameters(theirs)


@pytest.mark.parametrize(("twin", "original"), TWINS)
def test_a_twin_names_its_permitted_threads(twin: str, original: str) -> None:
    text = inspect.getdoc(getattr(duetime, twin)) or ""
    assert f"`{original}` is for event loops." in text
    assert "For one event loop" not in text


def test_iterables_of_the_caller_are_iterated_over_in_its_thread(threaded_tap: Gateway, topic: str) -> None:
    threads: set[threading.Thread] = set()

    def noting(items: list[object]) -> Iterator[object]:
        for item in items:
            threads.add(threading.current_thread())
            yield item

    with Producer(threaded_tap.address) as producer:
        producer.send_many(noting([Message(topic, b"a"), Message(topic, b"b")]))  # type: ignore[arg-type]
    with Receiver(threaded_tap.address, topic, group="billing") as receiver:
        messages = receiver.receive(wait="30s")
        assert messages
        assert receiver.ack(noting(messages)) == []  # type: ignore[arg-type]
    assert threads == {threading.current_thread()}
