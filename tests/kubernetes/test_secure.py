"""deploy/k8s with TLS and users on a real cluster, by given Secrets: `make k8s-test`, after the open one.

Without DUETIME_TEST_KUBERNETES=1 nothing here runs.
"""

import asyncio
import os
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from duetime import AsyncProducer, Message, Unauthenticated, Unavailable
from duetime.cli.app import run
from duetime.v1 import backlog_pb2, externalscaler_pb2, externalscaler_pb2_grpc, gateway_pb2

from tests.deploy.shown import serial_of
from tests.kubernetes.account import CALL_TIMEOUT_S, QUEUE_COUNT, TOPIC, Account, connected
from tests.kubernetes.kubectl import (
    K8S,
    KUBECTL,
    NAMESPACE,
    gateway_address,
    job_done,
    kubectl,
    live_pods,
    node_address,
    restarts,
    rolled_out,
    say,
    until,
)

pytestmark = [
    pytest.mark.skipif(os.environ.get("DUETIME_TEST_KUBERNETES") != "1", reason="make k8s-test runs it"),
    pytest.mark.timeout(900),
]

ROLES = ("store", "gateway", "scheduler", "retry", "console", "spark", "keda")
MESSAGES = 300
FAR_LEVEL, FAR = 18, 20
# A node looks at Secrets once a minute, or a little less often.
RENEWED_WITHIN_S = 240
# The status of a call to a store, made in a pod with its own certificate.
CALL = """
import sys, grpc
ca, key, cert = (open("/etc/duetime/tls/" + name, "rb").read() for name in ("ca.crt", "tls.key", "tls.crt"))
with grpc.secure_channel("duetime-store-0:9801", grpc.ssl_channel_credentials(ca, key, cert)) as channel:
    try:
        channel.unary_unary("/duetime.v1.Store/" + sys.argv[1])(b"", timeout=10)
        print("OK")
    except grpc.RpcError as error:
        print(error.code().name)
"""


async def make_certificates(folder: Path) -> None:
    """As docs/kubernetes.md has it: by `duetime certs init`, as Secrets of the namespace; again: renewed ones."""
    assert run(["certs", "init", str(folder), "--dns", await node_address()]) == 0
    for role in ROLES:
        words = ("create", "secret", "generic", f"duetime-{role}-tls", f"--from-file={folder / role}")
        manifest, _ = await kubectl(*words, "--dry-run=client", "-o", "json")
        (folder / f"{role}.json").write_text(manifest)
        await kubectl("apply", "-f", str(folder / f"{role}.json"))


async def in_pod(app: str, *words: str) -> str:
    """Output of a command in a pod of an app."""
    out, _ = await kubectl("exec", f"deployment/duetime-{app}", "-c", app, "--", *words)
    return out.strip()


async def refusals(address: str, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals of calls without token, of plain text, and of processes of the cluster that exceed their role."""
    async with AsyncProducer(address, token="dt_nobody_nothing") as producer:
        with pytest.raises(Unauthenticated):
            await producer.send(TOPIC, b"x")
    with monkeypatch.context() as patch:
        patch.delenv("DUETIME_TLS_CA_FILE")
        patch.setenv("DUETIME_TOKEN_IN_PLAIN", "1")
        async with AsyncProducer(address, token=token, timeout="3s") as producer:
            with pytest.raises(Unavailable):
                await producer.send(TOPIC, b"x")
    for app, method, status in (
        # An empty request that is let in.
        ("gateway", "Put", "OK INVALID_ARGUMENT"),
        ("scheduler", "Put", "PERMISSION_DENIED"),
        ("retry", "Restore", "PERMISSION_DENIED"),
    ):
        assert await in_pod(app, "python", "-P", "-c", CALL, method) in status.split(), app
    say("callers without a token, without TLS or with another role are rejected")


@asynccontextmanager
async def forwarded(service: str, port: int) -> AsyncIterator[str]:
    """An address on this machine that leads to a port of the cluster."""
    process = await asyncio.create_subprocess_exec(
        KUBECTL, "-n", NAMESPACE, "port-forward", f"service/{service}", f":{port}", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        yield f"localhost:{found[1]}"
    finally:
        process.terminate()
        await process.wait()


async def ask_as_keda(folder: Path) -> None:
    metadata = {"within": "3h", "target": "10", "levels": str(FAR_LEVEL)}
    reference = externalscaler_pb2.ScaledObjectRef(name="consumers", namespace="shop", scalerMetadata=metadata)
    request = externalscaler_pb2.GetMetricsRequest(scaledObjectRef=reference, metricName="duetime-due")
    ca, key, cert = ((folder / "keda" / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt"))
    async with forwarded("duetime-gateway-certified", 9802) as address:
        async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert)) as channel:
            stub = externalscaler_pb2_grpc.ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
            (value,) = (await stub.GetMetrics(request, timeout=CALL_TIMEOUT_S)).metricValues
        async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca)) as channel:
            stub = externalscaler_pb2_grpc.ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetMetrics(request, timeout=CALL_TIMEOUT_S)
    assert value.metricValue == FAR
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    say(f"KEDA counts {value.metricValue} entries due within 3 h, by its certificate alone")


async def count_backlog(address: str) -> None:
    await kubectl("create", "job", "spark-once", "--from=cronjob/duetime-spark-backlog")
    await job_done("spark-once", 600)
    async with connected(address) as stub:
        report = await stub.GetBacklogReport(backlog_pb2.GetBacklogReportRequest(), timeout=CALL_TIMEOUT_S)
    assert (report.report_count, report.live_count, report.drift) == (FAR, FAR, 0)
    say(f"Spark's CronJob counted the backlog by its certificate: {FAR} pending")


async def renew(address: str, folder: Path) -> None:
    """Other Secrets reach the pods, and are taken while messages are sent, of which none fails."""
    began, before = time.monotonic(), await asyncio.to_thread(serial_of, address, folder / "ca.crt")
    await make_certificates(folder)
    async with AsyncProducer(address, timeout=timedelta(seconds=CALL_TIMEOUT_S)) as producer:

        async def taken() -> bool:
            await producer.send("k8s-renewed", b"x")
            return await asyncio.to_thread(serial_of, address, folder / "ca.crt") != before

        await until("the gateway shows a renewed certificate", taken, within_s=RENEWED_WITHIN_S)
        await producer.send("k8s-renewed", b"x")
    say(f"renewed certificates were taken after {time.monotonic() - began:.0f} s, and no send failed")


async def test_every_message_is_accounted_for_by_tls_with_a_token(
    namespace: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "certs"
    await kubectl("apply", "-f", str(K8S / "base" / "namespace.yaml"))
    await make_certificates(folder)
    _, warnings = await kubectl("apply", "-k", str(K8S / "overlays" / "local-secure"))
    assert "PodSecurity" not in warnings
    await kubectl("patch", "cronjob/duetime-spark-backlog", "--patch", '{"spec": {"suspend": true}}')
    await job_done("duetime-migrate", 300)
    await rolled_out()
    say("local-secure overlay is applied, migrated and ready")
    token = await in_pod("gateway", "duetime", "users", "create", "ops", "--admin")
    monkeypatch.setenv("DUETIME_TLS_CA_FILE", str(folder / "ca.crt"))
    monkeypatch.setenv("DUETIME_TOKEN", token)
    address = await gateway_address()
    async with connected(address) as stub:
        request = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=QUEUE_COUNT)
        await stub.CreateTopic(request, timeout=CALL_TIMEOUT_S)
    account = Account(address, random.Random(MESSAGES), MESSAGES)
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(account.send(over_s=30))
        pulling = tasks.create_task(account.pull(sending))
        for app in ("store", "gateway", "scheduler"):
            name = sorted(name for name, of in (await live_pods(app)).items() if of == app)[0]
            await kubectl("delete", "pod", name, "--wait=false", "--grace-period=0", "--force")
        await rolled_out()
        say("a store, a gateway and a scheduler were killed, and all are ready again")
        async with asyncio.timeout(180):
            await pulling
    say(await account.check(shards=2))
    await refusals(address, token, monkeypatch)
    async with AsyncProducer(address, timeout=timedelta(seconds=CALL_TIMEOUT_S)) as producer:
        await producer.send_many([Message("k8s-far", b"far", level=FAR_LEVEL) for _ in range(FAR)])
    await ask_as_keda(folder)
    await count_backlog(address)
    started = await restarts()
    await renew(address, folder)
    assert await restarts() == started
