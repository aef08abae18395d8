"""A stranger who reaches the ports of stores, schedulers and retry services, and does not know the cluster's secret."""

from collections.abc import Callable

import grpc
import pytest
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2, retry_pb2, scheduler_pb2, store_pb2
from duetime_core.access.callers import METADATA_KEY, MethodCallers, meant_for

from tests.hostile.bystander import Bystander
from tests.hostile.rig import Node, Rig

SECRET = "the-secret-of-this-rig"
STRANGERS = [(), ((METADATA_KEY, "the-secret-of-that-rig"),)]
INNER = {"store": store_pb2, "scheduler": scheduler_pb2, "retry": retry_pb2}


def calls_of(kind: str) -> list[str]:
    """Every call of a service, by its descriptor: one that is added later is tried too."""
    (service,) = INNER[kind].DESCRIPTOR.services_by_name.values()
    return [f"/{service.full_name}/{method.name}" for method in service.methods]


def status_of(node: Node, call: str, metadata: tuple[tuple[str, str], ...]) -> str:
    with grpc.insecure_channel(node.address) as channel:
        try:
            for _ in channel.unary_stream(call)(b"", timeout=10, metadata=metadata):
                return "OK"
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def test_stranger_at_the_inner_ports_is_refused_and_clients_are_served(start: Callable[..., Rig]) -> None:
    everywhere = {"DUETIME_CLUSTER_SECRET": SECRET}
    rig = start(dict.fromkeys(("store", "scheduler", "retry", "gateway"), everywhere))
    with Bystander(rig.address) as beside:
        for node in (*rig.stores, rig.retry, *rig.schedulers):
            calls = calls_of(node.name.partition("-")[0])
            assert calls
            for call in calls:
                assert meant_for(call) is MethodCallers.CLUSTER
                assert [status_of(node, call, shown) for shown in STRANGERS] == ["UNAUTHENTICATED"] * 2
        phase = beside.measure(2.0)
    # Sends, a second's delay and pulls went through all four processes.
    assert phase.errors == {}
    assert phase.sent > 20
    for node in rig.nodes:
        assert SECRET not in node.log.read_text()
        # Dozens of refusals: the first ones of a period are told, and how many more there were.
        assert node.log.read_text().count("CLUSTER_SECRET_REFUSED") <= 20


@pytest.mark.proof
def test_gateway_with_a_wrong_secret_reports_it_and_recovers(start: Callable[..., Rig]) -> None:
    rig = start({kind: {"DUETIME_CLUSTER_SECRET": SECRET} for kind in ("store", "scheduler", "retry", "gateway")})
    rig.gateways[0].restart(DUETIME_CLUSTER_SECRET="the-secret-of-that-rig")
    assert "CLUSTER_SECRET" not in rig.gateways[0].tail()
    with grpc.insecure_channel(rig.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        request = gateway_pb2.SendRequest(messages=[message_pb2.Message(topic="orders")])
        fault = stub.Send(request, timeout=20).results[0].fault
    # The client has done nothing wrong, and may repeat it.
    assert (fault.reason, fault.retriable) == ("CLUSTER_SECRET_REFUSED", True)
    assert "rejects this process" in fault.message
    rig.gateways[0].restart(DUETIME_CLUSTER_SECRET=f"{SECRET},the-secret-of-that-rig")
    with Bystander(rig.address) as beside:
        assert beside.measure(1.0).errors == {}
