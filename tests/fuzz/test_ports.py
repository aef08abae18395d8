"""Any request to the gateway's port, the retry service's and a scheduler's is answered with a declared status.

tests/store/test_port_fuzz.py does the same for a store's port.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, message_pb2, retry_pb2, scheduler_pb2
from duetime_core.clock import SystemClock
from duetime_core.rpc.channels import make_channel
from duetime_core.testing import Cluster
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import HealthCheck, given, settings

from tests.rounds import ONE_IN, some
from tests.store.test_port_fuzz import FAIR, messages

DEADLINE_S = 10.0
# An open stream is left after this.
STREAM_S = 0.2
SERVICES = {
    "gateway": gateway_pb2.DESCRIPTOR.services_by_name["Gateway"],
    "retry": retry_pb2.DESCRIPTOR.services_by_name["Retry"],
    "scheduler": scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"],
}
METHODS = [(node, name) for node, service in SERVICES.items() for name in sorted(service.methods_by_name)]


def requests(method: MethodDescriptor) -> list[Any]:
    seen: list[Any] = []

    unchecked = list(HealthCheck)

    @settings(database=None, suppress_health_check=unchecked)
    @given(messages(method.input_type))
    def collect(fields: dict[str, Any]) -> None:
        seen.append(method.input_type._concrete_class(**fields))

    collect()
    return seen


async def answered(
    channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes, deadline_s: float = DEADLINE_S
) -> str:
    """OK, or the name of the status."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    parse = method.output_type._concrete_class.FromString

    async def one() -> AsyncIterator[bytes]:
        yield data

    given = one() if method.client_streaming else data
    try:
        if method.server_streaming:
            make = channel.stream_stream if method.client_streaming else channel.unary_stream
            call = make(path, response_deserializer=parse)(given, timeout=deadline_s)
            try:
                async with asyncio.timeout(STREAM_S):
                    async for _ in call:
                        pass
            except TimeoutError:
                call.cancel()
        else:
            make = channel.stream_unary if method.client_streaming else channel.unary_unary
            await make(path, response_deserializer=parse)(given, timeout=deadline_s)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


@pytest.mark.parametrize("one_in", ONE_IN)
async def test_any_request_is_answered_fairly(tmp_path: Path, one_in: int) -> None:
    unfair = []
    async with Cluster(tmp_path, clock=SystemClock()) as cluster:
        nodes = {"gateway": cluster.gateway, "retry": cluster.retry, "scheduler": cluster.schedulers[0]}
        for node, name in METHODS:
            method = SERVICES[node].methods_by_name[name]
            async with make_channel(f"127.0.0.1:{nodes[node].port}") as channel:
                for request in some(requests(method), one_in):
                    data = request.SerializeToString()
                    for sent in (data, data[:-1], data[: len(data) // 2] + b"\xff" * 3):
                        status = await answered(channel, method, sent)
                        if status != "OK" and status not in FAIR:
                            unfair.append((name, status, sent[:200]))
        async with make_channel(cluster.address) as channel:
            send = SERVICES["gateway"].methods_by_name["Send"]
            one = gateway_pb2.SendRequest(messages=[message_pb2.Message(topic="orders", body=b"x")])
            assert await answered(channel, send, one.SerializeToString(), 60) == "OK"
    assert unfair == []
