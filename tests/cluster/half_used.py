"""A directory of RocketMQ 5.5.1, imported and half used on a fake clock: its contents, to compare with an export's."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duetime import AsyncFinder, AsyncProducer, Decision
from duetime.v1 import consumer_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_core.testing.clock import FakeClock
from duetime_format import record
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from duetime_format.properties import decode_properties
from duetime_shard import pending
from duetime_shard.records import message
from duetime_shard.shard import read
from duetime_store.offline.transfer import import_directory

from tests.format import golden55

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
LONGEST_MS = 3 * 86_400_000
# Half of its messages are due by then, also a retry of 30 minutes.
USED_MS = 31 * 60_000
# More than the default of a receive.
LEASE_MS = 300_000
SETTINGS = {"retention_ms": 4 * LONGEST_MS}
Places = dict[tuple[str, int, int], tuple[str, bytes]]
Due = Counter[tuple[str, str, int]]
Received = Counter[str]
Key = tuple[str, str]


def places(store: Any) -> Places:
    """Id and body of each message of users' topics, retries and dead letters, by topic, queue and offset."""
    found: Places = {}
    for queue in store.queues.all():
        if is_system_topic(queue.topic) and not queue.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        for position, size, _ in queue.last(1 << 20)[1].tolist():
            one = record.decode(store.read_record(position, size))
            key = decode_properties(one.properties)["UNIQ_KEY"]
            found[one.topic, one.queue, one.queue_offset] = key, one.body
    return found


def due(root: Path) -> Due:
    """Topic, id and due time of all pending messages of a directory."""
    state, found = read(root, LEVELS), Due()
    for lane in pending.lanes(state).values():
        for _, units in lane.pending():
            for position, _, due_at_ms in units.tolist():
                one = message(state, position)
                assert one is not None
                properties = decode_properties(one.properties)
                found[properties["REAL_TOPIC"], properties["UNIQ_KEY"], due_at_ms] += 1
    return found


class Running:
    """A cluster on a directory, and calls of groups."""

    def __init__(self, cluster: Cluster, stub: Any, producer: AsyncProducer, finder: AsyncFinder) -> None:
        self.cluster = cluster
        self.stub = stub
        self.producer = producer
        self.finder = finder
        self.store = cluster.stores[0].store

    async def receive(self, group: str, topic: str) -> list[consumer_pb2.LeasedMessage]:
        """All that can be received now."""
        found: list[consumer_pb2.LeasedMessage] = []
        request = consumer_pb2.ReceiveRequest(group=group, topic=topic, max_count=512)
        while got := (await self.stub.Receive(request, timeout=60)).messages:
            found += got
        return found

    async def ack(self, group: str, messages: Sequence[consumer_pb2.LeasedMessage]) -> None:
        request = consumer_pb2.AckRequest(group=group, receipts=[one.receipt for one in messages])
        assert not (await self.stub.Ack(request, timeout=60)).statuses

    async def fail(self, group: str, messages: Sequence[consumer_pb2.LeasedMessage], delay_ms: int) -> None:
        error = consumer_pb2.HandlerError(type="ValueError", message="the bank is away")
        nacks = [consumer_pb2.Nack(receipt=one.receipt, error=error, delay_ms=delay_ms) for one in messages]
        await self.stub.Nack(consumer_pb2.NackRequest(group=group, nacks=nacks), timeout=60)

    async def open(self) -> Counter[Key]:
        """Topics and ids of the messages of open transactions."""
        return Counter([(one.topic, one.message_id) async for one in self.finder.transactions()])

    async def end(self) -> tuple[int, Places, Counter[Key]]:
        """The time, the messages and the open transactions before a stop."""
        await self.cluster.settle()
        return self.cluster.clock.now_ms(), places(self.store), await self.open()


@asynccontextmanager
async def running(root: Path, at_ms: int) -> AsyncIterator[Running]:
    """A cluster on the directory `store-0` of a folder."""
    async with (
        Cluster(root, clock=FakeClock(at_ms), store_settings=SETTINGS) as cluster,
        make_channel(cluster.address) as channel,
        AsyncProducer(cluster.address) as producer,
        AsyncFinder(cluster.address) as finder,
    ):
        await cluster.settle()
        stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        yield Running(cluster, stub, producer, finder)


def imported(source: Path, folder: Path) -> Path:
    """The directory as the first shard of a new cluster."""
    report = import_directory(source, folder / "store-0", LEVELS, accept_damage=False)
    assert (report.damages, report.losses) == ([], [])
    return folder / "store-0"


@dataclass(slots=True)
class Used:
    """A shard at its stop."""

    root: Path
    at_ms: int
    places: Places
    open: Counter[Key]
    due: Due
    # Messages that each group has still to get, by group and topic.
    left: dict[Key, Received]


async def used(name: str, folder: Path) -> Used:
    """Imports the directory and uses half of it: acknowledges, fails, sends, cancels and ends transactions."""
    root = imported(golden55.unpack(name, folder), folder)
    of = golden55.prefix(name)
    topic, delayed = f"{of}Normal", f"{of}Delay"
    half, pop = f"{of}g_half", f"{of}g_pop"
    async with running(folder, golden55.ended_at_ms(name)) as shard:
        await end_two(shard)
        await shard.cluster.advance(f"{USED_MS}ms")
        for number in range(6):
            await shard.producer.send(topic, b"new", id=f"new-{number}")
            await shard.producer.send(delayed, b"later", id=f"later-{number}", delay="3d" if number % 2 else "2h")
        waiting = [one async for one in shard.finder.pending(delayed)]
        await shard.producer.cancel(waiting[::2])
        got = sorted(await shard.receive(half, topic), key=lambda one: one.message.offset)
        fresh = await shard.receive(pop, topic)
        await shard.ack(half, got[: len(got) // 2])
        failed = got[len(got) // 2]
        await shard.fail(half, [failed], 3_600_000)
        left = {(half, topic): ids(got[len(got) // 2 + 1 :]), (pop, topic): ids(fresh)}
        ended = await shard.end()
    return Used(root, *ended, due(root), left)


def ids(messages: Sequence[consumer_pb2.LeasedMessage]) -> Received:
    return Received(one.message.id for one in messages)


async def end_two(shard: Running) -> None:
    """Commits one open transaction and rolls one back."""
    committed, rolled_back = [one async for one in shard.finder.transactions()][:2]
    await shard.producer.end_many([committed], Decision.COMMIT)
    await shard.producer.end_many([rolled_back], Decision.ROLLBACK)
