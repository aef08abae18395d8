"""Single sends of threads: alone by a blocking call, or handed to the event loop, with the same results."""

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from duetime import Closed, InvalidArgument, InvalidMessage, Producer, ServerError, Token, Unavailable
from duetime.client.blocking import BlockingMethod
from duetime.client.connection import GatewayConnection
from duetime.client.sending.capacity import Capacity
from duetime.tls import Pems

from tests.blocking import both
from tests.sdk.gateway import SENDS, Gateway, bodies_of, messages_of
from tests.sdk.running import run_python

pytestmark = both


@pytest.fixture(params=["alone", "handed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of a send that nothing else accompanies."""
    if request.param == "handed":
        monkeypatch.setattr(Capacity, "is_unused", property(lambda _: False))
    return str(request.param)


def in_loop(tap: Gateway, action: str) -> None:
    async def within() -> None:
        await tap.stop() if action == "stop" else tap.release() if action == "release" else await tap.start()

    tap.nodes.run(within())


def test_a_send_alone_is_one_call_without_the_event_loop(threaded_tap: Gateway, topic: str) -> None:
    with Producer(threaded_tap.address) as producer:
        first, second = (producer.send(topic, body, key="k", queue=0) for body in (b"1", b"2"))
        assert producer._client._connection._channel is None
        assert ", open)" in repr(producer)
    assert threaded_tap.send_methods == ["Send", "Send"]
    assert (first.offset, second.offset) == (0, 1)


def test_receipt_and_fields_are_the_same(threaded_tap: Gateway, topic: str, way: str) -> None:
    with Producer(threaded_tap.address) as producer:
        receipt = producer.send(topic, b"body", delay="30m", tags="paid", keys=["42"], id="my-id")
        assert producer.send(topic, b"body").deliver_at is None
    assert (receipt.message_id, receipt.topic, receipt.deliver_at is not None) == ("my-id", topic, True)
    (sent,) = messages_of(threaded_tap.sends[0])
    assert (sent.topic, sent.body, sent.tags, list(sent.keys)) == (topic, b"body", "paid", ["42"])
    assert threaded_tap.send_methods[0] == ("Send" if way == "alone" else "SendStream")


@pytest.mark.usefixtures("quick", "way")
def test_a_lost_answer_is_asked_again_with_the_same_id(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.lose_sends(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)
    with Producer(threaded_tap.address) as producer:
        receipt = producer.send(topic, b"once")
    ids = [message.id for request in threaded_tap.sends for message in messages_of(request)]
    assert ids == [receipt.message_id] * 3
    assert threaded_tap.count(topic) == 1


@pytest.mark.usefixtures("quick", "way")
def test_a_retriable_fault_is_retried(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.refuse(0)
    with Producer(threaded_tap.address) as producer:
        producer.send(topic, b"x")
    assert len(threaded_tap.sends) == 2


@pytest.mark.usefixtures("way")
def test_a_final_fault_is_raised_with_the_id(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.refuse(0, reason="TOPIC_INVALID", code=3, retriable=False)
    with Producer(threaded_tap.address) as producer, pytest.raises(InvalidMessage) as caught:
        producer.send(topic, b"x", id="my-id")
    assert caught.value.message_id == "my-id"
    assert len(threaded_tap.sends) == 1


@pytest.mark.usefixtures("quick", "way")
def test_an_unreachable_server_is_retried_until_the_timeout() -> None:
    with (
        Producer("127.0.0.1:1", timeout="1s") as producer,
        pytest.raises(Unavailable, match=r"127.0.0.1:1.*; stopped retrying after \d+ attempts in [01]") as caught,
    ):
        producer.send("orders", b"x", id="my-id")
    assert caught.value.message_id == "my-id"


@pytest.mark.usefixtures("quick", "way")
def test_a_gateway_that_comes_back_gets_the_same_message(threaded_tap: Gateway, topic: str) -> None:
    with Producer(threaded_tap.address, timeout="60s") as producer, ThreadPoolExecutor(1) as threads:
        producer.send(topic, b"before")
        in_loop(threaded_tap, "stop")
        sending = threads.submit(producer.send, topic, b"during")
        in_loop(threaded_tap, "start")
        receipt = sending.result(60)
    assert messages_of(threaded_tap.sends[-1])[0].id == receipt.message_id
    assert threaded_tap.count(topic) == 2


@pytest.mark.usefixtures("way")
def test_invalid_messages_and_closed_producers_send_nothing(threaded_tap: Gateway, topic: str) -> None:
    producer = Producer(threaded_tap.address)
    with pytest.raises(InvalidMessage):
        producer.send("a topic with blanks", b"x")
    producer.close()
    with pytest.raises(Closed):
        producer.send(topic, b"x")
    assert threaded_tap.sends == []


@pytest.mark.usefixtures("way")
def test_close_waits_for_a_send_in_progress(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.hold(*SENDS)
    producer = Producer(threaded_tap.address)
    with ThreadPoolExecutor(3) as threads:
        sending = threads.submit(producer.send, topic, b"x")
        threaded_tap.nodes.run(threaded_tap.until_sends(1))
        closing = threads.submit(producer.close)
        while producer._client._threads._closing is None:
            threading.Event().wait(0.01)
        closing_again = threads.submit(producer.close)
        with pytest.raises(Closed):
            producer.send(topic, b"too late")
        assert not closing.done()
        in_loop(threaded_tap, "release")
        assert sending.result(60).topic == topic
        closing.result(60)
        closing_again.result(60)
    assert bodies_of(threaded_tap.sends) == [b"x"]


def test_a_send_beside_another_is_handed_to_the_loop(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.hold(*SENDS)
    with Producer(threaded_tap.address) as producer, ThreadPoolExecutor(2) as threads:
        alone = threads.submit(producer.send, topic, b"alone")
        threaded_tap.nodes.run(threaded_tap.until_sends(1))
        beside = threads.submit(producer.send, topic, b"beside")
        threaded_tap.nodes.run(threaded_tap.until_sends(2))
        in_loop(threaded_tap, "release")
        assert {alone.result(60).topic, beside.result(60).topic} == {topic}
    assert threaded_tap.send_methods == ["Send", "SendStream"]


def test_an_answer_without_a_result_is_an_error(threaded_tap: Gateway, topic: str) -> None:
    threaded_tap.after["Send"] = lambda _, answer: answer.Clear()
    with Producer(threaded_tap.address) as producer, pytest.raises(ServerError, match="0 results for 1 message"):
        producer.send(topic, b"x")


@pytest.mark.usefixtures("way")
def test_each_call_has_the_current_token(threaded_tap: Gateway, topic: str) -> None:
    tokens = iter(["first", "second"])
    seen: list[str] = []

    def current() -> str:
        seen.append(next(tokens, "later"))
        return seen[-1]

    with Producer(threaded_tap.address, token=Token(current)) as producer:
        producer.send(topic, b"x")
        producer.send(topic, b"y")
    assert seen[0] == "first"


def test_ctrl_c_at_any_moment_of_a_lone_send_leaves_the_producer_usable(threaded_tap: Gateway, topic: str) -> None:
    done = run_python(
        """
        import random, signal
        from duetime import Producer
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        interrupted = 0
        with Producer() as producer:
            for _ in range(60):
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2e-3))
                    producer.send("orders", b"x")
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
            producer.send("orders", b"x")
            print(interrupted > 10, producer._client._connection._channel, len(producer._client._threads._sends))
        """.replace("orders", topic),
        threaded_tap.address,
    )
    assert (done.returncode, done.stdout) == (0, "True None 0\n"), done.stderr


def test_only_the_collector_frees_the_channel(threaded_tap: Gateway, topic: str) -> None:
    """A forked child freezes the collector: it must not free a channel of its parent."""
    producer = Producer(threaded_tap.address)
    producer.send(topic, b"x")
    opened = producer._client._threads._lone._method._open
    assert opened is not None
    freed = weakref.ref(opened.channel)
    gc.disable()
    try:
        producer.close()
        del producer, opened
        assert freed() is not None
    finally:
        gc.enable()
    gc.collect()
    assert freed() is None


def test_replaced_certificates_take_a_new_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Pems(b"ca", None, None), Pems(b"other ca", None, None)
    current = first
    events: list[str] = []

    class Channel:
        def __init__(self, ca: bytes | None) -> None:
            self.ca = ca

        def unary_unary(self, _: str) -> Callable[..., bytes | None]:
            return lambda *_, **__: self.ca

        def close(self) -> None:
            events.append(f"closed {self.ca!r}")

    connection = GatewayConnection("127.0.0.1:1")
    monkeypatch.setattr(GatewayConnection, "pems", property(lambda _: current))
    monkeypatch.setattr(connection, "make_blocking_channel", lambda pems, **_: Channel(pems.ca))
    call = BlockingMethod(connection, "/method")
    assert [call(b"", 1.0), call(b"", 1.0)] == [b"ca", b"ca"]
    assert events == []
    current = second
    assert call(b"", 1.0) == b"other ca"
    assert events == ["closed b'ca'"]


def test_an_unreadable_token_costs_no_connection(threaded_tap: Gateway, topic: str) -> None:
    tokens = iter(["first", "", "third"])
    with Producer(threaded_tap.address, token=Token(lambda: next(tokens))) as producer:
        producer.send(topic, b"x")
        opened = producer._client._threads._lone._method._open
        with pytest.raises(InvalidArgument):
            producer.send(topic, b"y")
        producer.send(topic, b"z")
        assert producer._client._threads._lone._method._open is opened
    assert bodies_of(threaded_tap.sends) == [b"x", b"z"]
