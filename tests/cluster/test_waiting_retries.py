"""Failed messages that wait for their next attempt: counted, listed, delivered now, or discarded."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, pending_pb2, retry_pb2
from duetime_core.testing.cluster import Cluster

from tests.retry.cluster_group import ERROR, Group, started

POLICY = "30s,7s,max=5"


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async for one in started(Cluster(tmp_path, shards=2, gateway_settings={"queue_count_default": 2})):
        await one.create(POLICY)
        yield one


async def described(group: Group) -> consumer_pb2.GroupDescription:
    request = consumer_pb2.DescribeGroupRequest(name=group.name)
    found: consumer_pb2.GroupDescription = await group.stub.DescribeGroup(request, timeout=60)
    return found


async def counted(group: Group) -> tuple[int, int]:
    """Waiting retries, and when the first is due."""
    found = await described(group)
    return found.waiting_retries, found.next_retry_at_ms


async def listed(group: Group, max_count: int = 0, **wanted: Any) -> list[consumer_pb2.WaitingRetry]:
    """All pages."""
    request = consumer_pb2.ListRetriesRequest(filter={"group": group.name, **wanted}, max_count=max_count)
    found: list[consumer_pb2.WaitingRetry] = []
    while True:
        page = await group.stub.ListRetries(request, timeout=60)
        found += page.retries
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


async def ended(call: Any, group: Group, *, dry_run: bool = False, **wanted: Any) -> tuple[int, int, int]:
    """Counts of matched, ended and gone retries."""
    request = consumer_pb2.EndRetriesRequest(filter={"group": group.name, **wanted}, dry_run=dry_run)
    *_, last = [one async for one in call(request, timeout=60)]
    assert last.done
    return last.matched_count, last.ended_count, last.gone_count


async def failed(group: Group, *ids: str, **options: Any) -> None:
    await group.send(*ids)
    await group.nack(*await group.receive(len(ids)), **options)


async def test_waiting_retries_are_counted_and_listed(group: Group) -> None:
    began_ms = group.now_ms
    await failed(group, *"abcdef")
    assert await counted(group) == (6, began_ms + 30_000)
    assert sum(queue.lag for queue in (await described(group)).queues) == 0
    found = await listed(group, max_count=2)
    assert sorted(one.message.id for one in found) == list("abcdef")
    for one in found:
        message, (attempt,) = one.message, one.attempts
        assert (message.topic, message.body, message.attempt) == ("orders", b"body", 1)
        assert message.due_at_ms == began_ms + 30_000
        assert (attempt.attempt, attempt.received_at_ms, attempt.error) == (1, began_ms, ERROR)
    await group.cluster.advance("30s")
    leased = await group.receive(6)
    assert await counted(group) == (0, 0)
    await group.nack(*leased)
    assert await counted(group) == (6, began_ms + 37_000)
    assert [len(one.attempts) for one in await listed(group)] == [2] * 6


async def test_a_filter_selects_retries(group: Group) -> None:
    await failed(group, "a", "b")
    await failed(group, "c", error=consumer_pb2.HandlerError(type="KeyError", message="Key 7"))

    async def ids(**wanted: Any) -> list[str]:
        return sorted(one.message.id for one in await listed(group, **wanted))

    assert await ids(error="keyerror: key") == ["c"]
    assert await ids(error="timeout") == ["a", "b"]
    assert await ids(ids=["b", "c", "x"]) == ["b", "c"]
    assert await ids(topic="orders", ids=["a"]) == ["a"]
    assert await ids(topic="other") == []


async def test_retry_now_delivers_waiting_messages(group: Group) -> None:
    await failed(group, "a", "b", "c")
    now = group.stub.RetryNow
    assert await ended(now, group, ids=["a", "b"], dry_run=True) == (2, 0, 0)
    assert await counted(group) == (3, group.now_ms + 30_000)
    assert await ended(now, group, ids=["a", "b"]) == (2, 2, 0)
    await group.cluster.advance("2ms")
    leased = await group.receive(2)
    assert [(one.message.id, one.attempt) for one in leased] == [("a", 2), ("b", 2)]
    assert [one.message.id for one in await listed(group)] == ["c"]
    # Its history and the policy stay.
    await group.nack(*leased)
    assert await counted(group) == (3, group.now_ms + 7_000)
    assert sorted(len(one.attempts) for one in await listed(group)) == [1, 2, 2]
    await group.cluster.advance("30s")
    assert [one.message.id for one in await group.receive(3)] == ["a", "b", "c"]
    assert await group.is_empty()


async def test_discarded_retries_are_never_delivered(group: Group) -> None:
    await failed(group, "a", "b", "c")
    assert await ended(group.stub.DiscardRetries, group, ids=["a", "c"]) == (2, 2, 0)
    assert await counted(group) == (1, group.now_ms + 30_000)
    assert await ended(group.stub.DiscardRetries, group, ids=["a", "c"]) == (0, 0, 0)
    await group.cluster.advance("1h")
    assert [one.message.id for one in await group.receive()] == ["b"]
    assert await group.is_empty()
    request = gateway_pb2.GetMessageRequest(id="a")
    assert (await group.stub.GetMessage(request, timeout=60)).state == gateway_pb2.MESSAGE_STATE_STORED
    trace = await group.stub.TraceMessage(consumer_pb2.TraceMessageRequest(id="a"), timeout=60)
    last = trace.events[-1]
    assert (last.kind, last.group) == (consumer_pb2.TRACE_KIND_DISCARDED, group.name)


async def test_a_cancel_of_a_message_leaves_its_retries(group: Group) -> None:
    await failed(group, "a")
    (retry,) = await listed(group)
    place = {"shard": retry.shard, "lane": retry.lane, "entry": retry.entry}
    ref = pending_pb2.PendingRef(message_id="a", topic="%RETRY%billing", **place)
    (result,) = (await group.stub.Cancel(pending_pb2.CancelRequest(messages=[ref]), timeout=60)).results
    assert result.status == pending_pb2.CANCEL_STATUS_ALREADY_FIRED
    assert (await counted(group))[0] == 1


async def test_retries_sent_back_by_brokers_clients_are_counted(group: Group) -> None:
    await group.send("a")
    (leased,) = await group.receive()
    request = retry_pb2.SendBackRequest(group="others", topic="orders", queue=leased.message.queue)
    request.offset, request.delay_level = leased.message.offset, 3
    await group.stub.SendBack(request, timeout=60)
    await group.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group={"name": "others"}), timeout=60)
    asked = consumer_pb2.DescribeGroupRequest(name="others")
    found = await group.stub.DescribeGroup(asked, timeout=60)
    assert (found.waiting_retries, found.next_retry_at_ms) == (1, group.now_ms + 10_000)
    assert (await counted(group))[0] == 0


async def test_retries_of_a_deleted_topic_leave_the_count(group: Group) -> None:
    await failed(group, "a", "b")
    deletion = gateway_pb2.DeleteTopicRequest(name="orders", force=True)
    await group.stub.DeleteTopic(deletion, timeout=60)
    assert await counted(group) == (0, 0)
    assert await listed(group) == []


async def test_dead_letters_do_not_wait_for_a_retry(group: Group) -> None:
    await failed(group, "a", "b", reject=True)
    assert await counted(group) == (0, 0)
    redrive = consumer_pb2.RedriveRequest(filter=consumer_pb2.DeadLetterFilter(group=group.name))
    assert len([one async for one in group.stub.RedriveDeadLetters(redrive, timeout=60)]) == 2
    assert await counted(group) == (0, 0)
    await group.nack(*await group.receive(2))
    assert (await counted(group))[0] == 2


async def reset(group: Group, **to: Any) -> int:
    """The number of copies that end with a reset of the topic."""
    request = consumer_pb2.ResetGroupRequest(name=group.name, topic="orders", **to)
    return sum(one.retries_ended for one in (await group.stub.ResetGroup(request, timeout=60)).queues)


async def traced(group: Group, message_id: str) -> list[tuple[str, int]]:
    """Kinds and attempts of a message's events that concern the group."""
    request = consumer_pb2.TraceMessageRequest(id=message_id, topic="orders")
    answer = await group.stub.TraceMessage(request, timeout=60)
    assert not answer.gaps
    named = consumer_pb2.TraceKind.Name
    return [(named(one.kind).removeprefix("TRACE_KIND_"), one.attempt) for one in answer.events if one.group]


FAILED_ONCE = [("RECEIVED", 1), ("FAILED", 1), ("DEFERRED", 1)]


async def test_reset_ends_retries_of_redelivered_messages(group: Group) -> None:
    await failed(group, "a", "b")
    assert await reset(group, earliest=True, dry_run=True) == 2
    assert (await counted(group))[0] == 2
    assert await reset(group, earliest=True) == 2
    assert await counted(group) == (0, 0)
    await group.cluster.advance("1s")
    leased = await group.receive(2)
    assert [(one.message.id, one.attempt) for one in leased] == [("a", 1), ("b", 1)]
    await group.cluster.advance("31s")
    assert await group.is_empty()
    # Failures of messages redelivered after the reset count as retries.
    await group.nack(*leased)
    assert (await counted(group))[0] == 2
    assert await reset(group, earliest=True) == 2
    for message_id in "ab":
        again = sorted([*FAILED_ONCE, ("DISCARDED", 1)] * 2)
        assert sorted(await traced(group, message_id)) == again


async def test_a_hastened_retry_is_traced_without_an_end(group: Group) -> None:
    await failed(group, "a")
    assert await ended(group.stub.RetryNow, group) == (1, 1, 0)
    await group.cluster.advance("2ms")
    (leased,) = await group.receive(1)
    await group.nack(leased)
    kinds = [kind for kind, _ in await traced(group, "a")]
    assert (kinds.count("DISCARDED"), kinds.count("FAILED"), kinds.count("RESCHEDULED")) == (0, 2, 1)


async def test_reset_keeps_retries_of_skipped_messages(group: Group) -> None:
    await failed(group, "a", "b")
    assert await reset(group, latest=True) == 0
    await group.cluster.advance("31s")
    assert [one.message.id for one in await group.receive(2)] == ["a", "b"]


async def test_a_reset_ends_retries_that_are_due(group: Group) -> None:
    await failed(group, "a", "b")
    await group.cluster.advance("30s")
    (first,) = await group.receive(max_count=1)
    assert await reset(group, earliest=True) == 2
    leased = await group.receive(2)
    assert [(one.message.id, one.attempt) for one in leased] == [("a", 1), ("b", 1)]
    (result,) = await group.nack(first)
    assert result.status == consumer_pb2.RECEIPT_STATUS_EXPIRED
    await group.cluster.advance("20s")
    assert await group.is_empty()
    assert await counted(group) == (0, 0)
    # One was received, the other was not.
    other = {"a": "b", "b": "a"}[first.message.id]
    unread = [*FAILED_ONCE, ("RESTORED", 1), ("DISCARDED", 0), ("RECEIVED", 1)]
    assert sorted(await traced(group, other)) == sorted(unread)
    assert sorted(await traced(group, first.message.id)) == sorted([*unread, ("RECEIVED", 2)])


async def test_retries_of_a_deleted_group_never_reach_a_later_one(group: Group) -> None:
    await failed(group, "a")
    await group.cluster.advance("15s")
    await failed(group, "b")
    await group.cluster.advance("15s")
    deletion = consumer_pb2.DeleteGroupRequest(name=group.name, force=True)
    await group.stub.DeleteGroup(deletion, timeout=60)
    await group.create(POLICY, start=consumer_pb2.GROUP_START_LATEST)
    assert await group.is_empty()
    assert await counted(group) == (0, 0)
    await group.cluster.advance("1h")
    assert await group.is_empty()
