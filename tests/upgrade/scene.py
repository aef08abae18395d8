"""Loads a cluster with one of everything that an upgrade must carry over, and writes the manifest as JSON.

Runs under the release's Python (make_release.py), so it uses the release's SDK and test kit alone. Time is
a fake clock's.

    python scene.py DIRECTORY MANIFEST [DATABASE_URL]

Manifest:

    saved_at_ms   the clock when the cluster was stopped
    messages      by id: topic, body (first 16 hex digits of its SHA-256), due_at_ms (0: it is in its topic),
                  left (true: retention has deleted it), groups (what each group has done with it, by group:
                  leased, retried, acked, dead, redriven, discarded)
    moved         ids that retention has appended to the log again
    answers       what the gateway said of topics, groups, offsets, lanes and dead letters, as protobuf's JSON
"""

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from duetime import (
    AsyncDeadLetters,
    AsyncFinder,
    AsyncProducer,
    AsyncPuller,
    AsyncReceiver,
    LeasedMessage,
    Message,
    NotFound,
    Receipt,
)
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc, store_pb2, store_pb2_grpc
from duetime_core.rpc.retry_policy import parse
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from google.protobuf.json_format import MessageToDict

TOPICS = {"orders": 4, "accounts": 2, "parcels": 1, "filler": 1}
# Level 18 is two hours.
LEVELS = range(1, 19)
RETENTION_MS = 600_000
STORE = {
    "segment_bytes": 1 << 20,
    "queue_file_units": 100,
    "index_slots": 5_000,
    "index_entries": 20_000,
    "retention_ms": RETENTION_MS,
    "retention_check_ms": 1_000,
    "disk_clean": 1,
    "disk_force": 1,
    "disk_used_max": 1,
}
GROUPS = (
    consumer_pb2.Group(name="billing", retry=parse("exponential:5m..10m,max=5")),
    consumer_pb2.Group(name="shipping", retry=parse("1s,max=2")),
    consumer_pb2.Group(name="ledger", ordered=True),
    consumer_pb2.Group(name="newcomers", start=consumer_pb2.GROUP_START_LATEST),
)
LEASE = "1h"


class Scene:
    """The cluster, and the manifest as it grows."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.messages: dict[str, dict[str, Any]] = {}

    async def send(self, *messages: Message) -> None:
        async with AsyncProducer(self.cluster.address) as producer:
            for message, receipt in zip(messages, await producer.send_many(messages, errors="return"), strict=True):
                assert isinstance(receipt, Receipt), receipt
                self.messages[message.id] = {
                    "topic": message.topic,
                    "body": hashlib.sha256(message.body).hexdigest()[:16],
                    "due_at_ms": round(receipt.deliver_at.timestamp() * 1000) if receipt.deliver_at else 0,
                    "left": False,
                    "groups": {},
                }

    def note(self, group: str, state: str, *messages: LeasedMessage) -> None:
        for message in messages:
            self.messages[message.id]["groups"][group] = state

    async def pending(self) -> None:
        """On every level; the shorter delays pass before the end of the scene."""
        for turn in range(3):
            ids = {level: f"early-{level}-{turn}" for level in LEVELS}
            await self.send(*(Message("orders", name.encode(), level=level, id=name) for level, name in ids.items()))

    async def retained(self) -> list[str]:
        """Fills segments until the first ones leave; ids of the pending messages that were appended again."""
        async with AsyncFinder(self.cluster.address) as finder:
            before = {name: (await finder.get(name)).offset_id for name in self.messages}
            for turn in range(3):
                await self.send(Message("filler", b"-" * (900 * 1024), id=f"filler-{turn}"))
            await self.cluster.advance(f"{RETENTION_MS}ms")
            for _ in range(60):
                await self.cluster.advance("1s")
                if await self.min_position() >= STORE["segment_bytes"]:
                    break
            else:
                raise TimeoutError("retention has deleted nothing")
            return [
                name
                for name, offset_id in before.items()
                if self.messages[name]["due_at_ms"] > self.cluster.clock.now_ms()
                and (await finder.get(name)).offset_id != offset_id
            ]

    async def min_position(self) -> int:
        """Where the log begins."""
        async with make_channel(f"127.0.0.1:{self.cluster.stores[0].port}") as channel:
            described = await store_pb2_grpc.StoreStub(channel).Describe(store_pb2.DescribeRequest())
            return int(described.min_position)

    async def consumed(self) -> None:
        """`billing`: acknowledged, leased, failed, rejected and not yet given out."""
        names = [f"order-{n}" for n in range(40)]
        await self.send(*(Message("orders", n.encode(), id=n, tags="paid", keys=[f"key-{n}"]) for n in names))
        async with self.receiver("billing", lease="30s") as receiver:
            await receive(receiver, 4)
            # Their leases end unacknowledged: the next delivery is their second.
            await self.cluster.advance("31s")
        async with self.receiver("billing") as receiver:
            got = await receive(receiver, 30)
            await receiver.ack(got[:12])
            self.note("billing", "acked", *got[:12])
            for message in got[12:16]:
                await receiver.nack(message, ValueError("not now"))
            self.note("billing", "retried", *got[12:16])
            for message in got[16:19]:
                await receiver.nack(message, ValueError("never"), reject=True)
            self.note("billing", "dead", *got[16:19])
            self.note("billing", "leased", *got[19:])

    async def dead(self) -> None:
        """`shipping`: dead letters after two attempts, one of them redriven, one discarded."""
        await self.send(*(Message("parcels", f"parcel {n}".encode(), id=f"parcel-{n}") for n in range(5)))
        async with self.receiver("shipping", "parcels") as receiver:
            for _ in range(2):
                got = await receive(receiver, 5)
                for message in got:
                    await receiver.nack(message, TimeoutError("no answer"))
                await self.cluster.advance("2s")
        self.note("shipping", "dead", *got)
        async with AsyncDeadLetters(self.cluster.address, "shipping") as letters:
            async for result in letters.redrive(ids=[got[0].id]):
                assert result.outcome == "redriven", result
            async for result in letters.discard(ids=[got[1].id]):
                assert result.outcome == "discarded", result
        self.note("shipping", "redriven", got[0])
        self.note("shipping", "discarded", got[1])

    async def ordered(self) -> None:
        """`ledger`: one key's messages in one queue, the first done, the second leased."""
        names = [f"step-{n}" for n in range(6)]
        await self.send(*(Message("accounts", n.encode(), id=n, sharding_key="customer 7") for n in names))
        async with self.receiver("ledger", "accounts") as receiver:
            for name, state in (("step-0", "acked"), ("step-1", "leased")):
                (message,) = await receive(receiver, 1)
                assert message.id == name
                if state == "acked":
                    await receiver.ack(message)
                self.note("ledger", state, message)

    async def progress(self) -> None:
        """`readers`: a puller's committed offsets, halfway."""
        async with AsyncPuller(self.cluster.address, "orders", group="readers") as puller:
            await puller.poll(max=20)
            await puller.commit()

    async def settled(self) -> None:
        """Records the present contents of its topic, and the messages that retention has deleted."""
        async with AsyncFinder(self.cluster.address) as finder:
            for name, message in self.messages.items():
                if message["due_at_ms"] <= self.cluster.clock.now_ms():
                    message["due_at_ms"] = 0
                try:
                    await finder.get(name, topic=message["topic"])
                except NotFound:
                    message["left"] = True

    def receiver(self, group: str, topic: str = "orders", lease: str = LEASE) -> AsyncReceiver:
        return AsyncReceiver(self.cluster.address, topic, group=group, lease=lease)


async def receive(receiver: AsyncReceiver, count: int) -> list[LeasedMessage]:
    """Receives exactly `count`."""
    got: list[LeasedMessage] = []
    while len(got) < count:
        some = await receiver.receive(max=count - len(got), wait="0s")
        assert some, f"{len(got)} of {count} messages"
        got += some
    return got


async def answers(stub: gateway_pb2_grpc.GatewayStub) -> dict[str, Any]:
    """A gateway's answers about all but the messages themselves. Members and rates are left out: they depend on the
    process.
    """

    async def ask(call: Any, request: Any) -> dict[str, Any]:
        return MessageToDict(await call(request, timeout=60), preserving_proto_field_name=True)

    groups = await ask(stub.ListGroups, consumer_pb2.ListGroupsRequest())
    names = [group["name"] for group in groups["groups"]]
    described = {name: await ask(stub.DescribeGroup, consumer_pb2.DescribeGroupRequest(name=name)) for name in names}
    for description in described.values():
        for passing in ("members", "acks_per_s", "receives_per_s"):
            description.pop(passing, None)
    lanes = await ask(stub.ListLanes, gateway_pb2.ListLanesRequest())
    kept = ("shard", "level", "delay_ms", "pending_count", "next_due_at_ms", "watermark", "max_offset")
    topics = await ask(stub.ListTopics, gateway_pb2.ListTopicsRequest())
    return {
        "groups": groups["groups"],
        "described_groups": described,
        "topics": {
            topic["name"]: await ask(stub.DescribeTopic, gateway_pb2.DescribeTopicRequest(name=topic["name"]))
            for topic in topics["topics"]
        },
        "offsets": await ask(stub.GetOffsets, gateway_pb2.GetOffsetsRequest(group="readers", topic="orders")),
        "lanes": [{field: lane.get(field, 0) for field in kept} for lane in lanes["lanes"]],
        "dead_letters": {
            name: await ask(
                stub.ListDeadLetters,
                consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group=name), max_count=100),
            )
            for name in ("billing", "shipping")
        },
    }


def make_cluster(directory: Path, database_url: str) -> Cluster:
    """The release's test kit, on SQLite or on another database."""

    class _Elsewhere(Cluster):
        @property
        def database_url(self) -> str:
            return database_url or super().database_url

    return _Elsewhere(directory, store_settings=STORE)


async def play(directory: Path, database_url: str) -> dict[str, Any]:
    """The manifest; the cluster is stopped when it returns."""
    async with make_cluster(directory, database_url) as cluster, make_channel(cluster.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        for name, queue_count in TOPICS.items():
            await stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=name, queue_count=queue_count))
        for group in GROUPS:
            await stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=group))
        scene = Scene(cluster)
        await scene.pending()
        moved = await scene.retained()
        await scene.consumed()
        await scene.dead()
        await scene.ordered()
        await scene.progress()
        # Again, so that something is pending on the short levels too.
        await scene.send(*(Message("orders", b"late", level=level, id=f"late-{level}") for level in LEVELS))
        await scene.settled()
        return {
            "saved_at_ms": cluster.clock.now_ms(),
            "messages": scene.messages,
            "moved": moved,
            "answers": await answers(stub),
        }


if __name__ == "__main__":
    made = asyncio.run(play(Path(sys.argv[1]), sys.argv[3] if len(sys.argv) > 3 else ""))
    Path(sys.argv[2]).write_text(json.dumps(made))
