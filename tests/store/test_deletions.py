"""Deleting topics from a shard: deleted data stays deleted after crashes, and a new topic starts after the old one."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2
from duetime_format import deletions
from duetime_format.errors import DamagedBytes
from duetime_format.levels import DelayLevels
from duetime_shard import shard as state
from duetime_store.offline.verify import verify

from tests.power_disk import PowerDisk
from tests.rounds import ONE_IN, some
from tests.store.conftest import sent
from tests.store.groups.running import EXPIRED, GROUP, TOPIC, UNKNOWN, Consuming, copy, names
from tests.store.groups.test_admin import refused
from tests.store.running import Running

CLOSE, OPEN, DELETE = 1, 2, 3
NOT_FOUND = (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")


class Deleting(Consuming):
    """A store of which a topic is deleted."""

    async def __aenter__(self) -> "Deleting":
        await Running.__aenter__(self)
        return self

    async def make(self, generation: int = 0) -> None:
        request = store_pb2.PutTopicRequest(name=TOPIC, queue_count=1, generation=generation)
        await self.stub.PutTopic(request)

    async def stage(self, stage: int, generation: int = 0, name: str = TOPIC) -> store_pb2.DeleteStoredTopicResponse:
        request = store_pb2.DeleteStoredTopicRequest(name=name, generation=generation, stage=stage)  # type: ignore[arg-type]
        return await self.stub.DeleteTopic(request, timeout=60)

    async def refusal(self, *records: bytes) -> str:
        """Why records of one put are refused; empty: they are stored."""
        answer = await self.put(*records)
        return next((fault.reason for fault in answer.faults.values()), "")

    async def topics(self) -> set[str]:
        return {one.name for one in (await self.stub.ListTopics(store_pb2.ListStoredTopicsRequest())).topics}

    @property
    def files(self) -> Path:
        return self.settings.data_dir / "consumequeue" / TOPIC

    def check(self) -> None:
        """A stopped store's directory has no fault, and no topic as other programs read it."""
        levels = DelayLevels.parse("1s 1h")
        assert verify(self.settings.data_dir, levels).damages == []
        assert TOPIC not in {topic for topic, _ in state.read(self.settings.data_dir, levels).queues}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Deleting]:
    async with Deleting(tmp_path / "store", queue_file_units=100) as running:
        await running.make()
        yield running


def test_a_deletion_is_read_as_it_was_written() -> None:
    deletion = deletions.Deletion("orders", 3, (300, 0))
    assert deletions.decode(deletion.encode(), 17) == deletion._replace(position=17)
    assert (deletion.begin(0), deletion.begin(1), deletion.begin(9)) == (300, 0, 0)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}", b"[" * 100_000),
        *(b'{"topic": "", "generation": 1, "begins": []}', b'{"topic": "a", "generation": 1}'),
        *(b'{"topic": "a", "generation": -1, "begins": []}', b'{"topic": "a", "generation": 1, "begins": [true]}'),
    ],
)
def test_damage_is_no_deletion(body: bytes) -> None:
    with pytest.raises(DamagedBytes):
        deletions.decode(body, 0)


async def test_a_deleted_topic_does_not_exist(store: Deleting) -> None:
    await store.send("a", "b", "c")
    got = await store.receive(max_count=2)
    left = await store.stage(CLOSE)
    (group,) = left.groups
    assert (group.group, group.unread_count, group.in_flight_count, left.deleted_generation) == (GROUP, 1, 2, -1)
    assert await store.refusal(sent("d")) == "TOPIC_CLOSED"
    answer = await store.stage(DELETE)
    assert ([one.in_flight_count + one.unread_count for one in answer.groups], answer.deleted_generation) == ([0], 0)
    assert TOPIC not in await store.topics()
    assert await refused(store.pull()) == NOT_FOUND
    assert await refused(store.receive()) == NOT_FOUND
    assert await store.refusal(sent("d")) == await store.refusal(sent("e", level=1)) == "TOPIC_NOT_FOUND"
    assert await store.ack(*got) == [UNKNOWN, UNKNOWN]
    assert not store.files.exists()
    assert {one.topic for one in (await store.describe()).queues} <= {f"%RETRY%{GROUP}"}
    await store.__aexit__()
    store.check()
    await store.__aenter__()


async def test_reopened_topic_accepts_messages(store: Deleting) -> None:
    await store.stage(CLOSE)
    assert await store.refusal(sent("a")) == "TOPIC_CLOSED"
    await store.stage(OPEN)
    assert await store.refusal(sent("a")) == ""
    await store.stage(CLOSE)
    # The caller that closed the topic may have died.
    await store.clock.advance(60_000)
    assert await store.refusal(sent("b")) == ""


async def test_pending_messages_are_never_dropped(store: Deleting) -> None:
    await store.put(sent("a", level=1))
    assert (await store.stage(CLOSE)).pending_count == 1
    assert await refused(store.stage(DELETE)) == (grpc.StatusCode.FAILED_PRECONDITION, "TOPIC_NOT_EMPTY")
    await store.stage(OPEN)
    assert TOPIC in await store.topics()
    assert await store.refusal(sent("b")) == ""


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "%RETRY%billing", "%DLQ%billing", "DT_DELETED", "x" * 200, ""])
async def test_system_topics_and_impossible_ones_are_refused(store: Deleting, name: str) -> None:
    assert (await refused(store.stage(DELETE, name=name)))[0] == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("how", ["kill", "again"])
async def test_it_stays_deleted_and_a_new_one_begins_after_it(store: Deleting, how: str) -> None:
    await store.send("a", "b")
    got = await store.receive()
    await store.stage(DELETE)
    await (store.kill if how == "kill" else store.again)()
    assert TOPIC not in await store.topics()
    assert await store.refusal(sent("c")) == "TOPIC_NOT_FOUND"
    assert await refused(store.make(0)) == NOT_FOUND
    await store.make(1)
    # An id of the old one is no repetition.
    await store.send("a")
    pulled = await store.pull(1)
    assert (pulled.status, pulled.min_offset, pulled.max_offset) == (
        gateway_pb2.PULL_STATUS_OFFSET_OUT_OF_RANGE,
        2,
        3,
    )
    assert set(await store.ack(*got)) <= {EXPIRED, UNKNOWN}
    assert names(await store.receive()) == ["a"]
    # The old one's deletion comes late.
    await store.stage(DELETE)
    assert TOPIC in await store.topics()
    await store.kill()
    assert names(await store.receive()) == []
    await store.stage(DELETE, 1)
    await store.kill()
    await store.make(2)
    assert (await store.pull(3)).min_offset == 3


async def test_it_stays_deleted_when_all_is_rebuilt_from_the_log(store: Deleting) -> None:
    await store.send("a", "b")
    await store.receive()
    await store.stage(DELETE)
    await store.make(1)
    await store.send("c")

    def lose() -> None:
        root = store.settings.data_dir
        for path in [*root.glob("config/*"), root / "checkpoint", root / "duetimeQueues", root / "duetimeGroups"]:
            path.unlink(missing_ok=True)
        shutil.rmtree(root / "consumequeue")

    await store.kill(lose)
    pulled = await store.pull(2)
    assert [one.id for one in pulled.messages] == ["c"]
    assert pulled.min_offset == 2
    assert names(await store.receive()) == ["c"]
    assert store.node.report.damage.count == store.node.report.repeated == 0
    await store.stage(DELETE, 1)
    await store.kill(lose)
    assert TOPIC not in await store.topics()
    assert await store.refusal(sent("d")) == "TOPIC_NOT_FOUND"


async def test_deletion_ends_waiting_calls(store: Deleting) -> None:
    await store.send("a")
    assert names(await store.receive()) == ["a"]
    pull = asyncio.ensure_future(store.pull(1, wait_ms=20_000))
    receive = asyncio.ensure_future(store.receive(wait_ms=20_000))
    await store.waiting(TOPIC)
    async with asyncio.timeout(60):
        while not store.node.parts.groups._lines.of(GROUP, TOPIC).waiters:
            await store.stub.Describe(store_pb2.DescribeRequest())
    await store.stage(DELETE)
    assert await refused(pull) == await refused(receive) == NOT_FOUND


async def test_retries_of_it_are_not_those_of_a_new_one(store: Deleting) -> None:
    await store.send("a")
    await store.receive()
    await store.put(copy("r1"), copy("r2"), copy("other", of_topic="mail"))
    assert [one.retry_count for one in (await store.stage(CLOSE)).groups] == [2]
    await store.stage(DELETE)
    await store.make(1)
    await store.put(copy("r3"))
    await store.send("b")
    assert sorted(names(await store.receive())) == ["b", "r3"]
    await store.kill()
    assert await store.receive() == []


async def test_offsets_that_groups_commit_go_too(store: Deleting) -> None:
    await store.send("a", "b", "c")
    position = gateway_pb2.QueuePosition(queue=0, shard_queue=0, offset=2)
    commit = gateway_pb2.CommitOffsetsRequest(group="own", topic=TOPIC, queues=[position])
    await store.stub.CommitOffsets(commit)
    assert [(one.group, one.unread_count) for one in (await store.stage(CLOSE)).groups] == [("own", 1)]
    await store.stage(DELETE)
    await store.make(1)
    answer = await store.stub.GetOffsets(gateway_pb2.GetOffsetsRequest(group="own", topic=TOPIC))
    assert not answer.queues


async def test_a_topic_that_the_shard_never_had_is_refused_from_then_on(store: Deleting) -> None:
    await store.stage(DELETE, 4, name="mail")
    assert await store.refusal(sent("a", topic="mail")) == "TOPIC_NOT_FOUND"
    await store.kill()
    assert await store.refusal(sent("a", topic="mail")) == "TOPIC_NOT_FOUND"
    await store.stub.PutTopic(store_pb2.PutTopicRequest(name="mail", queue_count=1, generation=5))
    assert await store.refusal(sent("a", topic="mail")) == ""


async def test_a_deletion_outlives_its_record(store: Deleting) -> None:
    await store.send("a")
    await store.stage(DELETE, 3)
    deletions_file = store.settings.data_dir / "config" / "duetimeDeletedTopics.json"
    assert TOPIC in deletions_file.read_text()
    # Retention takes the record; the file has it.
    queue = store.node.store.queues.find("DT_DELETED", 0)
    queue.trim(store.node.store.published_end)
    await store.again()
    assert await refused(store.make(3)) == NOT_FOUND
    await store.make(4)
    assert (await store.pull(1)).min_offset == 1


async def cut_while_deleting(root: Path, operations: int) -> tuple[Path, bool]:
    """Cuts power at the n-th operation of the disk. Returns the directory left, and whether the deletion
    was answered.
    """
    disk = PowerDisk(root, random.Random(operations))
    store = Deleting(root, disk=disk, queue_file_units=100)
    await store.__aenter__()
    await store.make()
    await store.send("a", "b")
    await store.receive()
    await store.node.parts.checkpointer.write()
    disk.cut_power_in(operations)
    call = asyncio.ensure_future(store.stage(DELETE))
    await asyncio.wait({call, store.node.loops}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    is_answered = call.done() and call.exception() is None
    disk.is_off = True
    # A dead process sends no answers and closes no files.
    with suppress(Exception):
        await store.__aexit__()
    await asyncio.gather(call, return_exceptions=True)
    disk.close_all()
    disk.lose()
    return Path(await asyncio.to_thread(shutil.copytree, root, root.with_name(f"after-{operations}"))), is_answered


@pytest.mark.parametrize("one_in", ONE_IN)
async def test_a_power_cut_leaves_the_topic_or_its_deletion(tmp_path: Path, one_in: int) -> None:
    fates = set()
    for operations in some(range(1, 40), one_in):
        found, is_answered = await cut_while_deleting(tmp_path / f"store-{operations}", operations)
        async with Deleting(found, queue_file_units=100) as store:
            is_there = TOPIC in await store.topics()
            fates.add((is_there, is_answered))
            assert not (is_there and is_answered), operations
            if is_there:
                assert [one.id for one in (await store.pull()).messages] == ["a", "b"], operations
            else:
                assert await store.refusal(sent("c")) == "TOPIC_NOT_FOUND", operations
            # The store still works.
            await store.stage(DELETE)
            assert TOPIC not in await store.topics(), operations
            await store.make(1)
            await store.send("c")
            pulled = await store.pull(2)
            assert ([one.id for one in pulled.messages], pulled.min_offset) == (["c"], 2), operations
            assert names(await store.receive()) == ["c"], operations
        assert verify(found, DelayLevels.parse("1s 1h")).damages == [], operations
    # The first two operations come before the record is durable.
    assert (True, False) in fates
    assert (False, True) in fates or (False, False) in fates
