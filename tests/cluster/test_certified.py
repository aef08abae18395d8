"""A cluster whose processes know each other by certificates: it works, and every hop refuses strangers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime import AsyncProducer, AsyncPuller, DueTimeError, InvalidArgument, Message, Tls, tls
from duetime.cli.authority import Authority
from duetime.v1 import consumer_pb2, export_pb2, externalscaler_pb2, gateway_pb2, scheduler_pb2, store_pb2
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.clock import SystemClock
from duetime_core.rpc.channels import make_channel
from duetime_core.testing import Cluster
from duetime_spark.shards.files import open_source

from tests.certified import DAY, Certified, credentials_of

DEADLINE_S = 60.0
# Every role, and its calls: addresses, and whether a stranger's refusal differs from that of another role.
HOPS = {
    "client to gateway": ("client", "gateway", "duetime.v1.Gateway/ListTopics", gateway_pb2.ListTopicsRequest()),
    "gateway to store": ("gateway", "store", "duetime.v1.Store/ListQueues", store_pb2.ListQueuesRequest()),
    "gateway to retry": ("gateway", "retry", "duetime.v1.Retry/ListDeadLetters", consumer_pb2.ListDeadLettersRequest()),
    "scheduler to store": ("scheduler", "store", "duetime.v1.Store/StandIn", store_pb2.StandInRequest()),
    "retry to store": ("retry", "store", "duetime.v1.Store/GetLeased", store_pb2.GetLeasedRequest()),
    "operator to scheduler": (
        "operator",
        "scheduler",
        "duetime.v1.Scheduler/ListLaneLeases",
        scheduler_pb2.ListLaneLeasesRequest(),
    ),
    "keda to gateway": (
        "keda",
        "gateway",
        "externalscaler.ExternalScaler/IsActive",
        externalscaler_pb2.ScaledObjectRef(scalerMetadata={"within": "5m", "target": "5"}),
    ),
    "spark to store": ("spark", "store", "duetime.v1.Store/ListFiles", gateway_pb2.ListLanesRequest()),
}
Fault = Callable[[Certified, str], ClusterCredentials]
FAULTS: dict[str, tuple[Fault, str]] = {
    "another CA": (lambda c, role: credentials_of(c.issue(role, by=Authority.make(), place="bad")), "UNAVAILABLE"),
    "expired": (
        lambda c, role: credentials_of(c.issue(role, ends_in=-timedelta(seconds=1), place="bad")),
        "UNAVAILABLE",
    ),
    "not yet valid": (
        lambda c, role: credentials_of(c.issue(role, starts_in=DAY, ends_in=2 * DAY, place="bad")),
        "UNAVAILABLE",
    ),
    "missing": (lambda c, role: ClusterCredentials(), "UNAVAILABLE"),
    "another name": (
        lambda c, role: credentials_of(c.issue(role, uri=f"spiffe://shop/{role}", place="bad")),
        "UNAUTHENTICATED",
    ),
    "another role": (lambda c, role: credentials_of(c.issue("store", place="bad")), "PERMISSION_DENIED"),
}


@asynccontextmanager
async def running(root: Path, **options: Any) -> AsyncIterator[tuple[Certified, Cluster]]:
    certified = Certified(root / "certs").issue_all()
    async with Cluster(root / "data", certs=certified.root, **options) as cluster:
        yield certified, cluster


def port_of(cluster: Cluster, role: str) -> int:
    if role == "gateway":
        return int(cluster.gateway.parts.server.certified_port)
    return int({"store": cluster.stores[0], "scheduler": cluster.schedulers[0], "retry": cluster.retry}[role].port)


async def outcome(port: int, credentials: ClusterCredentials, method: str, request: Any) -> str:
    """OK, or the status of the refusal."""
    async with make_channel(f"127.0.0.1:{port}", credentials) as channel:
        try:
            await channel.unary_unary(f"/{method}")(request.SerializeToString(), timeout=DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


async def test_at_every_hop_only_the_right_certificate_gets_in(tmp_path: Path) -> None:
    async with running(tmp_path, gateway_settings={"certified_port": 0}) as (certified, cluster):
        told: dict[tuple[str, str], str] = {}
        for hop, (role, at, method, request) in HOPS.items():
            port = port_of(cluster, at)
            good = credentials_of(certified.issue(role, place="good"))
            told[hop, "good"] = await outcome(port, good, method, request)
            for fault, (make, _) in FAULTS.items():
                told[hop, fault] = await outcome(port, make(certified, role), method, request)
    refusals = {"UNAVAILABLE", "UNAUTHENTICATED", "PERMISSION_DENIED"}
    assert {key: value for key, value in told.items() if key[1] == "good" and value in refusals} == {}
    wanted = {(hop, fault): status for hop in HOPS for fault, (_, status) in FAULTS.items()}
    assert {key: value for key, value in told.items() if key[1] != "good"} == wanted


@pytest.mark.parametrize(
    "within", [pytest.param(False, id="sockets"), pytest.param(True, id="within", marks=pytest.mark.proof)]
)
async def test_a_delayed_message_goes_through_all_of_it(tmp_path: Path, within: bool) -> None:
    async with running(tmp_path, within=within) as (certified, cluster):
        trust = Tls(certified.files("gateway").ca)
        async with AsyncProducer(cluster.address, tls=trust) as producer:
            await producer.send_message(Message("orders", b"later", delay="1h"))
            async with AsyncPuller(cluster.address, "orders", tls=trust) as puller:
                await cluster.advance("1h")
                (received,) = await puller.poll(wait=timedelta(seconds=DEADLINE_S))
                assert received.body == b"later"
        with pytest.raises(DueTimeError):
            async with AsyncProducer(cluster.address, timeout="1s") as plain:
                await plain.send_message(Message("orders", b"plain"))


async def test_spark_reads_a_store_and_the_certified_port_of_a_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, gateway_settings={"certified_port": 0}) as (certified, cluster):
        spark = certified.issue("spark", names=())
        for name, path in {"CA": spark.ca, "CERT": spark.cert, "KEY": spark.key}.items():
            monkeypatch.setenv(f"DUETIME_TLS_{name}_FILE", str(path))
        for role in ("store", "gateway"):
            (files,) = await asyncio.to_thread(open_source, f"grpc://127.0.0.1:{port_of(cluster, role)}")
            assert await asyncio.to_thread(files.listed, "")


async def test_a_gateway_may_ask_its_clients_for_certificates(tmp_path: Path) -> None:
    async with running(tmp_path, gateway_settings={"client_certificates": "required"}) as (certified, cluster):
        ca, cert, key = certified.issue("client", names=())
        async with AsyncProducer(cluster.address, tls=Tls(ca, cert_file=cert, key_file=key)) as producer:
            await producer.send_message(Message("orders", b"shown"))
        with pytest.raises(DueTimeError):
            async with AsyncProducer(cluster.address, tls=Tls(ca), timeout="1s") as producer:
                await producer.send_message(Message("orders", b"not shown"))


async def test_where_tokens_are_asked_for_some_come_by_certificate_instead(tmp_path: Path) -> None:
    settings = {"certified_port": 0, "auth": "required"}
    listed, sent = gateway_pb2.ListTopicsRequest(), gateway_pb2.SendRequest()
    active, shards = HOPS["keda to gateway"][3], export_pb2.ListShardsRequest()
    asked = {
        "duetime.v1.Gateway/ListTopics": listed,
        "duetime.v1.Gateway/Send": sent,
        "duetime.v1.Gateway/ListShards": shards,
        "externalscaler.ExternalScaler/IsActive": active,
    }
    async with running(tmp_path, gateway_settings=settings) as (certified, cluster):

        async def outcomes(port: int, credentials: ClusterCredentials) -> list[str]:
            return [await outcome(port, credentials, method, request) for method, request in asked.items()]

        by_role = {
            role: await outcomes(port_of(cluster, "gateway"), credentials_of(certified.issue(role)))
            for role in ("client", "spark", "keda")
        }
        public = grpc.ssl_channel_credentials(certified.authority.pair.cert)
        uncertified = []
        async with grpc.aio.secure_channel(cluster.address, public) as channel:
            for method, request in asked.items():
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(f"/{method}")(request.SerializeToString(), timeout=DEADLINE_S)
                uncertified.append(caught.value.code().name)
    no_token, no_role = "UNAUTHENTICATED", "PERMISSION_DENIED"
    assert by_role == {
        "client": [no_token, no_token, no_token, no_role],
        "spark": [no_role, no_role, "OK", no_role],
        "keda": [no_role, no_role, no_role, "OK"],
    }
    assert uncertified == ["UNAUTHENTICATED"] * 4


async def test_unfit_files_of_a_client_are_reported_at_once(tmp_path: Path) -> None:
    certified = Certified(tmp_path)
    ca, cert, _ = certified.issue("client")
    other = certified.issue("spark").key
    with pytest.raises(InvalidArgument, match="given together"):
        Tls(ca, cert_file=cert)
    with pytest.raises(InvalidArgument, match="can't be used"):
        AsyncProducer("localhost:1", tls=Tls(ca, cert_file=cert, key_file=other))
    with pytest.raises(InvalidArgument, match=r"nowhere.* can't be used: no such file or directory"):
        AsyncProducer("localhost:1", tls=Tls(tmp_path / "nowhere"))


async def test_tokens_travel_by_tls_to_any_host(tmp_path: Path) -> None:
    token = "dt_aaaaaaaaaaaa_" + "b" * 52
    ca = Certified(tmp_path).issue("client").ca
    with pytest.raises(InvalidArgument, match="as plain text"):
        AsyncProducer("gateway.example.com:9800", token=token)
    AsyncProducer("gateway.example.com:9800", token=token, tls=Tls(ca))


async def test_ca_and_certificates_of_a_whole_cluster_change_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are sent and pulled all the time; none is lost, and no send takes the time of a retry after another."""
    monkeypatch.setattr(tls, "LOOK_S", 0.05)
    async with running(tmp_path, clock=SystemClock()) as (certified, cluster):
        sent: list[bytes] = []
        received: set[bytes] = set()
        stop = asyncio.Event()
        trust = Tls(certified.files("gateway").ca)

        async def send(producer: AsyncProducer) -> None:
            while not stop.is_set():
                body = b"%d" % len(sent)
                sent.append(body)
                await producer.send_message(Message("orders", body, delay="1s"))

        async def pull(puller: AsyncPuller) -> None:
            while not stop.is_set() or len(received) <= len(sent):
                received.update(message.body for message in await puller.poll(wait="1s"))

        async def more() -> None:
            wanted = len(sent) + 200
            async with asyncio.timeout(DEADLINE_S):
                while len(sent) < wanted:
                    await asyncio.to_thread(lambda: None)

        async with AsyncProducer(cluster.address, tls=trust) as producer:
            # It makes the topic.
            await producer.send_message(Message("orders", b"first", delay="1s"))
        async with (
            AsyncProducer(cluster.address, tls=trust) as producer,
            AsyncPuller(cluster.address, "orders", tls=trust, start="earliest") as puller,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(4):
                tasks.create_task(send(producer))
            tasks.create_task(pull(puller))
            await more()
            new = Authority.make()
            both = certified.authority.pair.cert + new.pair.cert
            roles = ("store", "retry", "scheduler", "gateway")
            changes: list[dict[str, Any]] = [
                {"trusts": both, "ends_in": 2 * DAY},
                {"by": new, "trusts": both, "ends_in": 3 * DAY},
                {"by": new, "trusts": new.pair.cert, "ends_in": 4 * DAY},
            ]
            nodes = (*cluster.stores, cluster.retry, *cluster.schedulers, cluster.gateway)
            for change in changes:
                before = {node: end_of(node) for node in nodes}
                for role in roles:
                    certified.issue(role, **change)
                # Each step is everywhere before the next.
                async with asyncio.timeout(DEADLINE_S):
                    while any(end_of(node) == before[node] for node in nodes):
                        await asyncio.to_thread(lambda: None)
                await more()
            stop.set()
    assert received == {b"first", *sent}
    assert len(sent) >= 800


def end_of(node: Any) -> float:
    """Expiry of the certificate that a node uses, read from its files."""
    name = "duetime_tls_certificate_expires_timestamp_seconds"
    return float(node.registry.get_sample_value(name, {"of": "own"}))
