"""The Helm chart on a real cluster, by Helm itself: `make k8s-test`, after the overlays.

Without DUETIME_TEST_KUBERNETES=1 nothing here runs.
"""

import asyncio
import os
import random
import sysconfig
from collections import Counter
from pathlib import Path

import pytest
from duetime import AsyncWebhooks
from duetime.v1 import gateway_pb2

from tests.kubernetes.account import CALL_TIMEOUT_S, QUEUE_COUNT, TOPIC, Account, connected, lanes
from tests.kubernetes.kubectl import (
    K8S,
    NAMESPACE,
    gateway_address,
    get,
    job_done,
    kubectl,
    restarts,
    rolled_out,
    say,
    until,
)

pytestmark = [
    pytest.mark.skipif(os.environ.get("DUETIME_TEST_KUBERNETES") != "1", reason="make k8s-test runs it"),
    pytest.mark.timeout(1_800),
]

HELM = Path(sysconfig.get_path("scripts")) / "helm"
CHART = K8S.parent / "helm" / "duetime"
HERE = Path(__file__).parent
MESSAGES = 300
WAIT = ("--wait", "--timeout=5m")


async def helm(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and output."""
    process = await asyncio.create_subprocess_exec(
        HELM, *arguments, "--namespace", NAMESPACE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def install_or_upgrade(verb: str, *values: str) -> None:
    """Returns when all of the release is ready."""
    chosen = ("--set", ",".join(values)) if values else ()
    code, text = await helm(verb, "duetime", CHART, "--values", HERE / "values.yaml", *chosen, *WAIT)
    assert code == 0, text
    assert "PodSecurity" not in text


async def prepare() -> str:
    """The namespace, PostgreSQL and the Secrets, as docs/kubernetes.md has it. Returns the name of the database's."""
    await kubectl("apply", "-f", str(K8S / "base" / "namespace.yaml"))
    await kubectl("apply", "-k", str(HERE / "postgres"))
    await kubectl("create", "secret", "generic", "duetime-cluster", "--from-literal=secret=duetime-local-cluster")
    await kubectl("create", "secret", "generic", "duetime-secrets", f"--from-literal=key={'A' * 43}=")
    (database,) = (
        str(one["metadata"]["name"])
        for one in (await get("secrets"))["items"]
        if one["metadata"]["name"].startswith("duetime-database")
    )
    return database


async def images() -> set[str]:
    return {
        str(container["image"]).rpartition(":")[2]
        for pod in (await get("pods", "-l", "duetime.io/serves=metrics"))["items"]
        if "deletionTimestamp" not in pod["metadata"]
        for container in pod["spec"]["containers"]
    }


async def create_webhook(address: str) -> None:
    """A webhook of all messages, to a receiver beside the release."""
    await kubectl("apply", "-f", str(HERE / "receiver.yaml"))
    await kubectl("wait", "pod/receiver", "--for=condition=Ready", "--timeout=120s", timeout_s=150)
    async with AsyncWebhooks(address, timeout=f"{CALL_TIMEOUT_S:g}s") as webhooks:
        await webhooks.create("posted", topic=TOPIC, group="posted", url="http://receiver:8080/hook")


async def posted() -> Counter[str]:
    """Requests by message."""
    out, _ = await kubectl("logs", "pod/receiver")
    return Counter(out.split())


async def test_release_is_installed_upgraded_rolled_back_and_removed(namespace: None) -> None:
    database = f"database.secret={await prepare()}"
    await install_or_upgrade("install", database)
    # PostgreSQL is no part of the release.
    await rolled_out()
    say("the chart is installed, migrated and ready")
    address = await gateway_address()
    async with connected(address) as stub:
        request = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=QUEUE_COUNT)
        await stub.CreateTopic(request, timeout=CALL_TIMEOUT_S)
    await create_webhook(address)
    account = Account(address, random.Random(1), MESSAGES)
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(account.send(over_s=60))
        pulling = tasks.create_task(account.pull(sending))
        await install_or_upgrade("upgrade", database, "image.tag=next")
        assert await images() == {"next"}
        code, text = await helm("rollback", "duetime", "1", *WAIT)
        assert code == 0, text
        assert await images() == {"local"}
        say("another image is rolled out, and back")
        await sending
        async with asyncio.timeout(180):
            await pulling
    say(await account.check(shards=2))

    async def all_posted() -> bool:
        return account.sent.keys() <= (await posted()).keys()

    await until("each message is posted to the webhook", all_posted)
    found = await posted()
    # A worker that ends in an upgrade may have sent a request without noting it.
    say(f"{MESSAGES} messages posted to a webhook, {sum(found.values()) - len(found)} of them again")
    assert found.keys() == account.sent.keys()
    code, text = await helm("upgrade", "duetime", CHART, "--values", HERE / "values.yaml", "--set", "shards=1")
    assert code != 0
    assert "shard" in text
    before = len(await lanes(address))
    await install_or_upgrade("upgrade", database, "shards=3")
    assert len(await lanes(address)) == before // 2 * 3
    say(f"a third shard serves; containers restarted: {await restarts() or 'none'}")
    await kubectl("create", "job", "spark-once", "--from=cronjob/duetime-spark-backlog")
    await job_done("spark-once", 600)
    code, text = await helm("uninstall", "duetime", *WAIT)
    assert code == 0, text
    claims = {one["metadata"]["name"] for one in (await get("persistentvolumeclaims"))["items"]}
    assert {f"data-duetime-store-{shard}" for shard in range(3)} <= claims
    say("the release is removed, and the stores' volumes are left")
