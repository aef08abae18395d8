"""`docker compose up` on a real engine: it starts every service, and nothing is lost, doubled or early in it."""

import asyncio
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from duetime import Message, Producer

from tests.compose.accounts import TOPIC, Accounts
from tests.compose.stack import PROJECT, SERVICES, UP_S, Stack
from tests.compose.webhooks import receiving

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

MESSAGES = 1_000
KEPT_BACK = 100
PAUSE_S = 1.2  # between batches of 10: two minutes of sending, which cover most of the test
KILLS = 12
# Distributions of this tree; packages are named as indexes compare them.
OURS = {"duetime", "duetime-server"}
BYTES_BEYOND_BASE_MAX = 250 * 1000 * 1000
WITH_WEBHOOKS = {**SERVICES, "webhooks": 1}
# Longer than the lease of a killed worker's messages.
POSTED_WITHIN_S = 120.0
SOURCES = ["/var/lib/duetime/0/store", "/var/lib/duetime/1/store"]


def test_all_is_healthy_and_nothing_may_do_more_than_it_must(stack: Stack) -> None:
    assert stack.running() == WITH_WEBHOOKS
    for container in stack.containers():
        told = stack.inspect(container["ID"])
        host = told["HostConfig"]
        service = container["Service"]
        assert host["Memory"] > 0, service
        assert host["NanoCpus"] > 0, service
        if service == "postgres":
            continue
        assert told["Config"]["User"] == "10001:10001", service
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        if service != "migrate":
            assert host["RestartPolicy"]["Name"] == "unless-stopped", service
    published = {c["Service"] for c in stack.containers() if any(p["PublishedPort"] for p in c["Publishers"] or [])}
    assert published == {"gateway", "console"}


def test_images_have_the_lock_files_versions_and_little_else(stack: Stack) -> None:
    locked = dict(_pair(line) for line in locks())
    base = size("python:3.11-slim-bookworm")
    for name in ("store", "gateway", "scheduler", "retry", "webhooks", "console", "spark"):
        image = f"duetime/{name}:test"
        assert name == "spark" or size(image) - base < BYTES_BEYOND_BASE_MAX, f"{image}: {size(image) - base} bytes"
        for package, version in packages(image).items():
            assert package in OURS or locked.get(package) == version, f"{image} has {package} {version}"


def test_no_registry_is_asked_for_an_image_that_is_not_built(images: None) -> None:
    other = Stack(f"duetime-absent-{os.getpid()}", {"DUETIME_TAG": "absent"})
    try:
        for service in ("migrate", "store-1", "demo"):
            with pytest.raises(AssertionError, match=r"(?i)no such image"):
                other.compose("run", "--rm", "--no-deps", "-T", service)
    finally:
        other.down()


async def test_kills_scaling_and_an_upgrade_lose_and_double_nothing(stack: Stack, dice: random.Random) -> None:
    accounts = Accounts(stack.address, dice, MESSAGES, PAUSE_S, KEPT_BACK)
    with receiving(stack) as receiver:
        hook = ("webhooks", "create", "copies", "--topic", TOPIC, "--group", "copies", "--url", receiver.url)
        client(stack, "topics", "create", TOPIC)
        client(stack, *hook)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(accounts.run(deadline_s=420.0))
            await asyncio.to_thread(kill_at_random, stack, dice)
            await asyncio.to_thread(scale, stack)
            await asyncio.to_thread(upgrade, stack)
            accounts.calm.set()
            await running
        accounts.check()
        posted = await asyncio.to_thread(receiver.until, accounts.acknowledged, POSTED_WITHIN_S)
    late = sorted(accounts.late_ms)
    print(f"{len(late)} messages, late p50 {late[len(late) // 2]} ms, max {late[-1]} ms")
    print(f"{len(posted)} messages posted by {posted.total()} requests")
    assert stack.running() == WITH_WEBHOOKS


def test_spark_counts_the_backlog_and_proves_every_end(stack: Stack) -> None:
    with Producer(stack.address) as producer:
        receipts = producer.send_many([Message("later", b"x", delay="1h") for _ in range(50)])
    assert all(receipt.lane for receipt in receipts)  # type: ignore[union-attr]
    run_spark(stack)  # as `docker compose --profile analytics run --rm backlog` does
    shown = json.loads(client(stack, "backlog", "--spark", "--json"))
    assert shown["drift"] == 0
    assert sum(row["count"] for row in shown["pending"] if row["topic"] == "later") == 50
    audit = json.loads(run_spark(stack, "audit", *SOURCES, "--strict", "--json"))
    assert audit["is_proven"]


def test_message_is_posted_to_a_container_at_its_time(stack: Stack) -> None:
    with receiving(stack) as receiver, Producer(stack.address) as producer:
        client(stack, "topics", "create", "hooks")
        made = ("webhooks", "create", "hook", "--topic", "hooks", "--group", "hook", "--url", receiver.url, "--json")
        assert json.loads(client(stack, *made))["secret"].startswith("whsec_")
        assert json.loads(client(stack, "webhooks", "test", "hook", "--json"))["status"] == 204
        began = time.monotonic()
        receipt = producer.send("hooks", {"order": 42}, delay="1s")
        assert receiver.until({receipt.message_id}, POSTED_WITHIN_S)[receipt.message_id] == 1
        assert time.monotonic() - began >= 1


def test_client_in_a_container_shows_the_demonstration(stack: Stack) -> None:
    lines = [json.loads(line) for line in client(stack, "demo", "--json").splitlines()]
    assert Counter(line["demo"] for line in lines) == {"sent": 6, "arrived": 6}


def kill_at_random(stack: Stack, dice: random.Random) -> None:
    """Kills half by the engine, for `up` to restart; half from outside, for the engine to restart. One of the killed is
    the worker of webhooks."""
    killed: Counter[str] = Counter()
    for turn in range(KILLS):
        running = [one for one in stack.containers() if one["State"] == "running"]
        workers = [one for one in running if one["Service"] == "webhooks"]
        container = dice.choice(workers if workers and turn == KILLS // 2 else running)
        killed[container["Service"]] += 1
        if turn % 2 or not kill_process(stack, container["ID"]):
            stack.compose("kill", container["Service"])
            stack.compose("up", "--detach", "--no-recreate", timeout_s=UP_S)
        time.sleep(dice.uniform(0.0, 3.0))
    stack.up("--no-recreate")
    print(f"killed {dict(killed)}")


def kill_process(stack: Stack, container: str) -> bool:
    """Kills a container's first process as a crash would; False where this process may not."""
    pid = stack.inspect(container)["State"]["Pid"]
    try:
        if container[:12] not in Path(f"/proc/{pid}/cgroup").read_text() + Path(f"/proc/{pid}/mountinfo").read_text():
            return False
        os.kill(pid, signal.SIGKILL)
    except (OSError, ProcessLookupError):
        return False
    return True


def scale(stack: Stack) -> None:
    """Each lane is served by one of the schedulers that are there, with as many of them as are there."""
    for count in (3, 1, 2):
        stack.up("--no-recreate", "--scale", f"scheduler={count}")
        deadline = time.monotonic() + 60
        while len(owners(stack)) != count:
            assert time.monotonic() < deadline, f"{count} schedulers, and lanes are owned by {owners(stack)}"
            time.sleep(0.5)


def owners(stack: Stack) -> set[str]:
    lanes = [json.loads(line) for line in client(stack, "lanes", "--json").splitlines()]
    return {lane["owner"] for lane in lanes}


def upgrade(stack: Stack) -> None:
    """To images of another name: every container is a new one, and each old one ended by itself, in order."""
    before = {container["ID"] for container in stack.containers() if container["Service"] != "postgres"}
    since = time.time()
    stack.upgrade("test-next")
    after = {container["ID"] for container in stack.containers()}
    assert not before & after
    ends = stack.ends(since)
    assert {end["exitCode"] for end in ends} == {"0"}, ends


def client(stack: Stack, *arguments: str) -> str:
    return stack.compose("run", "--rm", "--no-deps", "-T", "demo", *arguments)


def run_spark(stack: Stack, *arguments: str) -> str:
    return stack.compose("run", "--rm", "--no-deps", "-T", "backlog", *arguments, timeout_s=240)


def locks() -> list[str]:
    return (PROJECT / "constraints.txt").read_text().split()


def size(image: str) -> int:
    return int(docker("image", "inspect", "--format", "{{.Size}}", image))


def packages(image: str) -> dict[str, str]:
    code = "from importlib.metadata import distributions as d; print(*(f'{x.name}=={x.version}' for x in d()))"
    found = docker("run", "--rm", "--entrypoint", "python", image, "-P", "-c", code).split()
    return dict(_pair(one) for one in found)


def _pair(text: str) -> tuple[str, str]:
    name, _, version = text.partition("==")
    return name.lower().replace("_", "-").replace(".", "-"), version


def docker(*arguments: str) -> Any:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout
