"""Arbitrary requests to the store's port: each is answered with a declared status, and only the directory changes.

Each call of the service gets messages of any values, and Put and Restore records of any: the process lives, no call is
INTERNAL, nothing is made outside of the data directory, and nothing is stored that a gateway would refuse.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2
from duetime_format import record
from duetime_format.limits import QUEUE_COUNT_MAX
from duetime_format.names import DELETED_TOPIC, SCHEDULE_TOPIC, STATE_TOPIC, is_group_topic, is_name, is_system_topic
from google.protobuf.descriptor import FieldDescriptor
from google.rpc import code_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rounds import one_by_one
from tests.store.conftest import sent
from tests.store.running import Running

(SERVICE,) = store_pb2.DESCRIPTOR.services_by_name.values()
CALLS = sorted(method.name for method in SERVICE.methods)
# Statuses for invalid requests; UNKNOWN, INTERNAL and a broken connection are defects.
FAIR = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "DATA_LOSS",
    "DEADLINE_EXCEEDED",
}
NAMES = [
    "orders",
    "",
    "a\0b",
    "../../../evil",
    "..",
    ".",
    "/etc/evil",
    "SCHEDULE_TOPIC_XXXX",
    "DT_GROUPS",
    "DT_QUARANTINE",
    "%RETRY%g",
    "%DLQ%g",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "x" * 300,
    "commitlog/00000000000000000000",
    "config/../../../etc/passwd",
    "config/topics.json",
    "g",
]
I32 = [0, 1, -1, 2, 7, 1_023, 1_024, 65_536, 2**31 - 1, -(2**31)]
I64 = [*I32, 2**62, 2**63 - 1, -(2**63)]
BYTES = [b"", b"\0", b"\xff" * 24, bytes(24), sent("A"), sent("B", level=1)]
PROPERTIES = [b"", b"\x01", b"\x02\x02", b"UNIQ_KEY\x01a", b"DT_ENTRY\x011:0:5", b"\xff\xfe\x01a", b"x" * 32_767]
PUTS = [
    {},
    {"lane": 1, "first_entry": 0},
    {"lane": 1, "first_entry": -(2**63)},
    {"lane": 1, "first_entry": 2**63 - 1},
    {"lane": -1},
    {"batches": [0, 1]},
]
WAITS = {"wait_ms": 0, "length": 1}
WAIT_S = 60
# A stream counts as silent after this many answers to other calls.
SILENT_CALLS = 20


def values_of(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.name in WAITS:
        return st.sampled_from([WAITS[field.name], -1, -(2**31)])
    kinds = {
        FieldDescriptor.TYPE_INT32: st.sampled_from(I32),
        FieldDescriptor.TYPE_INT64: st.sampled_from(I64),
        FieldDescriptor.TYPE_BOOL: st.booleans(),
        FieldDescriptor.TYPE_STRING: st.sampled_from(NAMES),
        FieldDescriptor.TYPE_BYTES: st.sampled_from(
            [b"", b"\0", b"\xff" * 24, bytes(24), sent("A"), sent("B", level=1)]
        ),
        FieldDescriptor.TYPE_DOUBLE: st.sampled_from([0.0, -1.0, 1e300, float("nan"), float("inf")]),
        FieldDescriptor.TYPE_FLOAT: st.sampled_from([0.0, -1.0, float("nan")]),
    }
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return messages(field.message_type, depth + 1) if depth < 3 else st.just({})
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return kinds[field.type]


def messages(descriptor: Any, depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """Fields by name, as the constructor of the message takes them; one of a oneof at most."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    chosen: dict[str, list[str]] = {}
    for field in descriptor.fields:
        one = values_of(field, depth)
        is_many = field.is_repeated
        if is_many and field.message_type and field.message_type.GetOptions().map_entry:
            continue
        fields[field.name] = st.lists(one, max_size=3) if is_many else one
        if field.containing_oneof:
            chosen.setdefault(field.containing_oneof.name, []).append(field.name)

    def without_others(given: dict[str, Any], which: int) -> dict[str, Any]:
        for names in chosen.values():
            kept = names[which % len(names)]
            given = {name: value for name, value in given.items() if name not in names or name == kept}
        return given

    return st.builds(without_others, st.fixed_dictionaries({}, optional=fields), st.integers(0, 9))


def requests(call: str) -> st.SearchStrategy[Any]:
    descriptor = SERVICE.methods_by_name[call].input_type
    make = descriptor._concrete_class
    return messages(descriptor).map(lambda fields: make(**fields))


async def answered(store: Running, call: str, request: Any) -> str:
    """OK, or the name of the status, or of the fault of a stream's request."""
    method, descriptor = getattr(store.stub, call), SERVICE.methods_by_name[call]

    async def one() -> AsyncIterator[Any]:
        yield request

    async def read(call: Any) -> str:
        async for answer in call:
            if descriptor.client_streaming and answer.HasField("fault"):
                return str(code_pb2.Code.Name(answer.fault.code))
        return "OK"

    try:
        if not descriptor.server_streaming:
            await method(request, timeout=WAIT_S)
            return "OK"
        call = method(one() if descriptor.client_streaming else request, timeout=WAIT_S)
        reading = asyncio.create_task(read(call))
        for _ in range(SILENT_CALLS):
            await store.stub.Describe(store_pb2.DescribeRequest(), timeout=WAIT_S)
        if not reading.done():
            call.cancel()
            await asyncio.wait({reading})
        return "OK" if reading.cancelled() else await reading
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)


def unfair(store: Running) -> list[str]:
    """Records in queues that no gateway would write."""
    found = []
    for queue in store.node.store.queues.all():
        if not is_name(queue.topic) or len(queue.topic) > 127 or not 0 <= queue.queue < QUEUE_COUNT_MAX:
            found.append(f"{queue.topic!r} {queue.queue}")
        allowed = queue.topic in (SCHEDULE_TOPIC, "DT_GROUPS", DELETED_TOPIC, STATE_TOPIC) or is_group_topic(
            queue.topic
        )
        if queue.max_offset and is_system_topic(queue.topic) and not allowed:
            found.append(queue.topic)
    return found


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Running]:
    async with Running(tmp_path / "inside" / "store") as running:
        await running.put(sent("A"), sent("B", level=1))
        await running.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=4), timeout=60)
        yield running
        assert unfair(running) == []
        await running.stub.Describe(store_pb2.DescribeRequest(), timeout=60)
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "inside")) == (["inside"], ["store"])


@pytest.mark.parametrize("call", one_by_one(CALLS, 3))
async def test_any_request_is_answered_fairly(store: Running, call: str) -> None:
    seen: list[Any] = []

    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(requests(call))
    def collect(request: Any) -> None:
        seen.append(request)

    collect()
    for request in seen:
        status = await answered(store, call, request)
        assert status == "OK" or status in FAIR, (call, status, str(request)[:500])


RECORDS = st.builds(
    record.Record,
    topic=st.sampled_from([name for name in NAMES if len(name) < 128]),
    queue=st.sampled_from(I32),
    body=st.binary(max_size=20),
    properties=st.sampled_from(
        [b"", b"\x01", b"\x02\x02", b"UNIQ_KEY\x01a", b"DT_ENTRY\x011:0:5", b"\xff\xfe\x01a", b"x" * 32_767]
    ),
    flag=st.sampled_from(I32),
    sys_flag=st.sampled_from([0, 1, 4, 8, 12, 2**31 - 1, -1]),
    born_at_ms=st.sampled_from(I64),
    stored_at_ms=st.sampled_from(I64),
    reconsume_times=st.sampled_from(I32),
    queue_offset=st.sampled_from(I64),
    position=st.sampled_from(I64),
)


async def test_any_record_is_stored_as_a_gateway_would_or_refused(store: Running) -> None:
    seen: list[tuple[list[bytes], dict[str, Any], int]] = []
    options = st.sampled_from(PUTS)

    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(RECORDS, min_size=1, max_size=4), options, st.integers(0, 60))
    def collect(records: list[record.Record], more: dict[str, Any], flip: int) -> None:
        seen.append(([record.encode(one) for one in records], more, flip))

    collect()
    stored, told = 0, []
    for encoded, more, flip in seen:
        data = bytearray(b"".join(encoded))
        if flip < 20:
            data[flip * 4 % len(data)] ^= 0x80
        try:
            if "lane" in more:
                answer = await store.stub.Restore(store_pb2.RestoreRequest(records=bytes(data), **more), timeout=60)
            else:
                answer = await store.stub.Put(store_pb2.PutRequest(records=bytes(data), **more), timeout=60)
        except grpc.aio.AioRpcError as error:
            told.append(error.code().name)
        else:
            stored += sum(offset >= 0 for offset in answer.queue_offsets)
    assert set(told) <= FAIR
    assert stored
    pulled = await store.stub.Pull(gateway_pb2.PullRequest(topic="orders", max_count=100), timeout=60)
    assert pulled.messages


async def test_no_record_ends_a_store_or_leaves_its_directory(store: Running) -> None:
    """Each of these records once did."""
    places = ("a\0b", 0), ("../../../evil", 0), ("orders", 2**31 - 1), ("DT_GROUPS", 0), ("rmq_sys_x", 0)
    for number, (topic, queue) in enumerate(places):
        found = replace(record.decode(sent("A")), topic=topic, queue=queue)
        answer = await store.put(record.encode(found), sent(f"good{number}"))
        assert list(answer.statuses) == [store_pb2.PUT_STATUS_REFUSED, store_pb2.PUT_STATUS_OK]
        assert answer.faults[0].reason == "RECORD_REFUSED"
