"""deploy/k8s on a real cluster: `make k8s-test`. Without DUETIME_TEST_KUBERNETES=1 nothing here runs.

It makes and removes the namespace `duetime` of the cluster that KUBECONFIG names, and refuses one that has it already.
"""

import asyncio
import os
import random
import time
from collections import Counter
from datetime import timedelta

import pytest
from duetime import AsyncProducer, Message
from duetime.v1 import backlog_pb2, externalscaler_pb2, externalscaler_pb2_grpc, gateway_pb2
from duetime_core.rpc.serving import make_channel

from tests.kubernetes.account import CALL_TIMEOUT_S, QUEUE_COUNT, TOPIC, Account, connected, lanes
from tests.kubernetes.kubectl import (
    APPS,
    K8S,
    gateway_address,
    get,
    job_done,
    kubectl,
    live_pods,
    restarts,
    rolled_out,
    say,
    until,
)

pytestmark = [
    pytest.mark.skipif(os.environ.get("DUETIME_TEST_KUBERNETES") != "1", reason="make k8s-test runs it"),
    pytest.mark.timeout(1_800),
]

SEED = int(os.environ.get("DUETIME_TEST_SEED", "0")) or random.randrange(1 << 32)
MESSAGES = int(os.environ.get("DUETIME_TEST_MESSAGES", "1000"))
KILLS = int(os.environ.get("DUETIME_TEST_KILLS", "8"))
# The lane of 2 h: these are pending as long as the test runs.
FAR_LEVEL, FAR = 18, 50


async def delete_pods(dice: random.Random) -> Counter[str]:
    """One pod after the other, of any app; every second one, the first included, without the time to drain."""
    deleted: Counter[str] = Counter()
    for number in range(KILLS):
        pods = await live_pods(*APPS)
        # Apps in turn come first, so that each is hit; which pod of it is chance.
        app = APPS[number % len(APPS)] if number < len(APPS) else dice.choice(APPS)
        name = dice.choice(sorted(name for name, of in pods.items() if of == app))
        force = [] if number % 2 else ["--grace-period=0", "--force"]
        await kubectl("delete", "pod", name, "--wait=false", *force)
        deleted[f"{app}{' (killed)' if force else ''}"] += 1
        await asyncio.sleep(dice.uniform(2, 10))
    return deleted


async def owners(address: str) -> set[str]:
    return {lane.owner for lane in await lanes(address)}


async def scale_schedulers(address: str, count: int) -> None:
    """Lanes move to exactly the schedulers that are there: a member's name begins with its pod's."""
    await kubectl("scale", "deployment/duetime-scheduler", f"--replicas={count}")

    async def shared_out() -> bool:
        pods = await live_pods("scheduler")
        found = {next((pod for pod in pods if owner.startswith(pod)), owner) for owner in await owners(address)}
        return len(pods) == count and found == set(pods)

    await until(f"lanes on {count} schedulers", shared_out)
    of = Counter(lane.owner for lane in await lanes(address))
    say(f"{count} schedulers hold {'+'.join(str(held) for held in sorted(of.values()))} lanes")


async def roll_update() -> None:
    """Another tag on every image of ours: all pods are replaced, one after the other."""
    for kind, name in (
        ("statefulset", "store"),
        ("deployment", "gateway"),
        ("deployment", "scheduler"),
        ("deployment", "retry"),
        ("deployment", "console"),
    ):
        await kubectl("set", "image", f"{kind}/duetime-{name}", f"*=duetime/{name}:next")
    await rolled_out()
    images = {
        container["image"]
        for pod in (await get("pods", "-l", "duetime.io/serves=metrics"))["items"]
        if "deletionTimestamp" not in pod["metadata"]
        for container in pod["spec"]["containers"]
    }
    assert images == {f"duetime/{name}:next" for name in ("store", "gateway", "scheduler", "retry", "console")}


async def count_backlog(address: str) -> None:
    """Runs the CronJob's job once; its report is where the gateway finds it, and agrees with the live counters."""
    started = time.monotonic()
    await kubectl("create", "job", "spark-once", "--from=cronjob/duetime-spark-backlog")
    await job_done("spark-once", 600)
    async with connected(address) as stub:
        report = await stub.GetBacklogReport(backlog_pb2.GetBacklogReportRequest(), timeout=CALL_TIMEOUT_S)
    assert (report.report_count, report.live_count, report.drift) == (FAR, FAR, 0)
    say(f"Spark's CronJob counted the backlog in {time.monotonic() - started:.0f} s: {FAR} pending, as the lanes say")


async def ask_as_keda(address: str) -> None:
    metadata = {"within": "3h", "target": "10", "levels": str(FAR_LEVEL)}
    reference = externalscaler_pb2.ScaledObjectRef(name="consumers", namespace="shop", scalerMetadata=metadata)
    async with make_channel(address) as channel:
        stub = externalscaler_pb2_grpc.ExternalScalerStub(channel)
        request = externalscaler_pb2.GetMetricsRequest(scaledObjectRef=reference, metricName="duetime-due")
        (value,) = (await stub.GetMetrics(request, timeout=CALL_TIMEOUT_S)).metricValues
    assert value.metricValue == FAR
    say(f"KEDA counts {value.metricValue} entries due within 3 h")


async def test_production_overlay_is_taken_by_the_api_server(namespace: None) -> None:
    await kubectl("apply", "-f", str(K8S / "base" / "namespace.yaml"))
    await kubectl("apply", "-f", str(K8S.parents[1] / "tests" / "kubernetes" / "custom.yaml"))
    await kubectl("wait", "--for=condition=Established", "customresourcedefinition", "-l", "duetime.io/test=true")
    out, warnings = await kubectl("apply", "--dry-run=server", "-k", str(K8S / "overlays" / "production"))
    # Pod security is checked too: a violation is a warning.
    assert not warnings
    count = out.count("(server dry run)")
    assert count == out.count("\n") > 20
    say(f"production: {count} resources accepted by the API server, no warning")


async def test_every_message_is_accounted_for_despite_deleted_pods(namespace: None) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    _, warnings = await kubectl("apply", "-k", str(K8S / "overlays" / "local"))
    assert "PodSecurity" not in warnings
    # It is run once, when there is something to count; not by the clock while pods die.
    await kubectl("patch", "cronjob/duetime-spark-backlog", "--patch", '{"spec": {"suspend": true}}')
    await job_done("duetime-migrate", 300)
    await rolled_out()
    say("local overlay is applied, migrated and ready")
    address = await gateway_address()
    async with connected(address) as stub:
        request = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=QUEUE_COUNT)
        await stub.CreateTopic(request, timeout=CALL_TIMEOUT_S)
    account = Account(address, dice, MESSAGES)
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(account.send(over_s=90))
        pulling = tasks.create_task(account.pull(sending))
        deleted = await delete_pods(dice)
        say(f"pods deleted: {', '.join(f'{count} {what}' for what, count in deleted.items())}")
        await rolled_out()
        say("all ready again")
        await roll_update()
        say("another image tag is rolled out")
        for count in (3, 1, 2):
            await scale_schedulers(address, count)
        await sending
        say(f"{len(account.acknowledged)} sends acknowledged")
        async with asyncio.timeout(180):
            await pulling
    say(await account.check(shards=2))
    async with AsyncProducer(address, timeout=timedelta(seconds=CALL_TIMEOUT_S)) as producer:
        await producer.send_many([Message("k8s-far", b"far", level=FAR_LEVEL) for _ in range(FAR)])
    await ask_as_keda(address)
    await count_backlog(address)
    restored = sum(lane.watermark for lane in await lanes(address))
    assert restored == MESSAGES, "lane entries restored"
    say(f"containers restarted by their probes or after an exit: {await restarts() or 'none'}")
