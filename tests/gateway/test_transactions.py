"""Transactions are prepared and ended over all shards, and found again."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.client.errors import Unavailable
from duetime.client.finding.finder import AsyncFinder
from duetime.v1 import message_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_core.rpc.calls import refused
from duetime_format import limits, record
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import decode_properties
from duetime_gateway.transactions.names import TransactionName, parse, text_of
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.conftest import (
    NOW_MS,
    Gateway,
    TappedStore,
    WallClock,
    error_of,
    message,
    records_of,
    tapped_store,
    until,
)
from tests.tap import WAIT_S

OPEN, COMMITTED = pb.TRANSACTION_STATE_OPEN, pb.TRANSACTION_STATE_COMMITTED
ROLLED_BACK, GIVEN_UP = pb.TRANSACTION_STATE_ROLLED_BACK, pb.TRANSACTION_STATE_GIVEN_UP
COMMIT, ROLLBACK, UNKNOWN = pb.DECISION_COMMIT, pb.DECISION_ROLLBACK, pb.DECISION_UNKNOWN


async def prepare(gateway: Gateway, *messages: message_pb2.Message, **options: Any) -> list[pb.PrepareResult]:
    request = pb.PrepareRequest(**{"group": "billing", "messages": messages, **options})
    return list((await gateway.stub.Prepare(request, timeout=WAIT_S)).results)


async def end(
    gateway: Gateway, *ends: tuple[str, pb.Decision.ValueType], group: str = "billing", **options: Any
) -> list[pb.EndTransactionResult]:
    wanted = [pb.TransactionEnd(transaction_id=name, decision=decision) for name, decision in ends]
    request = pb.EndTransactionRequest(group=group, ends=wanted, **options)
    return list((await gateway.stub.EndTransaction(request, timeout=WAIT_S)).results)


def prepared_records(tap: TappedStore) -> list[record.Record]:
    """The half messages that the store got."""
    return [one for call in tap.requests["Prepare"] for one in records_of(call.records)]


def halves(taps: list[TappedStore]) -> dict[str, tuple[int, dict[str, str]]]:
    """Shard and properties by message id."""
    found = {}
    for tap in taps:
        for one in prepared_records(tap):
            properties = decode_properties(one.properties)
            found[properties[record.UNIQ_KEY]] = (tap.shard, properties)
    return found


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.text(min_size=1))
def test_id_of_a_transaction_names_it(shard: int, offset: int, position: int, message_id: str) -> None:
    name = TransactionName(shard, offset, position, message_id)
    assert parse(text_of(name)) == name
    assert len(text_of(name)) <= limits.TRANSACTION_ID_CHARS_MAX - limits.ID_CHARS_MAX + len(message_id)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2.3",
        "1.2.3.",
        "a.2.3.x",
        "1.-2.3.x",
        "1.9223372036854775808.3.x",
        "1.2.²3.x",
        "1.2.3" + "0" * 19 + ".x",
        ". . . .",
    ],
)
def test_other_texts_are_no_ids(text: str) -> None:
    assert parse(text) is None


async def test_half_messages_go_to_the_half_topic_of_their_shards(tapped: Gateway, taps: list[TappedStore]) -> None:
    properties = {"p": "1"}
    sent = [message(id=f"id{number}", keys=["k"], tags="t", properties=properties) for number in range(40)]
    results = await prepare(tapped, *sent, check_immunity_s=60)
    assert {one.shard for one in results} == {0, 1}
    assert [len(tap.requests["Prepare"]) for tap in taps] == [1, 1]
    found = halves(taps)
    for one in results:
        name = parse(one.transaction_id)
        assert name is not None
        assert (name.shard, name.message_id) == (one.shard, one.message_id)
        assert one.check_at_ms == NOW_MS + 60_000
        assert not one.duplicate
        shard, properties = found[one.message_id]
        assert shard == one.shard
        assert (
            properties.items()
            >= {
                record.TRAN_MSG: "true",
                record.PRODUCER_GROUP: "billing",
                record.TRANSACTION_ID: one.message_id,
                record.UNIQ_KEY: one.message_id,
                record.CHECK_IMMUNITY_S: "60",
                record.REAL_TOPIC: "orders",
                record.KEYS: "k",
                record.TAGS: "t",
                "p": "1",
            }.items()
        )
        assert int(properties[record.REAL_QID]) in range(4)
        assert record.DELAY not in properties
    stored = prepared_records(taps[0])[0]
    assert (stored.topic, stored.queue, stored.sys_flag) == (HALF_TOPIC, 0, 0)
    assert tapped.metric("duetime_gateway_prepared_total", outcome="stored") == 40
    assert tapped.metric("duetime_gateway_messages_total", outcome="stored") == 0


async def test_delays_are_kept_as_asked(tapped: Gateway, taps: list[TappedStore]) -> None:
    asked = [
        message(id="level", delay_level=3),
        message(id="highest", delay_level=99),
        message(id="of-a-level", delay_ms=10_000),
        message(id="any", delay_ms=12_345),
        message(id="at", deliver_at_ms=1_900_000_000_000),
        message(id="past", deliver_at_ms=1),
    ]
    results = await prepare(tapped, *asked)
    found = halves(taps)
    names = (record.DELAY, record.TIMER_DELAY_MS, record.TIMER_DELIVER_MS, record.TIMER_OUT_MS)
    delays = {key: {name: one[name] for name in names if name in one} for key, (_, one) in found.items()}
    assert delays == {
        "level": {record.DELAY: "3"},
        "highest": {record.DELAY: "18"},
        "of-a-level": {record.DELAY: "3"},
        "any": {record.TIMER_DELAY_MS: "12345"},
        "at": {record.TIMER_DELIVER_MS: "1900000000000"},
        "past": {record.TIMER_DELIVER_MS: "1"},
    }
    assert [one.requested_level for one in results] == [0, 99, 0, 0, 0, 0]


@pytest.mark.parametrize("delay", [{}, {"delay_level": 18}, {"deliver_at_ms": 1_900_000_000_000}])
async def test_prepared_messages_can_be_committed(gateway: Gateway, delay: dict[str, int]) -> None:
    """The largest properties that are taken leave room for all that follows, and one byte more is refused."""
    topic, group = "t" * limits.TOPIC_CHARS_MAX, "g" * limits.GROUP_CHARS_MAX
    for message_id in ("", "i" * 255, "ü" * 255):
        own = len(f"UNIQ_KEY\x01{message_id or '0' * 32}\x02p\x01".encode())
        doubled = len(message_id.encode()) - len(message_id)
        most = limits.PROPERTIES_BYTES_MAX - limits.HALF_BYTES_MAX - own - doubled
        fits, above = (
            message(topic=topic, id=message_id, properties={"p": "x" * size}, **delay) for size in (most, most + 1)
        )
        (result,) = await prepare(gateway, above, group=group, check_immunity_s=limits.CHECK_IMMUNITY_S_MAX)
        assert result.fault.reason == "MESSAGE_INVALID"
        (result,) = await prepare(gateway, fits, group=group, check_immunity_s=limits.CHECK_IMMUNITY_S_MAX)
        assert not result.HasField("fault")
        (ended,) = await end(gateway, (result.transaction_id, COMMIT), group=group)
        assert ended.state == COMMITTED


async def test_faults_of_single_messages_harm_no_others(tapped: Gateway, taps: list[TappedStore]) -> None:
    results = await prepare(
        tapped,
        message(b"1"),
        message(b"2", topic="SCHEDULE_TOPIC_XXXX"),
        message(b"3", replace=True, keys=["k"], delay_ms=1_000),
        message(b"4", id="twice"),
        message(b"5", id="twice"),
        message(b"6", queue=77),
        message(b"7", delay_ms=-1),
    )
    faults = [one.fault.violations[0].field if one.HasField("fault") else "" for one in results]
    assert faults == ["", "topic", "replace", "", "", "queue", "delay_ms"]
    assert [one.duplicate for one in results] == [False, False, False, False, True, False, False]
    assert results[4].transaction_id == results[3].transaction_id
    assert not results[1].transaction_id
    assert len(halves(taps)) == 2
    assert tapped.metric("duetime_gateway_prepared_total", outcome="message_invalid") == 4


async def test_full_or_silent_shards_refuse_their_own_messages_alone(tmp_path: Path) -> None:
    async with (
        tapped_store(tmp_path, 0) as silent,
        tapped_store(tmp_path, 1, transactions_max=1) as full,
        Gateway(tmp_path, {0: silent.port, 1: full.port}) as gateway,
    ):
        results = await prepare(gateway, *(message(id=f"id{number}") for number in range(20)))
        assert {one.fault.reason for one in results} == {"", "TRANSACTIONS_EXHAUSTED"}
        await silent.stop()
        results = await prepare(gateway, *(message(id=f"later{number}") for number in range(20)))
        assert {one.fault.reason for one in results} == {"SHARD_UNAVAILABLE", "TRANSACTIONS_EXHAUSTED"}
        assert {one.fault.retriable for one in results if one.fault.reason == "SHARD_UNAVAILABLE"} == {True}


async def test_wrong_prepares_are_refused(gateway: Gateway) -> None:
    for wrong, field in (
        (pb.PrepareRequest(messages=[message()]), "group"),
        (pb.PrepareRequest(messages=[message()], group="no blank"), "group"),
        (pb.PrepareRequest(group="billing"), "messages"),
        (pb.PrepareRequest(messages=[message()], group="billing", check_immunity_s=-1), "check_immunity_s"),
        (pb.PrepareRequest(messages=[message()], group="billing", check_immunity_s=259_201), "check_immunity_s"),
    ):
        error = await error_of(gateway.stub.Prepare(wrong, timeout=WAIT_S))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field in (error.details() or "")


async def test_ends_reach_their_shards_in_one_call_each(tapped: Gateway, taps: list[TappedStore]) -> None:
    prepared = await prepare(tapped, *(message(id=f"id{number}") for number in range(30)))
    wanted = [(one.transaction_id, (COMMIT, ROLLBACK, UNKNOWN)[at % 3]) for at, one in enumerate(prepared)]
    results = await end(tapped, *wanted)
    assert [one.state for one in results] == [(COMMITTED, ROLLED_BACK, OPEN)[at % 3] for at in range(30)]
    for one, result in zip(prepared, results, strict=True):
        if result.state == COMMITTED:
            assert (result.sent.message_id, result.sent.shard) == (one.message_id, one.shard)
            assert result.topic == "orders"
    assert [len(tap.requests["EndTransactions"]) for tap in taps] == [1, 1]
    again = await end(tapped, *((name, ROLLBACK) for name, _ in wanted))
    assert [one.state for one in again] == [(COMMITTED, ROLLED_BACK, ROLLED_BACK)[at % 3] for at in range(30)]
    assert [one.duplicate for one in again] == [at % 3 != 2 for at in range(30)]
    assert tapped.metric("duetime_gateway_transaction_ends_total", state="committed") == 20


async def test_single_ends_go_to_their_shard_together(tapped: Gateway, taps: list[TappedStore]) -> None:
    prepared = await prepare(tapped, *(message(id=f"id{number}") for number in range(64)))
    one_by_one = [(one.transaction_id, COMMIT if at % 2 else ROLLBACK) for at, one in enumerate(prepared)]
    for tap in taps:
        tap.hold("EndTransactions")
    calls = [asyncio.create_task(end(tapped, wanted)) for wanted in one_by_one]
    calls += [asyncio.create_task(end(tapped, one_by_one[0], group="other"))]
    await until(tapped, lambda: tapped.metric("duetime_calls_in_flight", method="EndTransaction") == 65)
    # Its caller goes away: the others are ended all the same.
    calls.pop(5).cancel()
    for tap in taps:
        tap.release()
    results = [one for (one,) in await asyncio.gather(*calls)]
    assert results.pop().fault.reason == "TRANSACTION_OF_ANOTHER_GROUP"
    states = [COMMITTED if at % 2 else ROLLED_BACK for at in range(64) if at != 5]
    assert [one.state for one in results] == states
    sent = {one.message_id for at, one in enumerate(prepared) if at % 2 and at != 5}
    assert {one.sent.message_id for one in results if one.state == COMMITTED} == sent
    assert sum(len(tap.requests["EndTransactions"]) for tap in taps) <= 10


async def test_slow_shard_holds_up_no_end_for_longer_than_its_time(
    tmp_path: Path, tapped: Gateway, taps: list[TappedStore]
) -> None:
    first, second = await prepare(tapped, message(), message())
    for tap in taps:
        tap.hold("EndTransactions")
    async with Gateway(tmp_path, {tap.shard: tap.port for tap in taps}, store_timeout_ms=300) as gateway:
        results = await asyncio.gather(*(end(gateway, (first.transaction_id, COMMIT)) for _ in range(3)))
        assert {one.fault.reason for (one,) in results} == {"SHARD_UNAVAILABLE"}
        for tap in taps:
            tap.release()
        async with asyncio.timeout(WAIT_S):
            while (await end(gateway, (second.transaction_id, COMMIT)))[0].state != COMMITTED:
                continue


async def test_ends_that_are_wrong_are_faults_of_their_own(tapped: Gateway, taps: list[TappedStore]) -> None:
    first, second = await prepare(tapped, message(), message())
    name = parse(second.transaction_id)
    assert name is not None
    results = await end(
        tapped,
        (first.transaction_id, COMMIT),
        ("no id", COMMIT),
        (text_of(name._replace(shard=9)), COMMIT),
        (text_of(name._replace(message_id="other")), COMMIT),
        (second.transaction_id, pb.DECISION_UNSPECIFIED),
    )
    reasons = [one.fault.reason for one in results]
    assert reasons == ["", "INVALID_ARGUMENT", "TRANSACTION_NOT_FOUND", "TRANSACTION_NOT_FOUND", "INVALID_ARGUMENT"]
    (result,) = await end(tapped, (second.transaction_id, COMMIT), group="other")
    assert result.fault.reason == "TRANSACTION_OF_ANOTHER_GROUP"
    assert refused(results[2].fault).status is grpc.StatusCode.NOT_FOUND
    for ends in (), ((first.transaction_id, COMMIT),) * 4_097:
        request = pb.EndTransactionRequest(group="billing", ends=[pb.TransactionEnd(transaction_id=t) for t, _ in ends])
        error = await error_of(tapped.stub.EndTransaction(request, timeout=WAIT_S))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (
        await error_of(tapped.stub.EndTransaction(pb.EndTransactionRequest()))
    ).code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_silent_shard_is_a_fault_of_its_own_transactions(tapped: Gateway, taps: list[TappedStore]) -> None:
    prepared = await prepare(tapped, *(message() for _ in range(20)))
    await taps[1].stop()
    results = await end(tapped, *((one.transaction_id, COMMIT) for one in prepared))
    for one, result in zip(prepared, results, strict=True):
        assert result.fault.reason == ("SHARD_UNAVAILABLE" if one.shard else "")
        assert result.fault.retriable == bool(one.shard)


async def test_given_up_transactions_are_ended_by_operators(tapped: Gateway, clock: WallClock) -> None:
    (one,) = await prepare(tapped, message())
    # A store keeps open transactions for 72 hours, to the second.
    clock.move(72 * 3_600_000 + 1_000)
    async with asyncio.timeout(WAIT_S):
        while not flat(await pages(tapped, state=GIVEN_UP)):
            continue
    assert (await end(tapped, (one.transaction_id, COMMIT)))[0].fault.reason == "TRANSACTION_GIVEN_UP"
    assert (await end(tapped, (one.transaction_id, COMMIT), given_up=True))[0].state == COMMITTED


async def pages(gateway: Gateway, **options: Any) -> list[list[pb.Transaction]]:
    found, token = [], ""
    while True:
        request = pb.ListTransactionsRequest(page_token=token, **options)
        page = await gateway.stub.ListTransactions(request, timeout=WAIT_S)
        found.append(list(page.transactions))
        token = page.next_page_token
        if not token:
            return found


async def test_transactions_are_listed_page_by_page(tapped: Gateway, taps: list[TappedStore]) -> None:
    prepared = await prepare(tapped, *(message() for _ in range(25)))
    await prepare(tapped, message(topic="others"), group="shipping")
    found = await pages(tapped, page_size=10)
    assert [len(page) for page in found] == [10, 10, 6]
    listed = [one for page in found for one in page]
    assert [one.shard for one in listed] == sorted(one.shard for one in listed)
    ids = {one.transaction_id for one in flat(await pages(tapped, group="billing", page_size=7))}
    assert ids == {one.transaction_id for one in prepared}
    assert [one.topic for one in flat(await pages(tapped, topic="others"))] == ["others"]
    assert flat(await pages(tapped, state=GIVEN_UP)) == []


def flat(found: list[list[pb.Transaction]]) -> list[pb.Transaction]:
    return [one for page in found for one in page]


async def test_wrong_lists_are_refused(tapped: Gateway, taps: list[TappedStore]) -> None:
    await prepare(tapped, *(message() for _ in range(5)))
    stub = tapped.stub
    token = (await stub.ListTransactions(pb.ListTransactionsRequest(page_size=1), timeout=WAIT_S)).next_page_token
    for wrong in (
        {"page_size": 1_001},
        {"page_size": -1},
        {"state": COMMITTED},
        {"prepared_before_ms": -1},
        {"group": "no blank"},
        {"topic": "no blank"},
        {"page_token": "x"},
        {"page_token": token + "1"},
        {"page_token": token, "group": "billing"},
    ):
        error = await error_of(stub.ListTransactions(pb.ListTransactionsRequest(**wrong), timeout=WAIT_S))  # type: ignore[arg-type]
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, wrong


async def test_lists_name_shards_that_do_not_answer(tapped: Gateway, taps: list[TappedStore]) -> None:
    prepared = await prepare(tapped, *(message() for _ in range(20)))
    reachable = {one.transaction_id for one in prepared if one.shard == 1}
    await taps[0].stop()
    page = await tapped.stub.ListTransactions(pb.ListTransactionsRequest(), timeout=WAIT_S)
    assert {one.transaction_id for one in page.transactions} == reachable
    assert list(page.unreachable_shards) == [0]
    async with AsyncFinder(f"127.0.0.1:{tapped.node.port}") as finder:
        found = finder.transactions()
        assert {(await anext(found)).id for _ in reachable} == reachable
        with pytest.raises(Unavailable, match="their transactions are missing: 0"):
            await anext(found)


async def test_transaction_is_found_by_its_id_and_its_messages(tapped: Gateway, taps: list[TappedStore]) -> None:
    (one,) = await prepare(tapped, message(b"hello", id="1.2.3.four", tags="t", keys=["k"], properties={"p": "q"}))
    for key in one.transaction_id, "1.2.3.four":
        found = await tapped.stub.GetTransaction(pb.GetTransactionRequest(id=key), timeout=WAIT_S)
        assert found.transaction.transaction_id == one.transaction_id
        assert (found.transaction.group, found.transaction.topic, found.transaction.state) == (
            "billing",
            "orders",
            OPEN,
        )
        shown = found.message
        assert (shown.topic, shown.body, shown.tags, shown.id) == ("orders", b"hello", "t", "1.2.3.four")
        assert (list(shown.keys), dict(shown.properties)) == (["k"], {"p": "q"})
    for key in "none", "0.99.99.none":
        error = await error_of(tapped.stub.GetTransaction(pb.GetTransactionRequest(id=key), timeout=WAIT_S))
        assert error.code() is grpc.StatusCode.NOT_FOUND
    for key in "", "x" * 401:
        error = await error_of(tapped.stub.GetTransaction(pb.GetTransactionRequest(id=key), timeout=WAIT_S))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    await taps[1 - one.shard].stop()
    await tapped.stub.GetTransaction(pb.GetTransactionRequest(id="1.2.3.four"), timeout=WAIT_S)
    error = await error_of(tapped.stub.GetTransaction(pb.GetTransactionRequest(id="none"), timeout=WAIT_S))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
