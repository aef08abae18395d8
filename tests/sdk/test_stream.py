"""The stream of sends: requests under way in it, what becomes of them when it ends or stands still, and its end."""

import asyncio
from collections import Counter

import grpc
import pytest
from duetime import AsyncProducer, Message, Receipt, Timeout
from duetime.client.connection import Connection
from duetime.client.errors import Unavailable
from duetime.client.sending import delivery, stream
from duetime.client.sending.stream import REQUESTS_UNDER_WAY_MAX, Stream
from duetime.v1 import gateway_pb2

from tests.sdk.fake_gateway import FakeGateway, fail

METHOD = "/duetime.v1.Gateway/SendStream"


def request(*ids: str) -> bytes:
    messages = [{"topic": "orders", "id": one, "body": one.encode()} for one in ids]
    return gateway_pb2.SendRequest(messages=messages).SerializeToString()


def ids_of(answer: gateway_pb2.SendResponse) -> list[str]:
    return [result.message_id for result in answer.results]


async def test_many_requests_are_under_way_in_one_stream_and_each_gets_its_answer(gateway: FakeGateway) -> None:
    gateway.gate = asyncio.Event()
    connection = Connection(gateway.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse)
    asking = [asyncio.create_task(asked.ask(request(str(n)), 10)) for n in range(REQUESTS_UNDER_WAY_MAX + 5)]
    await gateway.arrival(REQUESTS_UNDER_WAY_MAX)
    for _ in range(20):
        await asyncio.sleep(0)
    # The others wait here: a gateway reads no more.
    assert (len(gateway.requests), gateway.streams) == (REQUESTS_UNDER_WAY_MAX, 1)
    gateway.gate.set()
    assert [ids_of(answer) for answer in await asyncio.gather(*asking)] == [[str(n)] for n in range(len(asking))]
    await asked.close()
    await connection.close()


async def test_bytes_under_way_are_bounded(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BYTES_UNDER_WAY_MAX", 2 * len(request("0")))
    gateway.gate = asyncio.Event()
    connection = Connection(gateway.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse)
    asking = [asyncio.create_task(asked.ask(request(str(n)), 10)) for n in range(5)]
    await gateway.arrival(2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(gateway.requests) == 2
    gateway.gate.set()
    await asyncio.gather(*asking)
    await asked.close()
    await connection.close()


async def test_what_has_no_answer_when_the_stream_ends_is_sent_again_and_stored_once(gateway: FakeGateway) -> None:
    gateway.scripts.extend([lambda *_: None, fail(grpc.StatusCode.UNAVAILABLE)])
    async with AsyncProducer(gateway.address) as producer:
        sent = [producer.send_many([Message("orders", b"x")] * 3) for _ in range(8)]
        outcomes = [one for each in await asyncio.gather(*sent) for one in each]
    assert all(isinstance(one, Receipt) for one in outcomes)
    ids = [one.message_id for one in outcomes]
    assert sorted(ids) == sorted(gateway.stored)
    assert sum(map(len, gateway.queues.values())) == len(set(ids)) == 24
    assert any(again.retry for again in gateway.requests)


async def test_a_status_of_one_request_does_no_harm_to_the_others(gateway: FakeGateway) -> None:
    gateway.scripts.extend([fail(grpc.StatusCode.INVALID_ARGUMENT)])
    async with AsyncProducer(gateway.address) as producer:
        many = await asyncio.gather(*[producer.send_many([Message("orders", b"x")]) for _ in range(8)])
    assert all(isinstance(one, Receipt) for each in many for one in each)
    assert sum(map(len, gateway.queues.values())) == 8


async def test_a_server_that_goes_away_and_comes_back_gets_everything_once(gateway: FakeGateway) -> None:
    async with AsyncProducer(gateway.address) as producer:
        await producer.send("orders", b"first")
        sending = [asyncio.create_task(producer.send_many("orders", bodies=[b"x"] * 100)) for _ in range(10)]
        await gateway.arrival(3)
        await gateway.stop()
        await gateway.start()
        outcomes = [one for each in await asyncio.gather(*sending) for one in each]
    assert all(isinstance(one, Receipt) for one in outcomes)
    assert len({one.message_id for one in outcomes}) == 1_000
    assert sum(map(len, gateway.queues.values())) == 1_001


async def test_a_request_that_hangs_fails_alone_and_the_next_takes_another_stream(gateway: FakeGateway) -> None:
    hanging = gateway.gate = asyncio.Event()
    connection = Connection(gateway.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse)
    patient = asyncio.create_task(asked.ask(request("behind"), 10))
    await gateway.arrival(1)
    with pytest.raises(Timeout, match=r"within 0\.05 s"):
        await asked.ask(request("late"), 0.05)
    gateway.gate = None
    assert ids_of(await asked.ask(request("next"), 10)) == ["next"]
    assert gateway.streams == 2
    hanging.set()
    # What else is in the first stream is answered, and then it ends.
    assert ids_of(await patient) == ["behind"]
    async with asyncio.timeout(stream.IDLE_S / 2):
        await gateway.streams_left(1)
    await asked.close()
    await connection.close()


async def test_who_gives_up_takes_nobody_elses_answer(gateway: FakeGateway) -> None:
    gateway.gate = asyncio.Event()
    connection = Connection(gateway.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse)
    first, second, third = [asyncio.create_task(asked.ask(request(one), 10)) for one in "abc"]
    await gateway.arrival(3)
    second.cancel()
    gateway.gate.set()
    assert [ids_of(await first), ids_of(await third)] == [["a"], ["c"]]
    assert gateway.streams == 1
    await asked.close()
    await connection.close()


async def test_an_idle_stream_ends_and_another_begins(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "IDLE_S", 0.02)
    async with AsyncProducer(gateway.address) as producer:
        await producer.send("orders", b"x")
        await gateway.streams_left(0)
        await producer.send("orders", b"y")
    assert [request.retry for request in gateway.requests] == [False, False]


async def test_a_server_without_streams_is_called(gateway: FakeGateway) -> None:
    gateway.knows_no_streams = True
    async with AsyncProducer(gateway.address) as producer:
        for n in range(3):
            await producer.send("orders", str(n).encode())
    # Only the first one was repeated.
    assert [request.retry for request in gateway.requests] == [True, False, False]


async def test_streams_are_tried_again_after_a_while(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.client.connection.OLDER_SERVER_S", 0.0)
    gateway.knows_no_streams = True
    async with AsyncProducer(gateway.address) as producer:
        await producer.send("orders", b"1")
        gateway.knows_no_streams = False
        await producer.send("orders", b"2")
        assert gateway.streams == 1


async def test_close_waits_for_what_is_in_the_stream_and_ends_it(gateway: FakeGateway) -> None:
    gateway.gate = asyncio.Event()
    producer = AsyncProducer(gateway.address)
    sending = asyncio.create_task(producer.send_many("orders", bodies=[b"x"] * 10))
    await gateway.arrival(1)
    closing = asyncio.create_task(producer.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    gateway.gate.set()
    assert (await sending).errors == {}
    await closing
    await gateway.streams_left(0)


async def test_a_stream_that_is_closed_fails_what_is_in_it(gateway: FakeGateway) -> None:
    gateway.gate = asyncio.Event()
    connection = Connection(gateway.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse)
    asking = asyncio.create_task(asked.ask(request("a"), 10))
    await gateway.arrival(1)
    await asked.close()
    with pytest.raises(Unavailable):
        await asking
    await connection.close()


async def test_ordered_messages_stay_in_order_when_streams_end(
    gateway: FakeGateway, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ATTEMPT_TIMEOUT_S", 1.0)
    gateway.scripts.extend([lambda *_: None, fail(grpc.StatusCode.UNAVAILABLE)] * 3)
    messages = [Message("orders", str(n).encode(), queue=0) for n in range(3_000)]
    async with AsyncProducer(gateway.address) as producer:
        outcomes = await producer.send_many(messages)
    offsets = [one.offset for one in outcomes if isinstance(one, Receipt)]
    assert offsets == list(range(3_000))
    assert Counter(request.retry for request in gateway.requests)[True] == 3
