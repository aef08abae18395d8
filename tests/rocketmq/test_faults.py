"""Troubles of the cluster's own as RocketMQ's codes, and limits that have names."""

import asyncio
from contextlib import AsyncExitStack
from hashlib import md5, sha1
from pathlib import Path
from typing import Any

import pytest
from duetime_core.errors import DiskFull, DueTimeError, Overloaded, QuotaExceeded, ReadOnly, Stalled, Unavailable
from duetime_gateway.rocketmq import codes
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.gateway.conftest import Gateway, real_store
from tests.rocketmq.raw import ORDERS, Raw, message, now_ms


@pytest.mark.parametrize(
    ("error", "remaining_ms", "code"),
    [
        (Overloaded("full"), 1_000.0, pb.TOO_MANY_REQUESTS),
        (QuotaExceeded("used up", 10), None, pb.TOO_MANY_REQUESTS),
        (Unavailable("away", reason="SHARD_UNAVAILABLE"), 1_000.0, pb.INTERNAL_SERVER_ERROR),
        (Unavailable("away", reason="SHARD_UNAVAILABLE"), 20.0, pb.PROXY_TIMEOUT),
        (DiskFull("no room"), 1_000.0, pb.INTERNAL_SERVER_ERROR),
        (Stalled("slow"), None, pb.INTERNAL_SERVER_ERROR),
        (ReadOnly("failed"), None, pb.INTERNAL_SERVER_ERROR),
        (codes.RocketMQError(pb.ILLEGAL_TOPIC, "topic: is missing"), 20.0, pb.ILLEGAL_TOPIC),
    ],
)
def test_faults_have_codes(error: DueTimeError, remaining_ms: float | None, code: int) -> None:
    found = codes.status_of(error, remaining_ms)
    assert (found.code, found.message) == (code, error.text)


async def test_an_unavailable_shard_is_a_server_error_of_every_call(tmp_path: Path) -> None:
    stores = AsyncExitStack()
    store = await stores.enter_async_context(real_store(tmp_path))
    async with stores, Gateway(tmp_path, {0: store.port}, store_timeout_ms=500) as gateway:
        raw = Raw(gateway.channel, gateway.node.port)
        await raw.make_topic()
        await raw.send_ok(message())
        (got,) = await raw.receive()
        (later,) = await raw.send_ok(message(number=2, delivery_ms=now_ms() + 60_000))
        (half,) = await raw.send_ok(message(number=3, message_type=pb.TRANSACTION))
        handle = got.system_properties.receipt_handle
        await stores.aclose()
        end = {"topic": ORDERS, "transaction_id": half.transaction_id, "resolution": pb.COMMIT}
        answers = [
            await raw.send(message(number=4)),
            await raw.send(message(number=5, message_type=pb.TRANSACTION)),
            (await raw.frames(wait_ms=0))[0],
            await raw.ack(got),
            await raw.change(handle, 1_000),
            await raw.call("EndTransaction", **end),
            await raw.call("RecallMessage", topic=ORDERS, recall_handle=later.recall_handle),
        ]
        assert [pb.Code.Name(one.status.code) for one in answers] == ["INTERNAL_SERVER_ERROR"] * len(answers)
        assert all(one.status.message for one in answers)
        # Calls that need no shard are answered.
        route = await raw.call("QueryRoute", topic=ORDERS, endpoints=raw.endpoints)
        assert route.status.code == (await raw.call("Heartbeat")).status.code == pb.OK


async def test_streams_beyond_the_limit_are_rejected_until_one_ends(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, rocketmq_streams_max=1) as gateway:
        raw = Raw(gateway.channel, gateway.node.port)
        first = raw.telemetry()
        assert (await first.say(raw.producer_settings())).status.code == pb.OK
        refused = await raw.telemetry().read()
        assert refused.status.code == pb.TOO_MANY_REQUESTS
        assert "the limit is 1" in refused.status.message
        # Nothing else is in it, and calls without a stream are served.
        assert refused.WhichOneof("command") is None
        assert (await raw.call("Heartbeat")).status.code == pb.OK
        await first.call.done_writing()
        assert await until_served(raw)


async def until_served(raw: Raw) -> bool:
    async with asyncio.timeout(60):
        while True:
            stream = raw.telemetry()
            if (await stream.say(raw.producer_settings())).status.code == pb.OK:
                return True


async def test_polls_beyond_the_limit_are_rejected_unless_they_do_not_wait(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, rocketmq_polls_max=1) as gateway:
        raw = Raw(gateway.channel, gateway.node.port)
        await raw.make_topic()
        polling = asyncio.ensure_future(raw.receive(wait_ms=20_000, timeout=60))
        async with asyncio.timeout(60):
            while gateway.metric("duetime_gateway_rocketmq_polls") < 1:
                await raw.call("Heartbeat")
        (refused,) = await raw.frames(wait_ms=1_000)
        assert refused.status.code == pb.TOO_MANY_REQUESTS
        assert "1 receives are waiting; the limit is 1" in refused.status.message
        assert await raw.receive(wait_ms=0, group=pb.Resource(name="another")) == []
        await raw.send_ok(message())
        assert len(await polling) == 1
        assert await raw.receive(wait_ms=100) == []


@pytest.mark.parametrize(("kind", "form"), [(pb.MD5, str.upper), (pb.MD5, str.lower), (pb.SHA1, str.upper)])
async def test_digests_that_are_right_are_taken(raw: Raw, kind: int, form: Any) -> None:
    made = message(b"hello")
    made.system_properties.body_digest.type = kind
    hashed = md5 if kind == pb.MD5 else sha1
    made.system_properties.body_digest.checksum = form(hashed(b"hello", usedforsecurity=False).hexdigest())
    await raw.send_ok(made)
    assert len(await raw.receive()) == 1


async def test_a_crc_of_any_notation_is_taken(raw: Raw) -> None:
    for number, text in enumerate(("3610A686", "3610a686", "907060870"), 1):
        made = message(b"hello", number)
        made.system_properties.body_digest.type = pb.CRC32
        made.system_properties.body_digest.checksum = text
        await raw.send_ok(made)


async def test_repeated_receive_of_a_plain_group_leases_the_same_messages(raw: Raw) -> None:
    await raw.send_ok(message(number=1), message(number=2))
    first = await raw.receive(attempt_id="one", auto_renew=True)
    again = await raw.receive(attempt_id="one", auto_renew=True)
    assert {one.system_properties.message_id for one in again} == {one.system_properties.message_id for one in first}
    assert {one.system_properties.delivery_attempt for one in again} == {1}
    assert (await raw.ack(*first)).status.code == pb.INVALID_RECEIPT_HANDLE
    assert (await raw.ack(*again)).status.code == pb.OK
    # The same message of another client is another attempt.
    await raw.send_ok(message(number=3))
    assert len(await raw.receive(attempt_id="two")) == 1
    assert await Raw(raw.channel, 1, "other").receive(attempt_id="two", wait_ms=0) == []


async def test_concurrent_single_acks_get_their_own_answers(raw: Raw) -> None:
    """They share a call to their shard."""
    await raw.send_ok(*(message(number=number) for number in range(1, 33)))
    got = await raw.receive(batch_size=32, auto_renew=True)
    assert len(got) == 32
    other = pb.Resource(name="another")
    ended = got[0]
    assert (await raw.ack(ended)).status.code == pb.OK
    await raw.change(got[1].system_properties.receipt_handle, 1_000)
    wrong_group = [raw.ack(one, group=other) for one in got[2:10]]
    right = [raw.ack(one) for one in got[10:]]
    answers = await asyncio.gather(*wrong_group, *right)
    assert [one.status.code for one in answers] == [pb.INVALID_RECEIPT_HANDLE] * 8 + [pb.OK] * 22
    assert [one.entries[0].message_id for one in answers] == [one.system_properties.message_id for one in got[2:]]
