"""The stream of sends: its requests under way, their outcome when it ends or hangs, and its end."""

import asyncio

import grpc
import pytest
from duetime import AsyncProducer, Message, Receipt, Timeout
from duetime.client.connection import GatewayConnection
from duetime.client.errors import Unavailable
from duetime.client.ids import numbered
from duetime.client.sending import stream
from duetime.client.sending.outcomes import errors_of
from duetime.client.sending.packs import Pack, apart, common_of
from duetime.client.sending.stream import REQUESTS_UNDER_WAY_MAX, Stream
from duetime.v1 import gateway_pb2, message_pb2

from tests.sdk.gateway import SENDS, Gateway

METHOD = "/duetime.v1.Gateway/SendStream"


def request(*ids: str) -> bytes:
    messages = [{"topic": "orders", "id": one, "body": one.encode()} for one in ids]
    return gateway_pb2.SendRequest(messages=messages).SerializeToString()


def ids_of(answer: gateway_pb2.SendResponse) -> list[str]:
    return [result.message_id for result in answer.results]


async def test_many_requests_are_under_way_in_one_stream_and_each_gets_its_answer(tap: Gateway) -> None:
    tap.hold(*SENDS)
    connection = GatewayConnection(tap.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse, apart)
    asking = [asyncio.create_task(asked.ask(request(str(n)), 10)) for n in range(REQUESTS_UNDER_WAY_MAX + 5)]
    await tap.until_sends(REQUESTS_UNDER_WAY_MAX)
    for _ in range(20):
        await asyncio.sleep(0)
    # The others wait here: a tap reads no more.
    assert (len(tap.sends), tap.open["SendStream"]) == (REQUESTS_UNDER_WAY_MAX, 1)
    tap.release()
    assert [ids_of(answer) for answer in await asyncio.gather(*asking)] == [[str(n)] for n in range(len(asking))]
    await asked.close()
    await connection.close()


async def test_bytes_under_way_are_bounded(tap: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BYTES_UNDER_WAY_MAX", 2 * len(request("0")))
    tap.hold(*SENDS)
    connection = GatewayConnection(tap.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse, apart)
    asking = [asyncio.create_task(asked.ask(request(str(n)), 10)) for n in range(5)]
    await tap.until_sends(2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(tap.sends) == 2
    tap.release()
    await asyncio.gather(*asking)
    await asked.close()
    await connection.close()


async def test_unanswered_sends_of_an_ended_stream_are_stored_once(tap: Gateway, topic: str) -> None:
    tap.lose_sends(None, grpc.StatusCode.UNAVAILABLE)
    async with AsyncProducer(tap.address) as producer:
        sent = [producer.send_many([Message(topic, b"x")] * 3) for _ in range(8)]
        outcomes = [one for each in await asyncio.gather(*sent) for one in each]
    assert all(isinstance(one, Receipt) for one in outcomes)
    ids = [one.message_id for one in outcomes]
    assert sorted(ids) == sorted(message.id for message in (await tap.stored(topic)).values())
    assert sum(await tap.counts(topic)) == len(set(ids)) == 24
    assert "Send" in tap.send_methods


async def test_a_status_of_one_request_does_no_harm_to_the_others(tap: Gateway, topic: str) -> None:
    tap.lose_sends(grpc.StatusCode.INVALID_ARGUMENT)
    async with AsyncProducer(tap.address) as producer:
        many = await asyncio.gather(*[producer.send_many([Message(topic, b"x")]) for _ in range(8)])
    assert all(isinstance(one, Receipt) for each in many for one in each)
    assert sum(await tap.counts(topic)) == 8


async def test_a_restarted_server_gets_everything_once(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        await producer.send(topic, b"first")
        sending = [asyncio.create_task(producer.send_many(topic, bodies=[b"x"] * 600)) for _ in range(10)]
        await tap.until_sends(3)
        await tap.stop()
        await tap.start()
        outcomes = [one for each in await asyncio.gather(*sending) for one in each]
    assert all(isinstance(one, Receipt) for one in outcomes)
    assert len({one.message_id for one in outcomes}) == 6_000
    assert sum(await tap.counts(topic)) == 6_001


async def test_a_request_that_hangs_fails_alone_and_the_next_takes_another_stream(tap: Gateway) -> None:
    tap.hold(*SENDS)
    connection = GatewayConnection(tap.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse, apart)
    patient = asyncio.create_task(asked.ask(request("behind"), 10))
    await tap.until_sends(1)
    with pytest.raises(Timeout, match=r"within 0\.05 s"):
        await asked.ask(request("late"), 0.05)
    tap.let_pass(*SENDS)
    assert ids_of(await asked.ask(request("next"), 10)) == ["next"]
    assert tap.open["SendStream"] == 2
    tap.release()
    # The other requests in the first stream are answered, and then it ends.
    assert ids_of(await patient) == ["behind"]
    async with asyncio.timeout(stream.IDLE_S / 2):
        await tap.until(lambda: tap.open["SendStream"] == 1)
    await asked.close()
    await connection.close()


async def test_cancelled_caller_takes_no_other_answer(tap: Gateway) -> None:
    tap.hold(*SENDS)
    connection = GatewayConnection(tap.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse, apart)
    first, second, third = [asyncio.create_task(asked.ask(request(one), 10)) for one in "abc"]
    await tap.until_sends(3)
    second.cancel()
    tap.release()
    assert [ids_of(await first), ids_of(await third)] == [["a"], ["c"]]
    assert tap.open["SendStream"] == 1
    await asked.close()
    await connection.close()


async def test_an_idle_stream_ends_and_another_begins(
    tap: Gateway, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "IDLE_S", 0.02)
    async with AsyncProducer(tap.address) as producer:
        await producer.send(topic, b"x")
        await tap.until(lambda: tap.open["SendStream"] == 0)
        await producer.send(topic, b"y")
    assert tap.send_methods == ["SendStream", "SendStream"]


async def test_close_waits_for_requests_in_the_stream_and_ends_it(tap: Gateway, topic: str) -> None:
    tap.hold(*SENDS)
    producer = AsyncProducer(tap.address)
    sending = asyncio.create_task(producer.send_many(topic, bodies=[b"x"] * 10))
    await tap.until_sends(1)
    closing = asyncio.create_task(producer.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    tap.release()
    assert (await sending).errors == {}
    await closing
    await tap.until(lambda: tap.open["SendStream"] == 0)


async def test_closed_stream_fails_its_requests(tap: Gateway) -> None:
    tap.hold(*SENDS)
    connection = GatewayConnection(tap.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse, apart)
    asking = asyncio.create_task(asked.ask(request("a"), 10))
    await tap.until_sends(1)
    await asked.close()
    with pytest.raises(Unavailable):
        await asking
    await connection.close()


async def test_ordered_messages_stay_in_order_when_streams_end(
    tap: Gateway, topic: str, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.client.connection.ATTEMPT_TIMEOUT_S", 1.0)
    tap.lose_sends(*[None, grpc.StatusCode.UNAVAILABLE] * 3)
    messages = [Message(topic, str(n).encode(), queue=0) for n in range(3_000)]
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many(messages)
    offsets = [one.offset for one in outcomes if isinstance(one, Receipt)]
    assert offsets == list(range(3_000))
    assert tap.send_methods.count("Send") == 3


async def test_packs_that_wait_together_travel_together(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        bodies = [[b"%d-%d" % (one, n) for n in range(200)] for one in range(8)]
        sent = [producer.send_many(f"{topic}-{one % 2}", bodies=bodies[one]) for one in range(8)]
        outcomes = await asyncio.gather(*sent)
    # 1,024 messages at most.
    assert [len(request.packs) for request in tap.sends] == [5, 3]
    for one, answered in enumerate(outcomes):
        found = [receipt for receipt in answered if isinstance(receipt, Receipt)]
        assert len(found) == 200
        assert {receipt.topic for receipt in found} == {f"{topic}-{one % 2}"}
        places = await tap.stored(f"{topic}-{one % 2}")
        assert [places[receipt.queue, receipt.offset].id for receipt in found] == [it.message_id for it in found]
    assert len({receipt.message_id for found in outcomes for receipt in found}) == 1_600


async def test_large_packs_and_messages_travel_alone(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        large = [producer.send_many(topic, bodies=[bytes(700_000)]) for _ in range(3)]
        plain = [producer.send_many([Message(topic, b"x", key="k")] * 2) for _ in range(2)]
        await asyncio.gather(*large, *plain)
    assert [(len(request.packs), len(request.messages)) for request in tap.sends] == [(1, 0)] * 3 + [(0, 2)] * 2


async def test_a_fault_of_one_message_reaches_its_own_caller(tap: Gateway, topic: str) -> None:
    tap.refuse(4, reason="MESSAGE_INVALID", code=3, retriable=False)
    async with AsyncProducer(tap.address) as producer:
        first, second = await asyncio.gather(
            *[producer.send_many(topic, bodies=[b"x"] * 3, errors="return") for _ in range(2)]
        )
    assert not errors_of(first)
    assert list(errors_of(second)) == [1]


@pytest.mark.parametrize("counts", [(3, 4), (3, 5), (9,), (3,)])
def test_answer_with_other_numbers_is_rejected(counts: tuple[int, ...]) -> None:
    """A range may continue from one pack to the next."""
    first = message_pb2.SendResult(message_id=numbered("A", 4_094), queue=1, offset=7)
    response = gateway_pb2.SendResponse(ranges=[gateway_pb2.ResultRange(first=first, count=7)])
    parts = list(apart(response, counts))
    packs = [Pack(common_of(Message("orders", b"")), [b""] * count, ("A", 4_094)) for count in counts]
    found = [pack.outcomes(part) for pack, part in zip(packs, parts, strict=True)]
    if counts != (3, 4):
        assert errors_of(found[-1])
        return
    assert not any(map(errors_of, found))
    assert [one.offset for each in found for one in each if isinstance(one, Receipt)] == list(range(7, 14))
    ids = [one.message_id for each in found for one in each if isinstance(one, Receipt)]
    assert ids == [numbered("A", number) for number in range(4_094, 4_101)]


async def test_abandoned_pack_is_not_sent(tap: Gateway, topic: str) -> None:
    connection = GatewayConnection(tap.address)
    asked = Stream(connection, METHOD, gateway_pb2.SendResponse, apart)
    packs = [Pack(common_of(Message(topic, b"")), [b"x"] * 2) for _ in range(3)]
    first, second, third = [asyncio.create_task(asked.ask(pack.request(), 10, 2)) for pack in packs]
    await asyncio.sleep(0)
    second.cancel()
    for pack, answer in ((packs[0], await first), (packs[2], await third)):
        assert [one.message_id for one in pack.outcomes(answer) if isinstance(one, Receipt)] == pack.ids
    assert [len(request.packs) for request in tap.sends] == [2]
    await asked.close()
    await connection.close()
