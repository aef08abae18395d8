"""Only committed groups leave the store: one test for each way out."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from duetime.v1 import consumer_pb2, export_pb2, gateway_pb2, pending_pb2, schedules_pb2, store_pb2, transactions_pb2
from duetime_format.names import dlq_topic
from duetime_shard import topics
from duetime_store.writing.promises import PROMISE_BY_MS

from tests.store.committing import DEADLINE_S, Committing
from tests.store.conftest import MIB, sent
from tests.store.groups.running import GROUP, TOPIC
from tests.store.scheduling import LANE, MINUTE_MS, asked
from tests.store.transacting import COMMIT, COMMITTED, OPEN, end, end_of, half, prepare

CANCELLED, FIRED = pending_pb2.CANCEL_STATUS_CANCELLED, pending_pb2.CANCEL_STATUS_ALREADY_FIRED
LEVEL_MS, HELD_MS = 1_000, 50
LOOK = store_pb2.ScheduleChange.SCHEDULE_CHANGE_UNSPECIFIED


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Committing]:
    async with Committing(tmp_path / "store") as shard:
        yield shard


async def test_pull_and_waiting_pull(shard: Committing) -> None:
    await shard.committed(shard.put(sent("A")))
    reading = asyncio.ensure_future(shard.pull(offset=1, wait_ms=60_000))
    await shard.waiting("orders")
    put = await shard.held(shard.put(sent("B")))
    assert await shard.max_offset() == 1
    assert not reading.done()
    shard.committer.commit()
    await put
    assert (await reading).next_offset == 2


async def test_trace(shard: Committing) -> None:
    async def trace() -> consumer_pb2.TraceMessageResponse:
        request = consumer_pb2.TraceMessageRequest(id="A", topic="orders")
        return await shard.stub.TraceMessage(request, timeout=DEADLINE_S)

    put = await shard.held(shard.put(sent("A", level=1)))
    with pytest.raises(grpc.aio.AioRpcError):
        await trace()
    shard.committer.commit()
    await put
    before = await trace()
    cancel = await shard.held(shard.cancel("A"))
    assert await trace() == before
    shard.committer.commit()
    assert await cancel == CANCELLED
    assert len((await trace()).events) == len(before.events) + 1


async def test_dead_letters(shard: Committing) -> None:
    """A removed letter stays until its removal is committed."""
    topic = dlq_topic(GROUP)
    await shard.committed(shard.put(sent("A", topic=topic), sent("B", topic=topic)))
    place = store_pb2.DeadLetterPlace(topic=topic, queue=0, offset=0)
    removing = await shard.held(shard.stub.DropDeadLetters(store_pb2.DropDeadLettersRequest(letters=[place])))
    request = store_pb2.PullDeadLettersRequest(topic=topic, max_count=10, max_bytes=MIB)
    pulling = await shard.asking(shard.stub.PullDeadLetters(request, timeout=DEADLINE_S))
    assert not pulling.done()
    shard.committer.commit()
    await removing
    assert list((await pulling).offsets) == [1]


async def test_receive_and_ack(shard: Committing) -> None:
    await shard.committed(shard.put(sent("A"), sent("B")))
    receiving = await shard.held(shard.receive(max_count=1))
    shard.committer.commit()
    (one,) = await receiving
    waiting = asyncio.ensure_future(shard.receive(max_count=1))
    (two,) = await shard.committed(waiting)
    waiting = asyncio.ensure_future(shard.ready(wait_ms=30_000))
    put = await shard.held(shard.put(sent("C")))
    assert not waiting.done()
    shard.committer.commit()
    await put
    assert await waiting
    ack = await shard.held(shard.ack(one))
    # A description relies on the acknowledgement.
    describing = await shard.asking(shard.stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(name=GROUP)))
    assert not describing.done()
    shard.committer.commit()
    await ack
    (row, *_) = (await describing).queues
    assert (row.topic, row.lag, row.in_flight) == (TOPIC, 2, 1)
    assert two.message.id == "B"


async def test_backlog_counts_and_lists(shard: Committing) -> None:
    put = await shard.held(shard.put(sent("A", level=1), sent("B", level=1)))
    assert (await shard.backlog(), await shard.listed()) == (0, [])
    shard.committer.commit()
    await put
    cancel = await shard.held(shard.cancel("A"))
    assert (await shard.backlog(), await shard.listed()) == (2, ["A", "B"])
    shard.committer.commit()
    assert await cancel == CANCELLED
    assert (await shard.backlog(), await shard.listed()) == (1, ["B"])
    shard.clock.move(LEVEL_MS)
    restore = await shard.held(shard.restore(1, 1, 1))
    lane = shard.node.store.lanes[1]
    assert (await shard.backlog(), await shard.listed(), lane.watermark) == (1, ["B"], 1)
    due = await shard.pull_due()
    assert (len(due.records), due.watermark) == (0, 1)
    shard.committer.commit()
    await restore
    assert (await shard.backlog(), await shard.listed(), lane.watermark) == (0, [], 2)


async def test_cancel_and_the_delivery_before_it(shard: Committing) -> None:
    await shard.committed(shard.put(sent("A", level=1)))
    shard.clock.move(LEVEL_MS)
    restore = await shard.held(shard.restore(1, 0, 1))
    cancel = await shard.asking(shard.cancel("A"))
    assert not cancel.done(), "ALREADY_FIRED relies on an uncommitted delivery"
    shard.committer.commit()
    await restore
    assert await cancel == FIRED


async def test_checkpoint(shard: Committing) -> None:
    await shard.committed(shard.put(sent("A")))
    end_position = shard.node.store.published_end
    put = await shard.held(shard.put(sent("B"), sent("C", level=1)))
    assert await shard.checkpoint()
    assert shard.node.parts.checkpointer.position == end_position
    shard.committer.commit()
    await put


async def test_retention(tmp_path: Path) -> None:
    """An entry whose cancel is not committed keeps its record."""
    async with Committing(tmp_path / "store", retention_ms=MINUTE_MS, retention_check_ms=1 << 30) as shard:
        cleaner, log = shard.node.parts.cleaner, shard.node.store.log
        shard.committer.release()
        await shard.put(sent("A", level=2))
        for number in range(24):
            await shard.put(sent(f"N{number}", topic="noise", body=bytes(100_000)))
        await cleaner.clean()
        shard.clock.move(MINUTE_MS)
        shard.committer.is_free = False
        cancel = await shard.held(shard.cancel("A", lane=2))
        await cleaner.clean()
        assert log.min_position == 0
        assert (await shard.pull_due(2)).records == b""
        shard.committer.commit()
        assert await cancel == CANCELLED
        await cleaner.clean()
        assert log.min_position > 0


async def test_counted_checks_of_transactions(shard: Committing) -> None:
    """A checkpoint has no check whose report is not committed."""
    await shard.committed(prepare(shard, half("A")))
    shard.clock.move(shard.settings.transaction_timeout_ms)
    take = store_pb2.TakeChecksRequest(groups=["g"], max_count=1, wait_ms=1_000)
    (check,) = (await shard.stub.TakeChecks(take, timeout=DEADLINE_S)).checks
    request = store_pb2.ReportChecksRequest(heard=[check.half.offset])
    reporting = await shard.held(shard.stub.ReportChecks(request, timeout=DEADLINE_S))
    table = shard.node.parts.transactions
    assert table.page(-1, "", 10).checks.tolist() == [0]
    shard.committer.commit()
    await reporting
    assert table.page(-1, "", 10).checks.tolist() == [1]


async def test_promise_counts_once_its_plan_is_committed(shard: Committing) -> None:
    """A record is read before its own commit only if that of its plan is known."""
    await shard.committed(shard.put(sent("before")))
    await shard.committed(shard.put(sent("A", level=1), sent("B", level=1)))
    store = shard.node.store
    shard.clock.move(LEVEL_MS - HELD_MS)
    restoring = asyncio.ensure_future(shard.restore(1, 0, 2))
    await shard.until(lambda: shard.node.parts.holding._bytes)
    shard.clock.move(HELD_MS - PROMISE_BY_MS)
    await shard.until(lambda: len(shard.committer.waiting) == 1)
    shard.clock.move(PROMISE_BY_MS)
    await shard.until(lambda: len(shard.committer.waiting) == 2)
    assert (await shard.max_offset(), restoring.done()) == (1, False)
    shard.committer.commit(shard.committer.waiting[:1])
    assert not (await restoring).statuses
    assert await shard.max_offset() == 3
    # Copies, final counts, and the checkpoint include only committed records.
    assert store.durable_end < store.published_end
    files = (await shard.stub.ListFiles(export_pb2.ListFilesRequest(), timeout=DEADLINE_S)).files
    sizes = {file.path: file.size for file in files}
    exported = b"".join(
        [
            chunk.data
            async for chunk in shard.stub.Export(export_pb2.ExportRequest(path="commitlog/" + "0" * 20), timeout=60)
        ]
    )
    assert sizes
    assert not exported[store.durable_end :].rstrip(b"\0")
    writing = await shard.asking(shard.checkpoint())
    assert not writing.done()
    shard.committer.commit()
    assert await writing
    assert store.durable_end == store.published_end


async def test_transactions(shard: Committing) -> None:
    preparing = await shard.held(prepare(shard, half("A")))
    listed = await shard.stub.ListTransactions(transactions_pb2.ListTransactionsRequest(), timeout=DEADLINE_S)
    assert not listed.halves
    shard.committer.commit()
    places = await preparing
    one = store_pb2.Half(offset=places.offsets[0], position=places.positions[0])
    request = store_pb2.GetHalfRequest(half=one)
    ending = await shard.held(end(shard, end_of(one, "A", COMMIT)))
    again = await shard.asking(end(shard, end_of(one, "A", COMMIT)))
    assert not again.done()
    found = await shard.stub.GetTransaction(request, timeout=DEADLINE_S)
    assert found.half.transaction.state == OPEN
    assert TOPIC not in shard.node.store.queues.counts or await shard.max_offset() == 0
    shard.committer.commit()
    assert [(await call)[0].state for call in (ending, again)] == [COMMITTED] * 2
    found = await shard.stub.GetTransaction(request, timeout=DEADLINE_S)
    assert found.half.transaction.state == COMMITTED
    assert await shard.max_offset() == 1


async def test_offsets_of_groups_in_the_file_for_brokers(shard: Committing) -> None:
    await shard.committed(shard.put(sent("A"), sent("B")))
    (one, two) = await shard.committed(shard.receive())
    await shard.committed(shard.ack(one))
    assert await shard.committed(shard.checkpoint())
    assert committed_offset(shard) == 1
    await shard.committed(shard.put(sent("C")))
    ack = await shard.held(shard.ack(two))
    writing = await shard.asking(shard.checkpoint())
    assert committed_offset(shard) == 1
    shard.committer.commit()
    await ack
    await writing
    assert await shard.committed(shard.checkpoint())
    assert committed_offset(shard) == 2


async def test_offsets_that_groups_commit(shard: Committing) -> None:
    await shard.committed(shard.put(sent("A"), sent("B")))
    queues = [gateway_pb2.QueuePosition(shard_queue=0, offset=2)]
    request = gateway_pb2.CommitOffsetsRequest(group="audit", topic=TOPIC, queues=queues)
    committing = await shard.held(shard.stub.CommitOffsets(request, timeout=DEADLINE_S))
    asked = gateway_pb2.GetOffsetsRequest(group="audit", topic=TOPIC)
    assert not (await shard.stub.GetOffsets(asked, timeout=DEADLINE_S)).queues
    assert await shard.checkpoint()
    assert not (shard.settings.data_dir / "config" / "consumerOffset.json").exists()
    shard.committer.commit()
    await committing
    (found,) = (await shard.stub.GetOffsets(asked, timeout=DEADLINE_S)).queues
    assert found.offset == 2


async def test_topics(shard: Committing) -> None:
    async def listed() -> dict[str, int]:
        answer = await shard.stub.ListTopics(store_pb2.ListStoredTopicsRequest(), timeout=DEADLINE_S)
        return {one.name: one.read_queue_count for one in answer.topics}

    before = await listed()
    putting = await shard.held(shard.stub.PutTopic(store_pb2.PutTopicRequest(name="mail", queue_count=2)))
    assert await listed() == before
    assert await shard.checkpoint()
    assert "mail" not in topics.read(shard.settings.data_dir / "config").counts
    shard.committer.commit()
    await putting
    assert (await listed())["mail"] == 2


async def test_settings_of_groups_and_pauses(shard: Committing) -> None:
    await shard.committed(shard.put(sent("A")))
    putting = await shard.held(shard.stub.PutGroup(consumer_pb2.Group(name="audit"), timeout=DEADLINE_S))
    request = consumer_pb2.PauseGroupRequest(name=GROUP)
    pausing = await shard.held(shard.stub.PauseGroup(request, timeout=DEADLINE_S), groups=2)
    assert not (await shard.stub.ListGroups(consumer_pb2.ListGroupsRequest(), timeout=DEADLINE_S)).groups
    assert await shard.checkpoint()
    config = shard.settings.data_dir / "config"
    assert not {"subscriptionGroup.json", "duetimePauses.json"} & {path.name for path in config.iterdir()}
    # A fetch still gives messages out.
    receiving = await shard.held(shard.receive(), groups=3)
    shard.committer.commit()
    await putting
    await pausing
    assert len(await receiving) == 1
    await shard.committed(shard.put(sent("B")))
    assert await shard.committed(shard.receive()) == []
    (found,) = (await shard.stub.ListGroups(consumer_pb2.ListGroupsRequest(), timeout=DEADLINE_S)).groups
    assert found.name == "audit"


def committed_offset(shard: Committing) -> int:
    path = shard.settings.data_dir / "config" / "consumerOffset.json"
    found = re.search(rf'"{TOPIC}@{GROUP}":{{0:(\d+)', path.read_text())
    assert found is not None
    return int(found[1])


async def test_next_occurrence_of_a_schedule(shard: Committing) -> None:
    first = (await shard.committed(shard.stub.PutSchedule(asked("report"), timeout=DEADLINE_S))).schedule
    shard.clock.move(MINUTE_MS)
    restore = await shard.held(shard.restore(LANE, 0, 1))
    assert await shard.listed() == [first.message_id]
    request = store_pb2.ChangeScheduleRequest(topic="orders", name="report", change=LOOK)
    looking = await shard.asking(shard.stub.ChangeSchedule(request, timeout=DEADLINE_S))
    assert not looking.done()
    shard.committer.commit()
    await restore
    found = (await looking).schedule
    assert found.due_at_ms == first.due_at_ms + MINUTE_MS
    assert await shard.listed() == [found.message_id]


async def test_last_occurrence_of_a_schedule(shard: Committing) -> None:
    """NOT_FOUND relies on its delivery."""
    times = schedules_pb2.ListedTimes(at_ms=[shard.clock.now_ms() + MINUTE_MS])
    await shard.committed(shard.stub.PutSchedule(asked("report", at=times), timeout=DEADLINE_S))
    shard.clock.move(MINUTE_MS)
    restore = await shard.held(shard.restore(LANE, 0, 1))
    request = store_pb2.ChangeScheduleRequest(topic="orders", name="report", change=LOOK)
    looking = await shard.asking(shard.stub.ChangeSchedule(request, timeout=DEADLINE_S))
    assert not looking.done()
    shard.committer.commit()
    await restore
    with pytest.raises(grpc.aio.AioRpcError, match="has no schedule 'report'"):
        await looking
