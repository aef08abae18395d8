"""The cluster's final contents, read from offset 0, compared with the acknowledged messages."""

import asyncio
from collections import Counter
from dataclasses import dataclass

import grpc
from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_format import record
from duetime_format.names import retry_topic
from duetime_format.properties import decode_properties
from duetime_format.record import Record

from tests.crash.workload import GROUP, QUEUE_COUNT, TOPIC, Workload

CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Contents:
    """All records by (topic, queue), and the lanes at rest."""

    queues: dict[tuple[str, int], list[Record]]
    lanes: list[gateway_pb2.Lane]


async def drain(address: str, deadline_s: float) -> list[gateway_pb2.Lane]:
    """The lanes, once nothing is pending in any."""
    async with make_channel(address) as channel, asyncio.timeout(deadline_s):
        stub = gateway_pb2_grpc.GatewayStub(channel)
        while True:
            try:
                answer = await stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
                continue
            if not answer.unreachable_shards and not any(lane.pending_count for lane in answer.lanes):
                return list(answer.lanes)
            await asyncio.sleep(0.1)


async def read_all(address: str, lanes: list[gateway_pb2.Lane]) -> Contents:
    """Every record of the workload's topics."""
    queues = {}
    async with make_channel(address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        for queue in range(QUEUE_COUNT):
            queues[TOPIC, queue] = await _read(stub, TOPIC, queue)
        queues[retry_topic(GROUP), 0] = await _read(stub, retry_topic(GROUP), 0)
    return Contents(queues, lanes)


async def _read(stub: gateway_pb2_grpc.GatewayStub, topic: str, queue: int) -> list[Record]:
    records: list[Record] = []
    while True:
        request = gateway_pb2.PullRequest(
            topic=topic,
            queue=queue,
            offset=len(records),
            max_count=1_024,
            encoding=gateway_pb2.PULL_ENCODING_RECORDS,
        )
        try:
            answer = await stub.Pull(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND and topic != TOPIC:
                return []
            raise
        at = 0
        while at < len(answer.records):
            records.append(record.decode(answer.records, at))
            at += records[-1].size
        if answer.next_offset >= answer.max_offset:
            return records


def check(contents: Contents, workload: Workload) -> None:
    """The four promises: acknowledged is there, once, not early, in order."""
    found = Counter(
        decode_properties(read.properties)["UNIQ_KEY"]
        for (topic, _), records in contents.queues.items()
        for read in records
        if topic == TOPIC
    )
    lost = workload.acknowledged - found.keys()
    assert not lost, f"{len(lost)} acknowledged messages are lost: {sorted(lost)[:10]}"
    doubled = {message_id: count for message_id, count in found.items() if count > 1}
    assert not doubled, f"{len(doubled)} messages are there more than once: {sorted(doubled.items())[:10]}"
    unknown = found.keys() - workload.sent.keys()
    assert not unknown, f"messages that nobody sent: {sorted(unknown)[:10]}"
    check_lane_entries(contents)
    check_times(contents, workload)
    check_order(contents)
    sent_back = contents.queues[retry_topic(GROUP), 0]
    assert len(sent_back) >= workload.sent_back, "a message sent back is lost"


def check_lane_entries(contents: Contents) -> None:
    """Each lane entry is restored exactly once, and none was put aside."""
    entries = Counter(
        entry[:2]
        for records in contents.queues.values()
        for read in records
        if (entry := record.find_lane_entry(read.properties))
    )
    doubled = {entry: count for entry, count in entries.items() if count > 1}
    assert not doubled, f"lane entries (level, offset) restored more than once: {sorted(doubled.items())[:10]}"
    for lane in contents.lanes:
        expected = {(lane.level, offset) for offset in range(lane.watermark)}
        assert {entry for entry in entries if entry[0] == lane.level} == expected
        assert (lane.watermark, lane.quarantined_count) == (lane.max_offset, 0)


def check_times(contents: Contents, workload: Workload) -> None:
    """By the store's clock none is early, and by the sender's none came before its delay had passed."""
    for (topic, _), records in contents.queues.items():
        for read in records:
            entry = record.find_lane_entry(read.properties)
            if entry is None:
                continue
            level, _, due_at_ms = entry
            assert read.stored_at_ms >= due_at_ms
            if topic == TOPIC:
                sent = workload.sent[decode_properties(read.properties)["UNIQ_KEY"]]
                assert sent.level == level
                assert due_at_ms >= sent.began_ms + workload.delays_ms[level - 1]


def check_order(contents: Contents) -> None:
    """In each queue the messages of one lane stand in order of due time and of lane position."""
    for records in contents.queues.values():
        assert [read.queue_offset for read in records] == list(range(len(records)))
        last: dict[int, tuple[int, int]] = {}
        for read in records:
            entry = record.find_lane_entry(read.properties)
            if entry is not None:
                level, offset, due_at_ms = entry
                assert last.get(level, (-1, -1)) < (due_at_ms, offset)
                assert last.get(level, (-1, -1))[1] < offset
                last[level] = (due_at_ms, offset)
