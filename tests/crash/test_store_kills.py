"""kill -9 of a store in the middle of group commits: acknowledged records are stored, once and in order."""

import asyncio
import hashlib
import json
import os
import random
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2, store_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_format import record
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record
from duetime_format.restore import PulledEntry
from duetime_format.restore import restore as restored_record

MIB = 1024 * 1024
TOPIC = "crash"
WRITERS = 4
LANE = 1
DEADLINE_S = 60.0
# Where restored entries go: a queue that no writer uses.
RESTORED_QUEUE = WRITERS


@asynccontextmanager
async def store_process(data: Path, mode: str) -> AsyncIterator[tuple[Process, store_pb2_grpc.StoreStub]]:
    """A store that runs meanwhile; killed at the end if it still does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    environment |= {"DUETIME_SUPERVISED": "1", "DUETIME_DELAY_LEVELS": "1s 2s"}
    flags = ["--data-dir", str(data), "--flush-mode", mode, "--segment-bytes", str(MIB), "--checkpoint-ms", "200"]
    flags += ["--reserve-bytes", "0"]
    command = [sys.executable, "-m", "duetime_store", *flags, "--metrics-port", "-1", "--log-level", "WARNING"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            ready = json.loads(await process.stdout.readline())
        async with make_channel(f"127.0.0.1:{ready['port']}") as channel:
            yield process, store_pb2_grpc.StoreStub(channel)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def numbered(writer: int, number: int, *, deferred: bool) -> bytes:
    """A record whose id names its writer; its body follows from its id."""
    message_id = f"{writer}-{number}"
    kept = {"UNIQ_KEY": message_id, "TAGS": f"t{number % 3}"}
    host = record.host_bytes("127.0.0.1", 1)
    made = Record(TOPIC, writer, body_of(message_id), b"", born_host=host, store_host=host)
    if deferred:
        made = replace(made, topic=SCHEDULE_TOPIC, queue=LANE - 1)
        kept |= record.deferral(LANE, TOPIC, RESTORED_QUEUE)
    return record.encode(replace(made, properties=encode_properties(kept)))


def body_of(message_id: str) -> bytes:
    digest = hashlib.sha256(message_id.encode()).digest()
    return digest * (1 + digest[0] % 60)


@dataclass
class Ledger:
    """Each writer's sent and acknowledged records, by its own numbers; writer `WRITERS` fills the lane."""

    sent: list[int] = field(default_factory=lambda: [0] * (WRITERS + 1))
    acknowledged: list[int] = field(default_factory=lambda: [0] * (WRITERS + 1))
    restored: int = 0
    # How many records of each writer's queue are compared already, and of the queue of restored ones.
    compared: list[int] = field(default_factory=lambda: [0] * (WRITERS + 1))
    compared_restored: int = 0

    def forget_compared(self) -> None:
        """The next comparison begins with the first record again."""
        self.compared = [0] * (WRITERS + 1)
        self.compared_restored = 0


def always() -> bool:
    return True


async def write(
    stub: store_pb2_grpc.StoreStub,
    writer: int,
    ledger: Ledger,
    dice: random.Random,
    is_wanted: Callable[[], bool] = always,
) -> None:
    """Puts batch after batch until the store is gone, or no more is wanted."""
    while is_wanted():
        count = dice.randint(1, 100)
        numbers = range(ledger.sent[writer], ledger.sent[writer] + count)
        records = b"".join(numbered(writer, number, deferred=writer == WRITERS) for number in numbers)
        ledger.sent[writer] += count
        try:
            answer = await stub.Put(store_pb2.PutRequest(records=records), timeout=DEADLINE_S)
        except grpc.aio.AioRpcError:
            return
        assert not answer.statuses
        ledger.acknowledged[writer] = ledger.sent[writer]


async def restore(stub: store_pb2_grpc.StoreStub, ledger: Ledger, is_wanted: Callable[[], bool] = always) -> None:
    """Restores due entries until the store is gone, or no more is wanted."""
    following = b""
    while is_wanted():
        try:
            due = await stub.PullDue(
                store_pb2.PullDueRequest(lane=LANE, next=following, max_count=100, max_bytes=MIB, wait_ms=1_000),
                timeout=DEADLINE_S,
            )
            assert not due.damages
            if not due.sizes:
                continue
            put = store_pb2.RestoreRequest(records=restored(due), lane=LANE, first_entry=due.first_entry)
            answer = await stub.Restore(put, timeout=DEADLINE_S)
        except grpc.aio.AioRpcError:
            return
        assert not answer.statuses
        ledger.restored, following = due.first_entry + len(due.sizes), due.next


def restored(due: store_pb2.PullDueResponse) -> bytes:
    records, at = [], 0
    for index, (size, due_at_ms) in enumerate(zip(due.sizes, due.due_at_ms, strict=True)):
        records.append(
            restored_record(PulledEntry(LANE, due.first_entry + index, due_at_ms, due.records[at : at + size]))
        )
        at += size
    return b"".join(records)


async def read_queue(stub: store_pb2_grpc.StoreStub, topic: str, queue: int, start: int) -> list[Record]:
    """All records of a queue, from an offset on."""
    records: list[Record] = []
    while True:
        request = gateway_pb2.PullRequest(
            topic=topic,
            queue=queue,
            offset=start + len(records),
            max_count=1_024,
            encoding=gateway_pb2.PULL_ENCODING_RECORDS,
        )
        try:
            answer = await stub.Pull(request, timeout=DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND and start == 0:
                return []
            raise
        at = 0
        while at < len(answer.records):
            records.append(record.decode(answer.records, at))
            at += records[-1].size
        if answer.next_offset == answer.max_offset:
            return records


async def check(stub: store_pb2_grpc.StoreStub, ledger: Ledger) -> None:
    """Compares the store with the ledger from the last compared record on; the ledger then continues from the stored
    records.
    """
    for writer in range(WRITERS + 1):
        lane = writer == WRITERS
        start = ledger.compared[writer]
        found = await read_queue(stub, SCHEDULE_TOPIC if lane else TOPIC, LANE - 1 if lane else writer, start)
        check_order(found, start)
        ids = [decode_properties(read.properties)["UNIQ_KEY"] for read in found]
        stored = start + len(found)
        assert ids == [f"{writer}-{number}" for number in range(start, stored)], "a gap, a double or a wrong order"
        assert ledger.acknowledged[writer] <= stored <= ledger.sent[writer]
        assert all(read.body == body_of(message_id) for read, message_id in zip(found, ids, strict=True))
        ledger.sent[writer] = ledger.acknowledged[writer] = ledger.compared[writer] = stored
    await check_lane(stub, ledger)


async def check_lane(stub: store_pb2_grpc.StoreStub, ledger: Ledger) -> None:
    """The watermark agrees with the topic: each entry once, in order, none early."""
    start = ledger.compared_restored
    found = await read_queue(stub, TOPIC, RESTORED_QUEUE, start)
    check_order(found, start)
    stored = start + len(found)
    entries = [record.find_lane_entry(read.properties) for read in found]
    assert [entry[:2] for entry in entries if entry] == [(LANE, number) for number in range(start, stored)]
    assert all(entry and read.stored_at_ms >= entry[2] for read, entry in zip(found, entries, strict=True))
    assert stored >= ledger.restored
    lanes = (await stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=DEADLINE_S)).lanes
    lane = next(lane for lane in lanes if lane.level == LANE)
    assert (lane.watermark, lane.pending_count) == (stored, ledger.sent[WRITERS] - stored)
    ledger.restored = ledger.compared_restored = stored


def check_order(records: list[Record], start: int) -> None:
    assert [read.queue_offset for read in records] == list(range(start, start + len(records)))
    positions = [read.position for read in records]
    assert positions == sorted(set(positions))
    times = [read.stored_at_ms for read in records]
    assert times == sorted(times), "store times go backwards"


async def kill_round(data: Path, mode: str, ledger: Ledger, dice: random.Random, restored_min: int) -> None:
    """One life of a process: the state from the last one is compared, then it is killed under load.

    Not before each writer has something acknowledged, and `restored_min` entries are restored.
    """
    async with store_process(data, mode) as (process, stub):
        await check(stub, ledger)
        async with asyncio.TaskGroup() as group:
            for writer in range(WRITERS + 1):
                group.create_task(write(stub, writer, ledger, dice))
            group.create_task(restore(stub, ledger))
            async with asyncio.timeout(DEADLINE_S):
                while min(ledger.acknowledged) == 0 or ledger.restored < restored_min:  # noqa: ASYNC110  of several tasks
                    await asyncio.sleep(0.01)
            await asyncio.sleep(dice.uniform(0.0, 0.4))
            process.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.proof)])
async def test_store_killed_during_group_commit_loses_nothing_acknowledged(
    tmp_path: Path, mode: str, kills: int, dice: random.Random
) -> None:
    ledger = Ledger()
    rounds = max(4, kills // 16)
    for number in range(rounds):
        # Entries of the first life are due in the last.
        await kill_round(tmp_path / "data", mode, ledger, dice, restored_min=int(number == rounds - 1))
    ledger.forget_compared()
    async with store_process(tmp_path / "data", mode) as (_, stub):
        await check(stub, ledger)
    assert min(ledger.acknowledged) > 0
    assert ledger.restored > 0
    print(f"{rounds} kills, {sum(ledger.sent)} records, {ledger.restored} restored, nothing lost")
