"""Clients that take places and say nothing: connections, exports."""

import time
from collections.abc import Callable
from contextlib import ExitStack

import grpc
import pytest
from duetime import Producer
from duetime.v1 import export_pb2, gateway_pb2
from duetime_core.rpc.channels import make_blocking_channel

from tests.hostile.raw import Raw, request
from tests.hostile.rig import DESCRIPTORS, Rig, told

EXPORT = "/duetime.v1.Gateway/Export"
NEW_CLIENT_S_MAX = 20.0


@pytest.mark.proof
@pytest.mark.parametrize("greets", [False, True], ids=["silent", "idle"])
def test_new_client_is_served_beside_silent_connections(start: Callable[..., Rig], *, greets: bool) -> None:
    rig = start()
    # One connection per descriptor: the process's open files exceed the kernel's queue.
    with ExitStack() as ends:
        for _ in range(DESCRIPTORS - 10):
            raw = Raw(rig.address)
            ends.callback(raw.close)
            if greets:
                raw.greet()
        began = time.monotonic()
        with Producer(rig.address, timeout="60s") as producer:
            producer.send("orders", b"x")
        took_s = time.monotonic() - began
        told(greets=greets, new_client_s=took_s, open_files=rig.gateways[0].open_files)
        assert took_s < NEW_CLIENT_S_MAX


@pytest.mark.proof
def test_unread_exports_leave_some_to_other_hosts(start: Callable[..., Rig]) -> None:
    rig = start({"store": {"exports_max": 10, "segment_bytes": 8 << 20}})
    with Producer(rig.address, timeout="30s") as producer:
        for _ in range(6):
            producer.send("orders", b"x" * 1_000_000)
    ask = export_pb2.ExportRequest(path=f"commitlog/{0:020}").SerializeToString()
    raws = [Raw(rig.address, f"127.0.0.{2 + number % 2}") for number in range(12)]
    for raw in raws:
        raw.greet()
        raw.send(request(EXPORT, 1, ask))
    with make_blocking_channel(rig.address) as channel:
        topics = channel.unary_unary("/duetime.v1.Gateway/ListTopics", None, gateway_pb2.ListTopicsResponse.FromString)
        assert topics(b"", timeout=10).topics
        export = channel.unary_stream(EXPORT, None, export_pb2.ExportChunk.FromString)
        try:
            refused = ""
            size = sum(len(chunk.data) for chunk in export(ask, timeout=30))
        except grpc.RpcError as error:
            refused, size = str(error.details()), 0
    told(size=size, refused=refused)
    assert size > 5_000_000
    for raw in raws:
        raw.close()
