"""Messages with an expiry: how they are sent, shown, and kept by their copies."""

from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_format import record
from duetime_format.levels import DELAY_MAX, DELAY_MS_MAX
from duetime_format.properties import decode_properties

from tests.gateway.conftest import NOW_MS, Gateway, TappedStore, message, tapped_retry, waiting
from tests.gateway.test_leases import receive
from tests.tap import WAIT_S

TWO_H_MS = 7_200_000


async def properties(gateway: Gateway, queue: int = 0) -> list[dict[str, str]]:
    stored = (await gateway.pull(queue=queue, encoding=gateway_pb2.PULL_ENCODING_RECORDS)).records
    found, at = [], 0
    while at < len(stored):
        one = record.decode(stored, at)
        found.append(decode_properties(one.properties))
        at += one.size
    return found


async def test_expiry_is_stored_as_a_property_and_read_as_a_time(gateway: Gateway) -> None:
    await gateway.send(message(b"a", expires_ms=TWO_H_MS, queue=0), message(b"b", queue=0))
    assert [one.get(record.EXPIRES) for one in await properties(gateway)] == [str(TWO_H_MS), None]
    first, second = (await gateway.pull()).messages
    assert (first.expires_at_ms - first.stored_at_ms, dict(first.properties)) == (TWO_H_MS, {})
    assert second.expires_at_ms == 0


async def test_pending_message_shows_when_it_expires(gateway: Gateway) -> None:
    (result,) = await gateway.send(message(delay_ms=3_600_000, expires_ms=TWO_H_MS, keys=["k"], id="a"))
    (pending,) = await waiting(gateway)
    assert pending.message.expires_at_ms == result.deliver_at_ms + TWO_H_MS
    found = await gateway.stub.GetMessage(gateway_pb2.GetMessageRequest(id="a"), timeout=WAIT_S)
    assert found.message.expires_at_ms == pending.message.expires_at_ms
    moved = message(delay_ms=60_000, expires_ms=5, keys=["k"], replace=True)
    await gateway.send(moved, message(delay_ms=90_000, expires_ms=7, keys=["k"], replace=True))
    assert sorted(one.message.expires_at_ms - one.message.due_at_ms for one in await waiting(gateway)) == [7, TWO_H_MS]


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"expires_ms": -1}, "expires_ms", "-1 ms is below 0"),
        ({"expires_ms": DELAY_MS_MAX + 1}, "expires_ms", f"exceeds the limit of {DELAY_MAX}"),
        ({"properties": {record.EXPIRES: "5"}}, f'properties["{record.EXPIRES}"]', "use the field expires_ms"),
    ],
)
async def test_expiry_out_of_its_range_is_rejected(
    gateway: Gateway, fields: dict[str, Any], field: str, text: str
) -> None:
    (result, longest) = await gateway.send(message(**fields), message(expires_ms=DELAY_MS_MAX))
    ((violated, description),) = [(one.field, one.description) for one in result.fault.violations]
    assert (violated, text in description, longest.HasField("fault")) == (field, True, False)


async def test_messages_of_a_batch_expire_each_at_its_time(gateway: Gateway) -> None:
    messages = [message(b"a", topic="", expires_ms=5), message(b"b", topic="")]
    request = gateway_pb2.SendBatchRequest(topic="orders", messages=messages, queue=0)
    await gateway.stub.SendBatch(request, timeout=WAIT_S)
    assert [one.get(record.EXPIRES) for one in await properties(gateway)] == ["5", None]


async def test_copies_expire_when_the_message_does(tmp_path: Path, tap: TappedStore) -> None:
    async with (
        tapped_retry(tmp_path, {0: tap.port}) as retry,
        Gateway(tmp_path, {0: tap.port}, retry_address=f"127.0.0.1:{retry.port}") as gateway,
    ):
        await gateway.send(message(b"late", expires_ms=TWO_H_MS, id="a"), message(b"dead", expires_ms=TWO_H_MS, id="b"))
        got = {one.message.id: one for one in (await receive(gateway)).messages}
        nacks = [
            consumer_pb2.Nack(receipt=got["a"].receipt, delay_ms=3_600_000),
            consumer_pb2.Nack(receipt=got["b"].receipt, reject=True),
        ]
        await gateway.stub.Nack(consumer_pb2.NackRequest(group="billing", nacks=nacks), timeout=WAIT_S)
        retries = consumer_pb2.ListRetriesRequest(filter=consumer_pb2.RetryFilter(group="billing"))
        (copy,) = (await gateway.stub.ListRetries(retries, timeout=WAIT_S)).retries
        assert copy.message.expires_at_ms == NOW_MS + TWO_H_MS
        letters = consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group="billing"))
        (letter,) = (await gateway.stub.ListDeadLetters(letters, timeout=WAIT_S)).letters
        assert letter.message.expires_at_ms == NOW_MS + TWO_H_MS
