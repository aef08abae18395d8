"""1,000 delayed messages and the outcome of each: sent with known ids, read offset by offset."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import grpc
from duetime import AsyncProducer, AsyncPuller, Message, Receipt
from duetime.client.connection import GatewayConnection
from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_format import record
from duetime_format.properties import decode_properties

TOPIC = "k8s"
QUEUE_COUNT = 4
# 1s, 5s, 10s, 30s of the default table.
LEVELS = {1: 1_000, 2: 5_000, 3: 10_000, 4: 30_000}
BATCH = 10
SEND_TIMEOUT_S = 180.0
CALL_TIMEOUT_S = 10.0


@dataclass
class Account:
    """Sent and received messages, by id."""

    address: str
    dice: random.Random
    count: int
    # Level and wall-clock ms before the first attempt.
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    came: Counter[str] = field(default_factory=Counter)
    late_ms: list[int] = field(default_factory=list)

    async def send(self, over_s: float) -> None:
        """Sends all messages, spread over a time; the SDK repeats unanswered ones."""
        async with (
            AsyncProducer(self.address, timeout=timedelta(seconds=SEND_TIMEOUT_S)) as producer,
            asyncio.TaskGroup() as batches,
        ):
            for start in range(0, self.count, BATCH):
                messages = [self._message(number) for number in range(start, start + BATCH)]
                batches.create_task(self._send(producer, messages))
                await asyncio.sleep(over_s * BATCH / self.count)

    async def _send(self, producer: AsyncProducer, messages: list[Message]) -> None:
        for outcome, message in zip(await producer.send_many(messages, errors="return"), messages, strict=True):
            if isinstance(outcome, Receipt):
                assert outcome.message_id == message.id
                self.acknowledged.add(message.id)
            else:
                self.errors.append(f"{message.id}: {outcome}")

    def _message(self, number: int) -> Message:
        level = self.dice.choice(list(LEVELS))
        message_id = f"m-{number:04d}"
        self.sent[message_id] = (level, time.time_ns() // 1_000_000)
        return Message(TOPIC, message_id.encode(), level=level, id=message_id)

    async def pull(self, sending: "asyncio.Task[None]") -> None:
        """Reads until all that was acknowledged has come."""
        expected = dict.fromkeys(range(QUEUE_COUNT), 0)
        async with AsyncPuller(
            self.address, TOPIC, start="earliest", timeout=timedelta(seconds=SEND_TIMEOUT_S)
        ) as puller:
            while not (sending.done() and self.acknowledged <= self.came.keys()):
                for message in await puller.poll(max=1_000, wait="500ms"):
                    assert message.offset == expected[message.queue], "an offset was skipped or repeated"
                    expected[message.queue] += 1
                    self.came[message.id] += 1
                    assert message.late_ms is not None
                    assert message.late_ms >= 0, f"{message.id} came early"
                    self.late_ms.append(message.late_ms)

    async def check(self, shards: int) -> str:
        """Compares with the queues from offset 0 on; returns the confirmed facts in one line."""
        records = [one for queue in range(QUEUE_COUNT) for one in await self._read(queue)]
        assert not self.errors, self.errors[:10]
        found = Counter(decode_properties(one.properties)["UNIQ_KEY"] for one in records)
        assert found == Counter(self.sent.keys()), "lost, doubled or unknown"
        assert len(found) == self.count
        for one in records:
            entry = record.find_lane_entry(one.properties)
            assert entry is not None
            level, began_ms = self.sent[decode_properties(one.properties)["UNIQ_KEY"]]
            assert entry[0] == level
            assert one.stored_at_ms >= entry[2] >= began_ms + LEVELS[level]
        late = sorted(self.late_ms)
        return (
            f"{len(found)} of {self.count} messages accounted for, on {shards} shards: each once, none early; "
            f"late p50 {late[len(late) // 2]} ms, p99 {late[len(late) * 99 // 100]} ms, max {late[-1]} ms"
        )

    async def _read(self, queue: int) -> list[record.Record]:
        records: list[record.Record] = []
        async with connected(self.address) as stub:
            while True:
                request = gateway_pb2.PullRequest(
                    topic=TOPIC,
                    queue=queue,
                    offset=len(records),
                    max_count=1_000,
                    encoding=gateway_pb2.PULL_ENCODING_RECORDS,
                )
                answer = await stub.Pull(request, timeout=CALL_TIMEOUT_S)
                at = 0
                while at < len(answer.records):
                    records.append(record.decode(answer.records, at))
                    at += records[-1].size
                if answer.next_offset >= answer.max_offset:
                    return records


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[gateway_pb2_grpc.GatewayStub]:
    """As clients are: by TLS and with a token, where the environment says so."""
    connection = GatewayConnection(address)
    try:
        yield connection.stub
    finally:
        await connection.close()


async def lanes(address: str) -> list[gateway_pb2.Lane]:
    """All lanes, once all shards answer."""
    async with connected(address) as stub, asyncio.timeout(120):
        while True:
            try:
                answer = await stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=CALL_TIMEOUT_S)
                if not answer.unreachable_shards:
                    return list(answer.lanes)
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(0.5)
