"""Packs: their contents, and the outcome of each message."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import grpc
import pytest
from duetime import AsyncProducer, InvalidMessage, Message, Outcomes, Producer, Receipt, Unavailable
from duetime.client.sending.packs import ALIKE_COUNT_MIN, PACK_BYTES_MAX, PACK_COUNT_MAX
from duetime.v1 import gateway_pb2, message_pb2

from tests.sdk.gateway import SENDS, Gateway, messages_of


def bodies(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(count)]


def ids_of(tap: Gateway) -> list[str]:
    """Ids of the messages that came, in the order of their requests; repeated ones are there once."""
    return list(dict.fromkeys(message.id for request in tap.sends for message in messages_of(request)))


def receipts(outcomes: Iterable[object]) -> list[Receipt]:
    found = [one for one in outcomes if isinstance(one, Receipt)]
    assert len(found) == len(list(outcomes)), outcomes
    return found


def packs_of(tap: Gateway) -> list[gateway_pb2.Pack]:
    return [pack for request in tap.sends for pack in request.packs]


async def test_bodies_travel_as_packs_and_are_answered_one_by_one(tap: Gateway, topic: str) -> None:
    sent = bodies(PACK_COUNT_MAX * 2 + 3)
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many(topic, bodies=sent, tags="paid")
    assert [len(pack.sizes) for pack in packs_of(tap)] == [PACK_COUNT_MAX, PACK_COUNT_MAX, 3]
    assert {(one.topic, one.tags) for one in packs_of(tap)} == {(topic, "paid")}
    assert b"".join(pack.bodies for pack in packs_of(tap)) == b"".join(sent)
    assert outcomes.errors == {}
    assert [one.message_id for one in receipts(outcomes)] == ids_of(tap)
    places = await tap.stored(topic)
    assert [places[one.queue, one.offset].body for one in receipts(outcomes)] == sent


async def test_outcomes_are_a_sequence(tap: Gateway, topic: str) -> None:
    tap.refuse(3, reason="MESSAGE_INVALID", code=3, retriable=False)
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many(topic, bodies=bodies(10), errors="return")
    ids = ids_of(tap)
    assert len(outcomes) == 10
    assert list(outcomes.errors) == [3]
    assert outcomes[3] is outcomes.errors[3] is outcomes[-7]
    assert isinstance(outcomes.errors[3], InvalidMessage)
    assert outcomes.errors[3].message_id == ids[3]
    assert [one.message_id for one in receipts(outcomes[4:])] == ids[4:]
    assert [one.message_id for one in receipts(outcomes[8:5:-1])] == ids[8:5:-1]
    assert [one.message_id for one in outcomes] == ids
    assert [one.message_id for one in reversed(outcomes)] == ids[::-1]
    assert repr(outcomes) == "<Outcomes of 10 messages, 1 errors>"
    for index in (10, -11):
        with pytest.raises(IndexError, match=f"outcome {index} of 10"):
            outcomes[index]


async def test_no_bodies_are_no_outcomes(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many(topic, bodies=[])
    assert isinstance(outcomes, Outcomes)
    assert not outcomes
    assert not tap.sends


def test_a_receipt_of_a_run_names_its_own_message() -> None:
    result = message_pb2.SendResult(message_id="7F0000014D2A9C0FF1E3" + "5B2F00A1C3FF", lane=1000, offset=7, shard=3)
    third = Receipt(result, "orders").after(2)
    named = third._ref()
    assert (named.message_id, named.entry) == ("7F0000014D2A9C0FF1E3" + "5B2F00A1C401", 9)
    assert (named.topic, named.shard, named.lane) == ("orders", 3, 1000)
    assert (third.message_id, third.offset, third.after(1).offset) == (named.message_id, 9, 10)


@pytest.mark.parametrize("indices", [[4], [5, 6, 7], [2, 9, 11]])
async def test_only_the_failed_messages_of_a_pack_are_sent_again_with_their_ids(
    tap: Gateway, topic: str, indices: list[int]
) -> None:
    tap.refuse(*indices)
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many(topic, bodies=bodies(20))
    ids = [one.message_id for one in receipts(outcomes)]
    assert ids == ids_of(tap)
    again = tap.sends[1]
    # Neighbours are a pack again.
    together = len(indices) == indices[-1] - indices[0] + 1
    assert bool(again.packs) is together
    assert len(again.packs[0].sizes if together else again.messages) == len(indices)
    assert [n for n, one in enumerate(receipts(outcomes)) if one.duplicate] == indices


async def test_pack_is_resent_with_the_same_ids_after_a_lost_answer(tap: Gateway, topic: str) -> None:
    tap.lose_sends(grpc.StatusCode.UNAVAILABLE)
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many(topic, bodies=bodies(50))
    first, second = tap.sends
    assert list(first.packs) == list(second.packs)
    assert tap.send_methods == ["SendStream", "Send"]
    assert all(one.duplicate for one in receipts(outcomes))
    assert sum(await tap.counts(topic)) == 50


async def test_unanswered_pack_is_an_error_of_each_message(tap: Gateway, topic: str) -> None:
    await tap.stop()
    async with AsyncProducer(tap.address, timeout="1s") as producer:
        outcomes = await producer.send_many(topic, bodies=bodies(5), errors="return")
    assert len(outcomes.errors) == 5
    assert all(
        isinstance(error, Unavailable) and "stopped retrying after" in error.text for error in outcomes.errors.values()
    )
    assert len({error.message_id for error in outcomes.errors.values()}) == 5


async def test_packs_have_a_mebibyte_or_one_body(tap: Gateway, topic: str) -> None:
    sent = [b"a", bytes(PACK_BYTES_MAX + 1), b"b", bytes(PACK_BYTES_MAX - 1), b"c", b"d"]
    async with AsyncProducer(tap.address) as producer:
        receipts(await producer.send_many(topic, bodies=sent))
    assert sorted(len(pack.sizes) for pack in packs_of(tap)) == [1, 1, 2, 2]


async def test_a_body_that_is_too_large_is_refused_alone(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many(topic, bodies=[b"a", bytes(32 * 1024 * 1024), b"b"], errors="return")
    assert [type(one) for one in outcomes] == [Receipt, InvalidMessage, Receipt]
    assert outcomes.errors[1].text == "body: 33554432 bytes exceed the limit of 4194304"


async def test_common_fields_of_bodies_are_checked_before_sending(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        for wrong in ({"delay": "1x"}, {"delay": "1s", "level": 1}, {"deliver_at": datetime(2026, 1, 1)}, {"tags": 1}):
            with pytest.raises(InvalidMessage):
                await producer.send_many(topic, bodies=[b"x"], **wrong)
        with pytest.raises(TypeError, match="a body is str, not bytes"):
            await producer.send_many(topic, bodies=[b"x", "y"])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="bodies is bytes"):
            await producer.send_many(topic, bodies=b"xyz")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="has no messages"):
            await producer.send_many(topic)
        with pytest.raises(TypeError, match="give either messages"):
            await producer.send_many([Message(topic, b"x")], bodies=[b"x"])
    assert not tap.sends


async def test_a_due_time_travels_in_a_pack(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        await producer.send_many(topic, bodies=[b"x"], deliver_at=datetime(2030, 1, 1, tzinfo=UTC))
        await producer.send_many(topic, bodies=[b"x"], level=3)
    assert [pack.WhichOneof("due") for pack in packs_of(tap)] == ["deliver_at_ms", "delay_level"]


async def test_messages_that_are_alike_become_packs_and_keep_their_places(tap: Gateway, topic: str) -> None:
    messages = [
        *(Message(topic, f"a{n}".encode(), "1s") for n in range(40)),
        *(Message(topic, f"b{n}".encode(), "1s", key="k") for n in range(30)),
        *(Message(topic, f"c{n}".encode(), "2s") for n in range(20)),
        *(Message(topic, f"d{n}".encode()) for n in range(ALIKE_COUNT_MIN - 1)),
    ]
    async with AsyncProducer(tap.address) as producer:
        outcomes = receipts(await producer.send_many(messages))
    assert sorted(len(pack.sizes) for pack in packs_of(tap)) == [20, 40]
    of_id: dict[str, bytes] = {}
    for request in tap.sends:
        of_id |= {message.id: message.body for message in messages_of(request)}
    assert [of_id[one.message_id] for one in outcomes] == [message.body for message in messages]


@pytest.mark.parametrize(
    "own",
    [
        {"keys": ["k"]},
        {"key": "k"},
        {"properties": {"a": "b"}},
        {"sharding_key": "s"},
        {"queue": 0},
        {"id": "A"},
        {"flag": 1},
        {"retry": "max=3"},
        {"expires": "2h"},
        {"replace": True, "key": "k", "delay": "1s"},
        {"replace": True, "key": "k", "delay": "1s", "max_wait": "1h"},
    ],
)
async def test_messages_unfit_for_packs_are_sent_singly(tap: Gateway, topic: str, own: dict[str, object]) -> None:
    async with AsyncProducer(tap.address) as producer:
        await producer.send_many([Message(topic, b"x", **own) for _ in range(20)])  # type: ignore[arg-type]
    assert not packs_of(tap)
    assert [len(request.messages) for request in tap.sends] == [20]


async def test_malformed_messages_that_are_alike_are_refused_each(tap: Gateway, topic: str) -> None:
    good = [Message(topic, b"x") for _ in range(20)]
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many(
            [*good, *(Message(topic, b"x", "1x") for _ in range(20)), *good], errors="return"
        )
    assert [type(one) for one in outcomes] == [Receipt] * 20 + [InvalidMessage] * 20 + [Receipt] * 20


async def test_an_answer_with_too_few_results_is_an_error_of_each(tap: Gateway, topic: str) -> None:
    def shorten(_request: object, answer: gateway_pb2.SendResponse) -> None:
        answer.ranges[0].count = 2

    tap.after["SendStream"] = shorten
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many(topic, bodies=bodies(5), errors="return")
    assert {error.reason for error in outcomes.errors.values()} == {"RESULTS_MISSING"}
    assert len(outcomes.errors) == 5


def test_a_generator_of_bodies_runs_in_the_callers_thread(threaded_tap: Gateway, topic: str) -> None:
    threads = set()

    def made() -> Iterator[bytes]:
        for n in range(5):
            threads.add(threading.current_thread())
            yield str(n).encode()

    with Producer(threaded_tap.address) as producer:
        outcomes = producer.send_many(topic, bodies=made(), delay="1s")
    assert len(receipts(outcomes)) == 5
    assert threads == {threading.current_thread()}


async def test_bodies_wait_for_room_as_messages_do(tap: Gateway, topic: str) -> None:
    tap.hold(*SENDS)
    async with AsyncProducer(tap.address, max_pending=PACK_COUNT_MAX) as producer:
        sending = asyncio.create_task(producer.send_many(topic, bodies=bodies(PACK_COUNT_MAX * 2)))
        await tap.until_sends(1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(tap.sends) == 1
        tap.release()
        assert len(receipts(await sending)) == PACK_COUNT_MAX * 2


async def test_bodies_without_room_are_an_error_each(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address, max_pending=1, timeout="50ms") as producer:
        assert producer._capacity.try_acquire(1, 0)
        outcomes = await producer.send_many(topic, bodies=bodies(3), errors="return")
    assert [error.reason for error in outcomes.errors.values()] == ["TOO_MANY_PENDING"] * 3


def bodies_by_id(tap: Gateway) -> dict[str, bytes]:
    return {message.id: message.body for request in tap.sends for message in messages_of(request)}


async def send_each(producer: AsyncProducer, tap: Gateway, messages: list[Message]) -> None:
    """Sends concurrently; each receipt must be its own message's."""
    got = await asyncio.gather(*map(producer.send_message, messages))
    found = bodies_by_id(tap)
    assert [found[receipt.message_id] for receipt in got] == [message.body for message in messages]


async def test_concurrent_sends_that_are_alike_become_a_pack(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        await send_each(producer, tap, [Message(topic, body, "1s", tags="paid") for body in bodies(50)])
        # The first one of them had none before it to be like.
        assert [len(request.messages) for request in tap.sends] == [50]
        await send_each(producer, tap, [Message(topic, b"+" + body, "1s", tags="paid") for body in bodies(50)])
        last = tap.sends[-1].packs[0]
        assert (len(last.sizes), last.topic, last.tags, last.delay_ms) == (50, topic, "paid", 1000)


async def test_concurrent_sends_keep_their_own_fields(tap: Gateway, topic: str) -> None:
    kinds: list[dict[str, str]] = [{"delay": "1s"}, {"delay": "2s"}, {"tags": "t"}, {"key": "k"}, {"flag": "1"}]
    async with AsyncProducer(tap.address) as producer:
        for turn in range(3):
            messages = []
            for n in range(20):
                at = n * 7 % len(kinds) if turn == 1 else n % 4 and n // 4
                fields = {key: int(value) if key == "flag" else value for key, value in kinds[at].items()}
                messages.append(Message(topic, f"{turn}-{at}-{n}".encode(), **fields))  # type: ignore[arg-type]
            await send_each(producer, tap, messages)
    sent = [message for request in tap.sends for message in messages_of(request)]
    assert len(sent) == 60
    for message in sent:
        kind = kinds[int(message.body.split(b"-")[1])]
        assert message.delay_ms == {"1s": 1000, "2s": 2000}.get(kind.get("delay", ""), 0)
        assert (message.tags, list(message.keys)) == (kind.get("tags", ""), ["k"] if "key" in kind else [])


async def test_changed_properties_of_a_reused_message_are_sent(tap: Gateway, topic: str) -> None:
    message = Message(topic, b"x")
    async with AsyncProducer(tap.address) as producer:
        for _ in range(3):
            await producer.send_message(message)
        message.properties = properties = {}
        await producer.send_message(message)
        properties["a"] = "b"
        await producer.send_message(message)
    assert [dict(messages_of(request)[0].properties) for request in tap.sends] == [{}, {}, {}, {}, {"a": "b"}]
    assert [bool(request.packs) for request in tap.sends] == [False, True, True, True, False]


async def test_a_refused_message_among_gathered_ones_harms_no_other(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        await asyncio.gather(*[producer.send(topic, b"x") for _ in range(3)])
        tap.refuse(1, reason="MESSAGE_INVALID", code=3, retriable=False)
        got = await asyncio.gather(*[producer.send(topic, b"x") for _ in range(3)], return_exceptions=True)
        assert [type(one) for one in got] == [Receipt, InvalidMessage, Receipt]
