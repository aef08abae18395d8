"""Producers: batches, ids, retries, refusals, bounds."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import grpc
import pytest
from duetime import (
    AsyncProducer,
    Closed,
    InvalidArgument,
    InvalidMessage,
    Message,
    Overloaded,
    Receipt,
    SomeFailed,
    Timeout,
    Unavailable,
)
from duetime.client.message import moment
from duetime.client.sending.batch import REQUEST_BYTES_MAX, REQUEST_COUNT_MAX

from tests.sdk.gateway import SENDS, Gateway, bodies_of, messages_of


async def passes() -> None:
    """Lets the event loop, and the servers on it, finish their ready work."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_sent_message_arrives_with_all_its_fields(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        receipt = await producer.send(
            topic, b"cancel 42", delay="30m", tags="timeout", keys=["42", "43"], properties={"a": "b"},
            sharding_key="42", queue=1, flag=7,
        )  # fmt: skip
    (message,) = tap.sends[0].messages
    assert (message.topic, message.body, message.delay_ms) == (topic, b"cancel 42", 1_800_000)
    assert (message.tags, list(message.keys), dict(message.properties)) == ("timeout", ["42", "43"], {"a": "b"})
    assert (message.sharding_key, message.queue, message.flag) == ("42", 1, 7)
    assert message.born_at_ms > 0
    assert receipt.message_id == message.id
    assert receipt.deliver_at == moment(tap.nodes.now_ms() + 1_800_000)
    assert (receipt.topic, receipt.queue, receipt.lane, receipt.duplicate) == (topic, 1, 16, False)


async def test_a_message_without_delay_has_no_due_time(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        receipt = await producer.send(topic, b"")
    assert tap.sends[0].messages[0].WhichOneof("due") is None
    assert (receipt.deliver_at, receipt.lane, receipt.requested_level) == (None, None, None)


@pytest.mark.parametrize(
    ("fields", "due", "value"),
    [
        ({"delay": "5s"}, "delay_ms", 5_000),
        ({"delay": "1d"}, "delay_ms", 86_400_000),
        ({"delay": timedelta(minutes=2)}, "delay_ms", 120_000),
        ({"delay": timedelta(0)}, "delay_ms", 0),
        ({"delay": timedelta(microseconds=1500)}, "delay_ms", 2),
        ({"delay": timedelta(days=1, microseconds=1)}, "delay_ms", 86_400_001),
        ({"delay": "1h30m"}, "delay_ms", 5_400_000),
        ({"delay": "1d2h3m4s5ms"}, "delay_ms", 93_784_005),
        ({"delay": "90s"}, "delay_ms", 90_000),
        ({"delay": "500ms"}, "delay_ms", 500),
        ({"delay": "0s"}, "delay_ms", 0),
        ({"delay": "1.5s"}, "delay_ms", 1_500),
        ({"delay": "2w"}, "delay_ms", 1_209_600_000),
        ({"deliver_at": datetime(2026, 12, 24, 18, tzinfo=UTC)}, "deliver_at_ms", 1_798_135_200_000),
        (
            {"deliver_at": datetime(2026, 12, 24, 19, 0, 0, 1, timezone(timedelta(hours=1)))},
            "deliver_at_ms",
            1_798_135_200_001,
        ),
        ({"level": 16}, "delay_level", 16),
    ],
)
async def test_delays_travel_as_milliseconds_or_level(
    tap: Gateway, topic: str, fields: dict[str, object], due: str, value: int
) -> None:
    async with AsyncProducer(tap.address) as producer:
        await producer.send(topic, b"x", **fields)  # type: ignore[arg-type]
    message = tap.sends[0].messages[0]
    assert (message.WhichOneof("due"), getattr(message, due)) == (due, value)


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"delay": "1x"}, "delay", "'1x' is neither a length such as '1h30m', '90s', '500ms' or '2w', nor a timedelta"),
        ({"delay": "1.5ms"}, "delay", "'1.5ms' is not a whole number of milliseconds"),
        ({"delay": "30m1h"}, "delay", "'30m1h' is neither"),
        ({"delay": "-5s"}, "delay", "'-5s' is negative"),
        ({"delay": "٣s"}, "delay", "is neither a length"),
        ({"delay": ""}, "delay", "''"),
        ({"delay": -5}, "delay", "-5 is negative"),
        ({"delay": timedelta(seconds=-1)}, "delay", "is negative"),
        ({"deliver_at": datetime(2026, 12, 24, 18)}, "deliver_at", "has no time zone: give it one"),
        ({"deliver_at": datetime(1960, 1, 1, tzinfo=UTC)}, "deliver_at", "is before 1970"),
        ({"deliver_at": 5}, "deliver_at", "5 is not a datetime"),
        (
            {"deliver_at": datetime(2026, 1, 1, tzinfo=UTC), "delay": "5s"},
            "deliver_at",
            "beside a delay or level; give one",
        ),
        (
            {"deliver_at": datetime(2026, 1, 1, tzinfo=UTC), "level": 0},
            "deliver_at",
            "beside a delay or level; give one",
        ),
        ({"replace": True, "key": "a", "delay": "5s", "max_wait": "1x"}, "max_wait", "'1x' is neither"),
        ({"delay": "5s", "level": 2}, "delay", "is '5s' and level is 2; give one"),
        ({"delay": True}, "delay", "True is neither a length such as"),
        ({"delay": "999999999999d"}, "delay", r"exceeds the limit of 3660d \(ten years\)"),
        ({"delay": []}, "delay", r"\[\] is neither"),
        ({"max_wait": "999999999999d", "replace": True, "key": "a", "delay": "5s"}, "max_wait", "exceeds the limit of"),
        ({"expires": "0s"}, "expires", "'0s' is below 1 ms"),
        ({"expires": "999999999999d"}, "expires", "exceeds the limit of"),
        ({"level": 2**31}, "level", "out of range"),
        ({"level": "2"}, "level", "'str' object"),
        ({"topic": "\ud800"}, "topic", "holds characters other than"),
        ({"queue": 1.5}, "queue", "'float' object"),
        ({"properties": {"a": 1}}, "properties['a']", "1 is int, not str"),
        ({"key": 5}, "keys[0]", "5 is int, not str"),
        ({"topic": b"orders", "body": "x"}, "topic", "b'orders' is bytes, not str"),
        ({"tags": b"a"}, "tags", "b'a' is bytes, not str"),
        ({"keys": [b"42"]}, "keys[0]", "b'42' is bytes, not str"),
        ({"id": b"42"}, "id", "b'42' is bytes, not str"),
        ({"properties": {"a": b"1"}}, "properties['a']", "b'1' is bytes, not str"),
        ({"sharding_key": b"a"}, "sharding_key", "b'a' is bytes, not str"),
    ],
)
async def test_malformed_message_is_rejected_before_the_send(
    tap: Gateway, topic: str, fields: dict[str, object], field: str, text: str
) -> None:
    async with AsyncProducer(tap.address) as producer:
        with pytest.raises(InvalidMessage, match=text) as caught:
            await producer.send(**({"topic": topic, "body": b"x"} | fields))  # type: ignore[arg-type]
    assert caught.value.violations[0].field == field
    assert caught.value.message_id
    assert not tap.sends


async def test_a_message_may_replace_another(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        await producer.send(topic, b"x", delay="5s", key="42", replace=True, max_wait="1m")
        await producer.send(topic, b"x", key="1", keys=["2"])
    first, second = (request.messages[0] for request in tap.sends)
    assert (first.replace, list(first.keys), first.max_wait_ms) == (True, ["42"], 60_000)
    assert (second.replace, list(second.keys), second.max_wait_ms) == (False, ["1", "2"], 0)


async def test_messages_that_replace_others_do_not_overtake_each_other(tap: Gateway, topic: str) -> None:
    # A request is flushed as often as one of its keys occurs.
    messages = [
        Message(topic, b"%d" % n, delay="5s", key=f"{n % 256}", replace=True) for n in range(3 * REQUEST_COUNT_MAX)
    ]
    tap.hold(*SENDS)
    async with AsyncProducer(tap.address) as producer:
        sending = asyncio.create_task(producer.send_many(messages))
        await tap.until_sends(1)
        await passes()
        assert len(tap.sends) == 1
        tap.release()
        await sending


def test_a_body_of_another_kind_or_text_keys_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="body is int, not bytes, str, dict"):
        Message("orders", 42)
    with pytest.raises(TypeError, match=r"keys=\['42'\]"):
        Message("orders", b"", keys="42")


async def test_errors_are_raised_or_returned(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        with pytest.raises(InvalidArgument, match="errors: 'ignore' is neither 'raise' nor 'return'"):
            await producer.send_many([Message(topic, b"x")], errors="ignore")  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument, match="errors: 'ignore' is neither 'raise' nor 'return'"):
            await producer.cancel(["a"], errors="ignore")  # type: ignore[call-overload]
    assert not tap.sends


async def test_send_many_answers_each_message_in_order(tap: Gateway, topic: str) -> None:
    messages = [Message(topic, str(n).encode(), queue=n % 2) for n in range(REQUEST_COUNT_MAX * 3 + 10)]
    messages[700].delay = "1x"
    async with AsyncProducer(tap.address) as producer:
        with pytest.raises(SomeFailed) as raised:
            await producer.send_many(messages)
    outcomes = raised.value.outcomes
    assert raised.value.reason == "SOME_FAILED"
    assert str(raised.value).startswith("1 of 1,546 failed; the first, at index 700: delay: '1x' is neither a length")
    assert raised.value.errors == {700: outcomes[700]}
    assert raised.value.__cause__ is outcomes[700]
    assert isinstance(outcomes[700], InvalidMessage)
    # They name their queues, so that no request overtakes another.
    assert [len(request.messages) for request in tap.sends] == [512, 511, 512, 10]
    assert bodies_of(tap.sends) == [message.body for message in messages if message is not messages[700]]
    bodies = {m.id: m.body for request in tap.sends for m in request.messages}
    for n, outcome in enumerate(outcomes):
        if n != 700:
            assert isinstance(outcome, Receipt)
            assert bodies[outcome.message_id] == str(n).encode()


async def test_send_many_of_nothing_is_nothing(tap: Gateway) -> None:
    async with AsyncProducer(tap.address) as producer:
        assert await producer.send_many([]) == []
    assert not tap.sends


async def test_an_error_of_the_callers_generator_keeps_its_name(tap: Gateway) -> None:
    def messages() -> "list[Message]":
        raise KeyError("mine")

    async with AsyncProducer(tap.address) as producer:
        with pytest.raises(KeyError, match="mine"):
            await producer.send_many(messages() for _ in range(3))  # type: ignore[misc]


async def test_requests_stay_below_four_mebibytes(tap: Gateway, topic: str) -> None:
    big = Message(topic, bytes(1_500_000))
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many([big] * 5)
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    assert sorted(len(request.messages) for request in tap.sends) == [1, 2, 2]
    assert all(request.ByteSize() <= REQUEST_BYTES_MAX for request in tap.sends)


async def test_concurrent_sends_share_requests(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        receipts = await asyncio.gather(*[producer.send(topic, str(n).encode()) for n in range(100)])
    assert len({receipt.message_id for receipt in receipts}) == 100
    assert [len(messages_of(request)) for request in tap.sends] == [100]


async def test_sends_gather_while_two_requests_are_in_flight(tap: Gateway, topic: str) -> None:
    tap.hold(*SENDS)
    async with AsyncProducer(tap.address) as producer, asyncio.TaskGroup() as senders:
        for count in (1, 2):
            senders.create_task(producer.send(topic, b"x"))
            await tap.until_sends(count)
        for _ in range(600):
            senders.create_task(producer.send(topic, b"x"))
        await passes()
        assert len(tap.sends) == 2
        tap.release()
    assert [len(messages_of(request)) for request in tap.sends] == [1, 1, 512, 88]


async def test_a_lost_answer_is_asked_for_again_with_the_same_id(tap: Gateway, topic: str) -> None:
    tap.lose_sends(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
    async with AsyncProducer(tap.address) as producer:
        receipt = await producer.send(topic, b"x")
    first, second, third = tap.sends
    assert first.messages == second.messages == third.messages
    assert tap.send_methods == ["SendStream", "Send", "Send"]
    assert receipt.duplicate
    assert sum(await tap.counts(topic)) == 1


async def test_only_the_failed_messages_of_a_batch_are_sent_again(tap: Gateway, topic: str) -> None:
    tap.refuse(1)
    async with AsyncProducer(tap.address) as producer:
        outcomes = await producer.send_many([Message(topic, b"a"), Message(topic, b"b"), Message(topic, b"c")])
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    assert [m.body for m in tap.sends[1].messages] == [b"b"]
    assert tap.send_methods[1] == "Send"


async def test_a_refused_message_harms_no_other(tap: Gateway, topic: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        first, refused, last = await producer.send_many(
            [Message(topic, b"x"), Message(topic, b"x", queue=99), Message(topic, b"x")], errors="return"
        )
    assert isinstance(first, Receipt)
    assert isinstance(last, Receipt)
    assert isinstance(refused, InvalidMessage)
    assert (refused.reason, refused.retriable, refused.violations[0].field) == ("MESSAGE_INVALID", False, "queue")
    assert refused.message_id == tap.sends[0].messages[1].id
    assert len(tap.sends) == 1


async def test_a_status_that_is_not_retriable_is_raised_once_the_call_has_it(tap: Gateway, topic: str) -> None:
    # The error that ends a stream may be about another request in it.
    tap.lose_sends(*[grpc.StatusCode.INVALID_ARGUMENT] * 2)
    async with AsyncProducer(tap.address) as producer:
        with pytest.raises(ValueError, match="as the test wants it"):
            await producer.send(topic, b"x")
    assert len(tap.sends) == 2


async def test_an_unavailable_server_is_an_error_after_the_timeout(tap: Gateway, topic: str) -> None:
    await tap.stop()
    async with AsyncProducer(tap.address, timeout="1s") as producer:
        with pytest.raises(Unavailable, match=rf"cannot connect to {tap.address}; stopped retrying after \d+ att"):
            await producer.send(topic, b"x")
        (error,) = await producer.send_many([Message(topic, b"x", id="mine")], errors="return")
    assert isinstance(error, Unavailable)
    assert error.message_id == "mine"


async def test_a_server_that_hangs_is_a_timeout(tap: Gateway, topic: str) -> None:
    tap.hold(*SENDS)
    async with AsyncProducer(tap.address, timeout="200ms") as producer:
        with pytest.raises(Timeout):
            await producer.send(topic, b"x")
    tap.release()


async def test_a_server_that_comes_back_is_sent_to(tap: Gateway, topic: str) -> None:
    await tap.stop()
    async with AsyncProducer(tap.address) as producer:
        sending = asyncio.create_task(producer.send(topic, b"x"))
        await passes()
        await tap.start()
        assert isinstance(await sending, Receipt)


async def test_a_server_that_hangs_once_is_asked_again_within_the_timeout(
    tap: Gateway, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.client.connection.ATTEMPT_TIMEOUT_S", 0.1)
    tap.hold(*SENDS)
    async with AsyncProducer(tap.address) as producer:
        sending = asyncio.create_task(producer.send(topic, b"x"))
        await tap.until_sends(2)
        tap.release()
        assert isinstance(await sending, Receipt)
    assert sum(await tap.counts(topic)) == 1


async def test_sends_wait_while_the_most_are_pending(tap: Gateway, topic: str) -> None:
    tap.hold(*SENDS)
    async with AsyncProducer(tap.address, max_pending=10, timeout="60s") as producer, asyncio.TaskGroup() as senders:
        for n in range(30):
            senders.create_task(producer.send(topic, str(n).encode(), queue=0))
        await tap.until_sends(1)
        await passes()
        assert sum(len(request.messages) for request in tap.sends) == 10
        tap.release()
    assert bodies_of(tap.sends) == [str(n).encode() for n in range(30)]


async def test_no_room_within_the_timeout_is_overloaded(tap: Gateway, topic: str) -> None:
    tap.hold(*SENDS)
    async with AsyncProducer(tap.address, max_pending=1, timeout="300ms") as producer:
        outcomes = await asyncio.gather(*[producer.send(topic, b"x") for _ in range(2)], return_exceptions=True)
        (late,) = await producer.send_many([Message(topic, b"x")], errors="return")
    tap.release()
    assert isinstance(outcomes[0], Timeout)
    assert isinstance(outcomes[1], Overloaded | Timeout)
    assert isinstance(late, Timeout)


async def test_close_waits_for_sends_in_flight_and_refuses_more(tap: Gateway, topic: str) -> None:
    tap.hold(*SENDS)
    producer = AsyncProducer(tap.address)
    sending = asyncio.create_task(producer.send(topic, b"x"))
    await tap.until_sends(1)
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    with pytest.raises(Closed):
        await producer.send(topic, b"y")
    tap.release()
    await closing
    assert isinstance(await sending, Receipt)


async def test_cancelled_send_returns_its_capacity(tap: Gateway, topic: str) -> None:
    tap.hold(*SENDS)
    async with AsyncProducer(tap.address, max_pending=1) as producer:
        sending = asyncio.create_task(producer.send(topic, b"x"))
        await tap.until_sends(1)
        sending.cancel()
        tap.release()
        assert isinstance(await producer.send(topic, b"y"), Receipt)


async def test_the_server_may_come_from_the_environment(
    tap: Gateway, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUETIME_SERVER", tap.address)
    async with AsyncProducer() as producer:
        assert isinstance(await producer.send(topic, b"x"), Receipt)


@pytest.mark.parametrize("server", ["http://localhost:9800", "localhost:", ":9800", "localhost:99999", "a b:1"])
def test_a_server_that_is_no_address_is_refused(server: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        AsyncProducer(server)


async def test_a_message_that_is_too_large_is_refused_alone(tap: Gateway, topic: str) -> None:
    huge = Message(topic, bytes(4 * 1024 * 1024 + 1))
    async with AsyncProducer(tap.address) as producer:
        first, refused, last = await producer.send_many(
            [Message(topic, b"a"), huge, Message(topic, b"b")], errors="return"
        )
        with pytest.raises(InvalidMessage, match="4194305 bytes exceed the limit of 4194304"):
            await producer.send_message(huge)
    assert isinstance(first, Receipt)
    assert isinstance(last, Receipt)
    assert isinstance(refused, InvalidMessage)
