"""The cluster, by kubectl: commands and their output."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

K8S = Path(__file__).resolve().parents[2] / "deploy" / "k8s"
NAMESPACE = "duetime"
KUBECTL = os.environ.get("DUETIME_TEST_KUBECTL", "kubectl")
APPS = ("store", "gateway", "scheduler", "retry", "console", "postgres")

began = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)


class Refused(Exception):
    """Standard error of kubectl."""


async def kubectl(*arguments: str, timeout_s: float = 60) -> tuple[str, str]:
    """Its output and its warnings.

    Raises:
        Refused: it failed.
    """
    process = await asyncio.create_subprocess_exec(
        KUBECTL, "-n", NAMESPACE, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        raise Refused(f"kubectl {' '.join(arguments)} did not end in {timeout_s:g} s") from None
    if process.returncode:
        raise Refused(f"kubectl {' '.join(arguments)}: {err.decode().strip()}")
    return out.decode(), err.decode()


async def get(*arguments: str) -> Any:
    """Output of `kubectl get`, as JSON."""
    out, _ = await kubectl("get", *arguments, "-o", "json")
    return json.loads(out)


async def rolled_out(timeout_s: int = 300) -> None:
    """Returns when all that serves is up to date and ready."""
    names = [f"deployment/duetime-{name}" for name in ("gateway", "scheduler", "retry", "console")]
    names += [f"statefulset/duetime-{name}" for name in ("postgres", "store")]
    # One wait at a time: each is a process that asks and asks.
    for name in names:
        await kubectl("rollout", "status", name, f"--timeout={timeout_s}s", timeout_s=timeout_s + 30)


async def job_done(name: str, timeout_s: int) -> None:
    """Returns when a Job is complete.

    Raises:
        Refused: it is not in time; with the last output of its pods.
    """
    waiting = ("wait", f"job/{name}", "--for=condition=complete", f"--timeout={timeout_s}s")
    try:
        await kubectl(*waiting, timeout_s=timeout_s + 30)
    except Refused as error:
        said, _ = await kubectl("logs", f"job/{name}", "--tail=20", "--all-containers")
        raise Refused(f"{error}\n{said}") from None


async def until(what: str, holds: Callable[[], Awaitable[bool]], within_s: float = 120) -> None:
    """Returns when it holds; asks every second."""
    end = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(1)


async def live_pods(*apps: str) -> dict[str, str]:
    """Names of pods that are not on their way out, and the app of each."""
    found = (await get("pods"))["items"]
    told = {
        pod["metadata"]["name"]: pod["metadata"]["labels"]["app.kubernetes.io/name"].removeprefix("duetime-")
        for pod in found
        if "deletionTimestamp" not in pod["metadata"]
    }
    return {name: app for name, app in told.items() if app in apps}


async def restarts() -> dict[str, int]:
    """Restarted containers, by pod: by their probes, or because they ended."""
    return {
        pod["metadata"]["name"]: count
        for pod in (await get("pods"))["items"]
        if (count := sum(one["restartCount"] for one in pod["status"].get("containerStatuses", [])))
    }


async def gateway_address() -> str:
    """Where the gateway's Service is reached from outside: a node's address, and the Service's port on it."""
    service = await get("service", "duetime-gateway")
    return f"{await node_address()}:{service['spec']['ports'][0]['nodePort']}"


async def node_address() -> str:
    (node, *_) = (await get("nodes"))["items"]
    return next(str(one["address"]) for one in node["status"]["addresses"] if one["type"] == "InternalIP")
