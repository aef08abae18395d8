"""`make clients`: KEDA's own Go stubs, as the Go module proxy has them, against a gateway that stops."""

import asyncio
import shutil
import subprocess
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime_core.clock import SystemClock
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster

HERE = Path(__file__).parent
GROUP, COUNT, DEADLINE_S = "billing", 200, 120.0

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clients") / "keda"
    shutil.copytree(HERE / "keda", folder)
    subprocess.run(["go", "build", "-mod=readonly", "-o", "client", "."], cwd=folder, check=True)
    return folder / "client"


async def lease_all(cluster: Cluster) -> None:
    """200 messages, all leased by the group."""
    async with make_channel(cluster.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        messages = [message_pb2.Message(topic="orders", body=b"body") for _ in range(COUNT)]
        await stub.Send(gateway_pb2.SendRequest(messages=messages), timeout=DEADLINE_S)
        request = consumer_pb2.ReceiveRequest(group=GROUP, topic="orders", max_count=COUNT)
        leased = 0
        while leased < COUNT:
            leased += len((await stub.Receive(request, timeout=DEADLINE_S)).messages)


async def test_keda_scales_a_group_by_its_messages_in_progress(program: Path, tmp_path: Path) -> None:
    async with Cluster(tmp_path, clock=SystemClock(), shards=2) as cluster, asyncio.timeout(DEADLINE_S):
        await lease_all(cluster)
        keda = await asyncio.create_subprocess_exec(program, cluster.address, GROUP, stdout=PIPE, stderr=STDOUT)
        assert keda.stdout is not None
        try:
            said = ""
            while "streams are open" not in said:
                line = await keda.stdout.readline()
                assert line, said
                said += line.decode()
            await cluster.stop_node(cluster.gateway)
            said += (await keda.stdout.read()).decode()
        finally:
            if keda.returncode is None:
                keda.kill()
            await keda.wait()
    assert said.splitlines() == [
        "spec duetime-due 10",
        f"metric duetime-due {COUNT}",
        "active true",
        "stream active true",
        "stream spec 10",
        "streams are open",
        "active ended with EOF true",
        "specs ended with EOF true",
    ]
