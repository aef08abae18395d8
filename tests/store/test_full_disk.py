"""A disk that fills up: refused calls, and data that is never deleted to free space."""

from pathlib import Path

import grpc
from duetime.v1 import consumer_pb2, gateway_pb2, store_pb2
from duetime_format import record
from duetime_format.names import SCHEDULE_TOPIC
from duetime_store.writing.room import EXTRA_BYTES

from tests.faulty_disk import FaultyDisk
from tests.store.conftest import MIB, ids, sent
from tests.store.test_disk_faults import FULL, Sick, reason_of, refusal
from tests.store.test_retention import run

HOUR_MS = 3_600_000
BODY = b"x" * 10_000
BATCH = 25
SMALL = {"retention_check_ms": 1 << 30, "disk_used_max": 0.9}


class Small(Sick):
    """A store on a disk of 24 MiB, in segments of one."""

    def __init__(self, root: Path, **settings: object) -> None:
        super().__init__(root, FaultyDisk(24 * MIB), **{**SMALL, **settings})

    async def until_full(self, topic: str, level: int = 0) -> list[str]:
        """Sends until a send is refused; returns the accepted ids."""
        taken: list[str] = []
        for _ in range(200):
            names = [f"{topic}-{level}-{len(taken) + n}" for n in range(BATCH)]
            messages = [sent(name, topic=topic, level=level, body=BODY) for name in names]
            if await reason_of(self.put(*messages)):
                return taken
            taken += names
            await self.clock.advance(1_000)
            await self.describe()
            # The look that the clock began has ended.
            await self.node.parts.watch.inspect()
        raise AssertionError("the disk is not full")

    async def clean(self) -> None:
        await run(self.clock, self.node.parts.cleaner.clean())

    def first_position(self) -> int:
        return self.node.store.log.min_position

    async def receive(self, topic: str, count: int) -> list[consumer_pb2.LeasedMessage]:
        request = consumer_pb2.ReceiveRequest(
            group="billing",
            topic=topic,
            max_count=count,
            invisible_ms=HOUR_MS,
            queues=[consumer_pb2.QueueNumber(queue=0, shard_queue=0)],
            retry_queues=[consumer_pb2.QueueNumber(queue=0, shard_queue=0)],
        )
        return list((await self.stub.Receive(request, timeout=60)).messages)

    async def read_all(self, topic: str) -> None:
        while messages := await self.receive(topic, 1_000):
            names = [one.receipt for one in messages]
            await self.stub.Ack(consumer_pb2.AckRequest(group="billing", receipts=names), timeout=60)

    async def drain(self) -> list[str]:
        """Restores everything due in lane 1 as a scheduler does: a record without space is put again."""
        restored: list[str] = []
        refused = 0
        while (due := await self.pull_due(1)).sizes:
            try:
                answer = await self.restore(due.first_entry, len(due.sizes))
            except grpc.aio.AioRpcError:
                # The reserve is given back by then.
                refused += 1
                assert refused == 1
                continue
            assert not any(answer.statuses), answer.statuses
            restored += ids([self.decoded(1, due.first_entry + n) for n in range(len(due.sizes))])
        return restored

    def decoded(self, level: int, entry: int) -> record.Record:
        queue = self.node.store.queues.find(SCHEDULE_TOPIC, level - 1)
        position, size, _ = queue.read(entry, 1).tolist()[0]
        return record.decode(self.node.store.read_record(position, size))


async def test_full_disk_deletes_nothing(tmp_path: Path) -> None:
    async with Small(tmp_path / "store") as store:
        await store.put(sent("fresh", topic="orders"))
        taken = await store.until_full("noise")
        assert len(taken) > 500
        await store.clean()
        assert store.first_position() == 0
        assert store.all_stored() == sorted(["fresh", *taken])
        assert await reason_of(store.put(sent("later"))) == FULL


async def test_a_broker_s_way_is_a_setting(tmp_path: Path) -> None:
    async with Small(tmp_path / "store", disk_force=0.85) as store:
        await store.put(sent("fresh", topic="orders"))
        await store.until_full("noise")
        await store.clean()
        assert store.first_position() > 0
        queue = store.node.store.queues.find("orders", 0)
        assert queue.min_offset == queue.max_offset == 1


async def test_due_messages_are_delivered_from_a_full_disk(tmp_path: Path) -> None:
    """Each needs as much room again: sends are refused before that is taken."""
    async with Small(tmp_path / "store") as store:
        taken = await store.until_full("orders", level=1)
        assert 300 < len(taken) < 1_300
        needed = store.metric("duetime_store_restores_need_bytes")
        assert needed > len(taken) * (len(BODY) + EXTRA_BYTES)
        assert store.disk.free_bytes < needed + BATCH * 2 * len(BODY)
        error = await refusal(store.put(sent("later")))
        assert (error.reason, error.status) == (FULL, grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert "pending messages need" in error.text
        store.clock.move(HOUR_MS)
        assert sorted(await store.drain()) == sorted(taken)
        assert [name for name in store.all_stored() if name in taken] == sorted(taken)
        await store.clock.advance(1_000)
        await store.describe()
        assert store.node.parts.watch._room.needed_bytes == 0


async def test_the_room_of_pending_messages_is_counted_again_at_a_start(tmp_path: Path) -> None:
    async with Small(tmp_path / "store") as store:
        await store.fill("ABCDEFGHIJ")
        store.clock.move(1_000)
        await store.restore(0, 4)
        room = store.node.parts.watch._room
        await room.count()
        first = room.needed_bytes, room.pending_count
        assert first[1] == 6
    async with Small(tmp_path / "store") as store:
        await store.node.parts.watch._room.count()
        assert (store.node.parts.watch._room.needed_bytes, store.node.parts.watch._room.pending_count) == first
        await store.restore(4, 3)
        await store.put(sent("K", level=1))
        await store.node.parts.watch._room.count()
        assert store.node.parts.watch._room.pending_count == 4


async def test_expired_files_leave_for_room_once_they_are_read(tmp_path: Path) -> None:
    """Outside of the hours in which files leave by age."""
    settings = {"retention_ms": 1_000, "retention_hours": [23], "disk_clean": 0.1}
    async with Small(tmp_path / "store", **settings) as store:
        await store.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=1))
        assert len(await store.receive("orders", 1)) == 0
        for first in range(0, 400, BATCH):
            await store.put(*(sent(f"N{first + n}", topic="orders", body=BODY) for n in range(BATCH)))
        await store.clean()
        store.clock.move(2_000)
        await store.clean()
        assert store.first_position() == 0
        await store.read_all("orders")
        await store.clean()
        assert store.first_position() > 0


async def test_offsets_that_are_only_committed_keep_files_too(tmp_path: Path) -> None:
    settings = {"retention_ms": 1_000, "retention_hours": [23], "disk_clean": 0.1}
    async with Small(tmp_path / "store", **settings) as store:
        for first in range(0, 400, BATCH):
            await store.put(*(sent(f"N{first + n}", topic="orders", body=BODY) for n in range(BATCH)))
        await commit(store, 50)
        await store.clean()
        store.clock.move(2_000)
        await store.clean()
        assert store.first_position() == 0
        await commit(store, 250)
        await store.clean()
        assert store.first_position() == 2 * MIB


async def commit(store: Small, offset: int) -> None:
    position = gateway_pb2.QueuePosition(queue=0, shard_queue=0, offset=offset)
    request = gateway_pb2.CommitOffsetsRequest(group="reader", topic="orders", queues=[position])
    await store.stub.CommitOffsets(request, timeout=60)
