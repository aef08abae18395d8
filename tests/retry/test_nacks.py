"""Nack through a whole cluster, on a fake clock."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, message_pb2
from duetime_core.rpc import retry_policy
from duetime_core.testing.cluster import Cluster
from duetime_format import receipts
from duetime_format.attempts import AttemptFailure
from duetime_format.levels import parse_delay_ms
from duetime_format.properties import decode_properties, encode_properties, value_of
from duetime_retry.copies import history_of

from tests.retry.cluster_group import ERROR, Group, started

OK, EXPIRED, UNKNOWN = range(3)


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async for one in started(Cluster(tmp_path, gateway_settings={"queue_count_default": 1})):
        yield one


@pytest.fixture
async def wide(tmp_path: Path) -> AsyncIterator[Group]:
    """Two shards with two queues each."""
    async for one in started(Cluster(tmp_path, shards=2, gateway_settings={"queue_count_default": 4})):
        yield one


async def test_always_failing_message_is_delivered_at_rocketmqs_times(group: Group) -> None:
    await group.send("A")
    table = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h".split()
    failed_at_ms = []
    for delay in table:
        (leased,) = await group.receive()
        failed_at_ms.append(group.now_ms)
        (result,) = await group.nack(leased)
        assert (result.status, result.dead, result.attempt) == (OK, False, len(failed_at_ms))
        assert result.deliver_at_ms == group.now_ms + parse_delay_ms(delay)
        await group.cluster.advance(f"{parse_delay_ms(delay) - 1}ms")
        # The clock advances on a slow machine while lanes are waited for.
        if group.now_ms < result.deliver_at_ms:
            assert await group.is_empty()
        await group.cluster.advance("1ms")
    failed_at_ms.append(group.now_ms)
    (leased,) = await group.receive()
    assert leased.attempt == 17
    (result,) = await group.nack(leased)
    assert (result.dead, result.deliver_at_ms, result.attempt) == (True, 0, 17)

    (dead,) = group.stored("%DLQ%billing")
    attempts = history_of(dead).attempts
    assert [one.number for one in attempts] == list(range(1, 18))
    assert {(one.type, one.message, one.trace) for one in attempts} == {("TimeoutError", "no answer", "line 1\nline 2")}
    assert [one.received_at_ms for one in attempts] == [one.failed_at_ms for one in attempts] == failed_at_ms
    names = decode_properties(dead.properties)
    expected = {
        "UNIQ_KEY": "A",
        "RETRY_TOPIC": "orders",
        "DLQ_ORIGIN_TOPIC": "orders",
        "DT_ORIGIN": "0:0",
        "DT_DEAD_REASON": "ATTEMPTS_EXHAUSTED",
    }
    assert expected.items() <= names.items()
    assert dead.reconsume_times == 17
    await group.cluster.advance("3h")
    assert await group.is_empty()
    assert group.metric("duetime_retry_retries_total", way="level") == 16
    assert group.metric("duetime_retry_dead_letters_total", reason="ATTEMPTS_EXHAUSTED") == 1


@pytest.mark.parametrize(
    ("policy", "delay_ms"),
    [("1500ms", 1_500), ("300ms", 300), ("0s", 0), ("7s", 7_000), ("exponential:90s..1h,jitter=0", 90_000)],
)
async def test_any_delay_is_kept_to_the_millisecond(group: Group, policy: str, delay_ms: int) -> None:
    await group.create(policy)
    await group.send("A")
    started_ms = group.now_ms
    (result,) = await group.nack(*await group.receive())
    assert result.deliver_at_ms == started_ms + delay_ms
    if delay_ms:
        await group.cluster.advance(f"{delay_ms - 1}ms")
        if group.now_ms < result.deliver_at_ms:
            assert await group.is_empty()
        await group.cluster.advance("1ms")
    (leased,) = await group.receive()
    assert (leased.attempt, leased.message.topic) == (2, "orders")
    assert group.now_ms >= result.deliver_at_ms


async def test_message_before_nack_before_group(group: Group) -> None:
    await group.create("1m,max=9")
    await group.send("own", retry=retry_policy.parse("5s,max=3"))
    await group.send("plain")
    own, plain = await group.receive(2)
    start_ms = group.now_ms
    results = await group.nack(own, plain, policy="30s")
    assert [result.deliver_at_ms - start_ms for result in results] == [5_000, 30_000]
    await group.cluster.advance("30s")
    results = await group.nack(*await group.receive(2))
    assert [result.deliver_at_ms - group.now_ms for result in results] == [5_000, 60_000]
    await group.cluster.advance("60s")
    results = await group.nack(*await group.receive(2), policy="1s,max=3")
    assert [(result.dead, result.attempt) for result in results] == [(True, 3), (True, 3)]


async def test_receivers_limit_goes_before_the_groups(group: Group) -> None:
    await group.create("0s,max=9")
    await group.send("A")
    for attempt in (1, 2):
        (result,) = await group.nack(*await group.receive(max_attempts=2))
        assert result.dead == (attempt == 2)


async def test_delay_and_reject_of_single_nacks(wide: Group) -> None:
    await wide.send("A", "B", "C", "D", "E", "F")
    leased = await wide.receive(6)
    # All in one call: of both shards, one to be delayed, one rejected, one malformed, one doubled, one out of bounds.
    request = consumer_pb2.NackRequest(group="billing")
    request.nacks.add(receipt=leased[0].receipt, delay_ms=5_000)
    request.nacks.add(receipt=leased[1].receipt, reject=True, error=ERROR)
    request.nacks.add(receipt=b"no receipt")
    request.nacks.add(receipt=leased[2].receipt)
    request.nacks.add(receipt=leased[2].receipt)
    request.nacks.add(receipt=leased[3].receipt, delay_ms=43_200_001)
    request.nacks.add(receipt=leased[4].receipt)
    request.nacks.add(receipt=receipts.pack(9, 1 << 20, [0])[0])
    results = (await wide.stub.Nack(request, timeout=60)).results
    now_ms = wide.now_ms
    assert [(one.status, one.dead, one.deliver_at_ms and one.deliver_at_ms - now_ms) for one in results] == [
        (OK, False, 5_000),
        (OK, True, 0),
        (UNKNOWN, False, 0),
        (OK, False, 10_000),
        (OK, False, 10_000),
        (OK, False, 0),
        (OK, False, 10_000),
        (OK, False, 0),
    ]
    assert [one.fault.reason for one in results] == ["", "", "", "", "", "NACK_INVALID", "", "SHARD_NOT_FOUND"]
    assert "delay_ms: 43200001 is not within 0 and 43200000 (12 h)" in results[5].fault.message
    dead = [one for shard in (0, 1) for one in wide.stored("%DLQ%billing", shard)]
    assert [history_of(one).attempts for one in dead] == [
        (AttemptFailure(1, now_ms, now_ms, "TimeoutError", "no answer", "line 1\nline 2"),)
    ]
    assert decode_properties(dead[0].properties)["DT_DEAD_REASON"] == "REJECTED"


async def test_copies_stay_on_their_shard_and_come_back_from_both(wide: Group) -> None:
    ids = [f"id{number}" for number in range(20)]
    await wide.send(*ids)
    leased = await wide.receive(20)
    assert {receipts.shard_of(one.receipt) for one in leased} == {0, 1}
    await wide.nack(*leased, delay_ms=1_000)
    await wide.cluster.advance("1s")
    for shard in (0, 1):
        copies = {value_of(one.properties, b"UNIQ_KEY") for one in wide.stored("%RETRY%billing", shard)}
        assert copies == {one.message.id.encode() for one in leased if receipts.shard_of(one.receipt) == shard}
    again = await wide.receive(20)
    assert [(one.message.id, one.attempt) for one in again] == [(one, 2) for one in sorted(ids)]
    answer = await wide.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name="%RETRY%billing"), timeout=60)
    assert sorted((queue.queue, queue.shard) for queue in answer.queues) in (
        [(0, 0), (1, 1)],
        [(0, 1), (1, 0)],
    )


async def test_origin_is_the_queue_that_users_know(wide: Group) -> None:
    await wide.send("A", queue=3)
    await wide.nack(*await wide.receive(), reject=True)
    dead = [one for shard in (0, 1) for one in wide.stored("%DLQ%billing", shard)]
    assert decode_properties(dead[0].properties)["DT_ORIGIN"] == "3:0"


async def test_repetition_is_answered_as_before_and_changes_nothing(group: Group) -> None:
    await group.send("A")
    leased = await group.receive()
    first = await group.nack(*leased)
    assert await group.nack(*leased) == first
    assert len(group.stored("SCHEDULE_TOPIC_XXXX", queue=2)) == 1


async def test_ended_lease_is_expired(group: Group) -> None:
    await group.send("A", "B")
    acked, late = await group.receive(2, invisible_ms=1_000)
    await group.stub.Ack(consumer_pb2.AckRequest(group="billing", receipts=[acked.receipt]), timeout=60)
    await group.cluster.advance("1000ms")
    assert [one.status for one in await group.nack(acked, late)] == [EXPIRED, EXPIRED]


async def test_expired_leases_are_in_the_history(group: Group) -> None:
    await group.send("A")
    start_ms = group.now_ms
    await group.receive(invisible_ms=1_000)
    await group.cluster.advance("1s")
    (leased,) = await group.receive()
    assert leased.attempt == 2
    await group.nack(leased, reject=True)
    (dead,) = group.stored("%DLQ%billing")
    assert [(one.number, one.type, one.received_at_ms - start_ms) for one in history_of(dead).attempts] == [
        (1, "LeaseExpired", 0),
        (2, "TimeoutError", 1_000),
    ]
    assert history_of(dead).attempts[0].failed_at_ms == start_ms + 1_000


async def test_errors_are_cut(group: Group) -> None:
    await group.send("A")
    error = consumer_pb2.HandlerError(type="T" * 300, message="m" * 2_000, trace="t" * 9_000 + "end")
    await group.nack(*await group.receive(), error=error, reject=True)
    (one,) = history_of(group.stored("%DLQ%billing")[0]).attempts
    assert (len(one.type), len(one.message or ""), len(one.trace or "")) == (256, 1_024, 4_096)
    assert (one.trace or "").endswith("tend")


@pytest.mark.parametrize("missing", [21, 150, 400])
async def test_message_without_room_for_a_copy_is_retried_in_place(group: Group, missing: int) -> None:
    used = len(encode_properties({"UNIQ_KEY": "A", "WAIT": "true", "full": ""}))
    await group.send("A", properties={"full": "x" * (32_767 - used - missing)})
    (result,) = await group.nack(*await group.receive(), delay_ms=1_000)
    assert (result.status, result.fault.message) == (OK, "")
    assert result.deliver_at_ms == group.now_ms + 1_000
    await group.cluster.advance("1000ms")
    (leased,) = await group.receive()
    assert leased.attempt == 2
    (result,) = await group.nack(leased, reject=True)
    assert (result.dead, result.fault.message) == (True, "")
    (dead,) = group.stored("%DLQ%billing")
    assert decode_properties(dead.properties)["RETRY_TOPIC"] == "orders"
    assert dead.reconsume_times == 2


async def test_unavailable_shard_harms_no_other(wide: Group) -> None:
    await wide.send(*[f"id{number}" for number in range(12)])
    leased = await wide.receive(12)
    await wide.cluster.stop_node(wide.cluster.stores[1])
    for one, result in zip(leased, await wide.nack(*leased), strict=True):
        if receipts.shard_of(one.receipt) == 0:
            assert result.deliver_at_ms > 0
        else:
            assert (result.fault.reason, result.fault.retriable) == ("SHARD_UNAVAILABLE", True)


async def test_all_faults_of_a_request_are_reported_at_once(group: Group) -> None:
    request = consumer_pb2.NackRequest(group="a b", policy=message_pb2.RetryPolicy(max_attempts=1_001))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await group.stub.Nack(request, timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for part in ("group: 'a b' is not", "policy.max_attempts: 1001 is not within", "nacks: are 0, not 1 to 1024"):
        assert part in (caught.value.details() or "")


async def test_ordered_group_keeps_its_order_through_retries(group: Group) -> None:
    await group.create("1s,max=3", ordered=True)
    await group.send("A", "B", "C")
    for attempt in (1, 2, 3):
        leased = await group.receive(3, max_count=3)
        assert [(one.message.id, one.attempt) for one in leased] == [("A", attempt), ("B", 1), ("C", 1)]
        # Behind A nothing can fail or die before its turn.
        results = (await group.nack(*reversed(leased), reject=attempt == 3))[::-1]
        if attempt < 3:
            assert [(one.status, one.dead) for one in results] == [(OK, False), (EXPIRED, False), (EXPIRED, False)]
            assert await group.is_empty()
            await group.cluster.advance("1s")
    assert [one.dead for one in results] == [True, True, True]
    dead = group.stored("%DLQ%billing")
    assert [decode_properties(one.properties)["UNIQ_KEY"] for one in dead] == ["A", "B", "C"]
    assert [one.type for one in history_of(dead[0]).attempts] == ["TimeoutError"] * 3
    assert [one.number for one in history_of(dead[0]).attempts] == [1, 2, 3]
    assert group.metric("duetime_retry_retries_total", way="in_place") == 2


async def test_ordered_group_continues_when_a_failed_message_expires(group: Group) -> None:
    await group.create("10m", ordered=True)
    await group.send("A", expires_ms=60_000)
    await group.send("B")
    (first,) = await group.receive(max_count=1)
    (result,) = await group.nack(first)
    assert result.deliver_at_ms == first.message.expires_at_ms
    await group.cluster.advance("1m")
    assert [one.message.id for one in await group.receive()] == ["B"]


async def test_failed_message_waits_no_longer_than_until_it_expires(group: Group) -> None:
    await group.send("A", expires_ms=60_000)
    (first,) = await group.receive()
    (result,) = await group.nack(first, delay_ms=600_000)
    assert result.deliver_at_ms == first.message.expires_at_ms
    await group.cluster.advance("1m")
    assert await group.is_empty()


async def test_dead_letter_with_an_expiry_is_retried_after_its_delay(group: Group) -> None:
    await group.send("A", expires_ms=1_000)
    await group.nack(*await group.receive(), reject=True)
    await group.cluster.advance("1m")
    for delay_ms in (10_000, 20_000):
        request = consumer_pb2.ReceiveRequest(group="rescue", topic="%DLQ%billing")
        (leased,) = (await group.stub.Receive(request, timeout=60)).messages
        nack = consumer_pb2.Nack(receipt=leased.receipt, error=ERROR, delay_ms=delay_ms)
        answer = await group.stub.Nack(consumer_pb2.NackRequest(group="rescue", nacks=[nack]), timeout=60)
        assert answer.results[0].deliver_at_ms >= group.now_ms + delay_ms
        await group.cluster.advance(f"{delay_ms}ms")


async def test_dead_letter_behind_a_retry_of_an_ordered_lease_waits_for_its_turn(group: Group) -> None:
    await group.create("1s", ordered=True)
    await group.send("A", "B")
    first, second = await group.receive(2, max_count=2)
    request = consumer_pb2.NackRequest(group="billing")
    request.nacks.add(receipt=second.receipt, reject=True)
    request.nacks.add(receipt=first.receipt)
    results = (await group.stub.Nack(request, timeout=60)).results
    assert [(one.status, one.dead) for one in results] == [(EXPIRED, False), (OK, False)]
    assert not group.stored("%DLQ%billing")


async def test_order_holds_where_bodies_are_too_large_for_one_look(group: Group) -> None:
    await group.create("1s", ordered=True)
    body = bytes(3 << 20)
    for one in ("A", "B", "C"):
        message = message_pb2.Message(topic="orders", id=one, body=body)
        await group.stub.Send(gateway_pb2.SendRequest(messages=[message]), timeout=60)
    leased = await group.receive(3, max_count=3, max_bytes=16 << 20)
    request = consumer_pb2.NackRequest(group="billing")
    for one in reversed(leased):
        request.nacks.add(receipt=one.receipt, reject=one.message.id != "A")
    results = (await group.stub.Nack(request, timeout=60)).results
    assert [(one.status, one.dead) for one in results] == [(EXPIRED, False), (EXPIRED, False), (OK, False)]
    assert not group.stored("%DLQ%billing")


async def test_second_death_continues_the_history(group: Group) -> None:
    await group.create("0s,max=2")
    await group.send("A")
    for _ in range(2):
        await group.nack(*await group.receive())
    request = consumer_pb2.RedriveRequest(filter=consumer_pb2.DeadLetterFilter(group="billing"))
    results = [one async for one in group.stub.RedriveDeadLetters(request, timeout=60)]
    assert [one.outcome for one in results] == [consumer_pb2.DEAD_LETTER_OUTCOME_REDRIVEN]
    for attempt in (1, 2):
        (leased,) = await group.receive()
        assert leased.attempt == attempt
        await group.nack(leased)
    wanted = consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group="billing"))
    (dead,) = (await group.stub.ListDeadLetters(wanted, timeout=60)).letters
    assert [one.attempt for one in dead.attempts] == [1, 2, 3, 4]
    assert (dead.redriven_count, dead.message.topic, dead.message.id) == (1, "orders", "A")
