"""SendStream: order of answers, order of records, and how much of a stream is in work at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from duetime.v1 import gateway_pb2

from tests.gateway.conftest import Gateway, TappedStore, error_of, message, real_store, request, until
from tests.tap import WAIT_S


async def read_to_end(call: AsyncIterator[gateway_pb2.SendResponse]) -> list[gateway_pb2.SendResponse]:
    return [response async for response in call]


async def test_answers_come_in_order_and_records_are_stored_in_order(gateway: Gateway) -> None:
    requests = [request(*[message(id=f"{n}-{m}", queue=0) for m in range(7)]) for n in range(100)]
    answers = await read_to_end(gateway.stub.SendStream(iter(requests), timeout=WAIT_S))
    ids = [result.message_id for answer in answers for result in answer.results]
    assert ids == [one.id for sent in requests for one in sent.messages]
    assert [result.offset for answer in answers for result in answer.results] == list(range(700))


async def test_records_keep_their_order_though_their_sizes_differ(gateway: Gateway) -> None:
    sizes = [3_000_000, 1, 2_000_000, 10, 4_000_000, 100] * 5
    requests = [request(message(bytes(size), queue=0)) for size in sizes]
    answers = await read_to_end(gateway.stub.SendStream(iter(requests), timeout=WAIT_S))
    assert [answer.results[0].offset for answer in answers] == list(range(30))


async def test_first_message_to_a_new_topic_is_not_overtaken(gateway: Gateway) -> None:
    requests = [request(message(id="0", topic="new", queue=0))]
    requests += [request(message(id=str(n), topic="new", queue=0)) for n in range(1, 10)]
    answers = await read_to_end(gateway.stub.SendStream(iter(requests), timeout=WAIT_S))
    assert [answer.results[0].offset for answer in answers] == list(range(10))


async def test_at_most_16_requests_of_a_stream_are_in_work(tapped: Gateway, taps: list[TappedStore]) -> None:
    (result,) = await tapped.send(message(queue=0, id="00"))
    tap = taps[result.shard]
    puts = tap.requests["PutStream"]
    size = len(puts.pop().records)
    tap.hold("PutStream", answers=True)

    def in_work() -> float:
        waiting = tapped.metric("duetime_gateway_waiting_bytes", shard=str(tap.shard))
        return (waiting + sum(len(put.records) for put in puts)) / size

    call = tapped.stub.SendStream(iter([request(message(id=f"{n:02}", queue=0)) for n in range(1, 40)]), timeout=60)
    answers = asyncio.ensure_future(read_to_end(call))
    await until(tapped, lambda: in_work() >= 16)
    # Calls that come later are answered, and the stream gets no further.
    for _ in range(50):
        await tapped.stub.ListTopics(gateway_pb2.ListTopicsRequest())
    assert in_work() == 16
    tap.release()
    assert [answer.results[0].message_id for answer in await answers] == [f"{n:02}" for n in range(1, 40)]


async def test_bad_request_ends_the_stream_after_the_answers_before_it(gateway: Gateway) -> None:
    call = gateway.stub.SendStream(
        iter([request(message(id="a")), request(), request(message(id="b"))]), timeout=WAIT_S
    )
    answers = aiter(call)
    assert [result.message_id for result in (await anext(answers)).results] == ["a"]
    error = await error_of(anext(answers))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "messages: 0 messages; a request has 1 to 4096"


async def test_stop_ends_an_idle_stream_at_once(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, drain_ms=60_000) as gateway:
        call = gateway.stub.SendStream()
        await call.write(request(message(id="a")))
        assert [result.message_id for result in (await call.read()).results] == ["a"]
        await gateway.node.stop()
        error = await error_of(call.read())
        assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_disconnected_client_leaves_a_working_gateway(tapped: Gateway, taps: list[TappedStore]) -> None:
    (result,) = await tapped.send(message(queue=0))
    tap = taps[result.shard]
    tap.hold("PutStream")
    call = tapped.stub.SendStream()
    for n in range(5):
        await call.write(request(message(id=str(n), queue=0)))
    await tap.until_waiting("PutStream", 1)
    call.cancel()
    tap.release()
    (result,) = await tapped.send(message(id="after", queue=0))
    assert (result.message_id, result.HasField("fault")) == ("after", False)
