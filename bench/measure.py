"""The measurements: each against the echo of the same round, then the delayed path, memory and restart."""

import asyncio
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from duetime.v1 import gateway_pb2, gateway_pb2_grpc

from bench.consumer import Arrivals, consumer
from bench.load import DELAY, DELAY_S, Target, closed_loop, fill, open_loop, produce
from bench.processes import NAMES, Processes, cpu_s, memory_mb, wait_until

BATCH = 256
BATCHES_IN_FLIGHT = 8
SINGLES_IN_FLIGHT = 64
RATES = (1_000, 5_000)
FAR_LEVEL = 18
CALL_TIMEOUT_S = 10.0
RESTART_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Plan:
    """How long to measure, and on what."""

    rounds: int
    seconds: float
    delayed_seconds: float
    lateness_seconds: float
    # Of each topic. A reader has a long poll per queue, and each arrival answers one: more queues cost the reader more.
    queues: int = 1


PLAN = Plan(rounds=3, seconds=2.0, delayed_seconds=5.0, lateness_seconds=6.0)
QUICK = Plan(rounds=1, seconds=1.0, delayed_seconds=2.0, lateness_seconds=2.0)


class WrongError(Exception):
    """Messages came early, twice or not at all: no rate is worth reporting."""


class Meter:
    """Processor time of this process and of others since it was made."""

    def __init__(self, others: dict[str, int]) -> None:
        self._pids = {"client": os.getpid(), **others}
        self._began = {name: cpu_s(pid) for name, pid in self._pids.items()}

    def us_each(self, count: int) -> dict[str, float]:
        """Microseconds per message."""
        return {name: (cpu_s(pid) - self._began[name]) / count * 1e6 for name, pid in self._pids.items()}


@dataclass
class Round:
    """Messages/s, and processor microseconds per message and process, by what was measured."""

    rates: dict[str, float]
    cpu_us: dict[str, dict[str, float]]


def accepting(plan: Plan, echo: tuple[str, int], clusters: dict[str, Processes]) -> dict[str, Any]:
    """Rates of acceptance, echo and clusters in turns; the median of the rounds' rates and of their ratios."""
    rounds = [asyncio.run(_accepting_round(plan, echo, clusters)) for _ in range(plan.rounds)]
    result: dict[str, Any] = {"rounds": [one.rates for one in rounds], "median": {}, "ratio": {}}
    for name in rounds[0].rates:
        result["median"][name] = statistics.median(one.rates[name] for one in rounds)
        baseline = "echo single" if "single" in name else "echo batch"
        result["ratio"][name] = statistics.median(one.rates[name] / one.rates[baseline] for one in rounds)
    return result | {"cpu_us": rounds[-1].cpu_us}


async def _accepting_round(plan: Plan, echo: tuple[str, int], clusters: dict[str, Processes]) -> Round:
    result = Round({}, {})
    targets = {"echo": Target(echo[0], echo=True)}
    targets |= {mode: Target(cluster.address, echo=False) for mode, cluster in clusters.items()}
    pids = {"echo": {"echo": echo[1]}} | {mode: cluster.pids() for mode, cluster in clusters.items()}
    for kind, batch, in_flight in (("batch", BATCH, BATCHES_IN_FLIGHT), ("single", 1, SINGLES_IN_FLIGHT)):
        for name, target in targets.items():
            meter = Meter(pids[name])
            result.rates[f"{name} {kind}"], total = await closed_loop(
                target, "accepted", batch=batch, in_flight=in_flight, seconds=plan.seconds
            )
            result.cpu_us[f"{name} {kind}"] = meter.us_each(total)
    for mode, cluster in clusters.items():
        result.rates[f"{mode} producer"] = await produce(
            cluster.address, "accepted", batch=BATCH, in_flight=BATCHES_IN_FLIGHT, seconds=plan.seconds
        )
    for target in targets.values():
        await target.close()
    return result


def delayed(plan: Plan, echo: str, cluster: Processes, name: str) -> dict[str, Any]:
    """Messages/s through the whole delayed path, and their share of the echo's rate just before; medians of rounds."""
    rounds = []
    for number in range(plan.rounds):
        baseline = asyncio.run(_echo_batches(plan, echo))
        meter = Meter(cluster.pids())
        sent, rate = _delayed_round(plan, cluster, f"delayed-{name}-{number}")
        rounds.append({"echo": baseline, "rate": rate, "ratio": rate / baseline})
    medians = {key: statistics.median(one[key] for one in rounds) for key in ("rate", "ratio")}
    return {"rounds": rounds, **medians, "cpu_us": meter.us_each(sent)}


async def _echo_batches(plan: Plan, echo: str) -> float:
    target = Target(echo, echo=True)
    rate, _ = await closed_loop(target, "accepted", batch=BATCH, in_flight=BATCHES_IN_FLIGHT, seconds=plan.seconds)
    await target.close()
    return rate


def _delayed_round(plan: Plan, cluster: Processes, topic: str) -> tuple[int, float]:
    """(messages, messages/s) from the first Send to the last arrival, less the delay itself."""
    make_topic(cluster.address, topic, plan.queues)
    with consumer(cluster.address, topic, timed=False) as far_end:
        started = time.monotonic()
        sent, arrivals = asyncio.run(_flood(cluster.address, topic, plan.delayed_seconds, far_end))
        check(arrivals, sent)
    return sent, sent / (arrivals.last_at - started - DELAY_S)


async def _flood(address: str, topic: str, seconds: float, far_end: Any) -> tuple[int, Arrivals]:
    target = Target(address, echo=False)
    _, sent = await closed_loop(target, topic, batch=BATCH, in_flight=BATCHES_IN_FLIGHT, seconds=seconds, delay=DELAY)
    await target.close()
    return sent, await far_end.all(sent)


def lateness(plan: Plan, cluster: Processes, name: str, rate: int) -> dict[str, float]:
    """Percentiles of received minus due, in ms, at an open-loop rate."""
    topic = f"late-{name}-{rate}"
    make_topic(cluster.address, topic, plan.queues)
    with consumer(cluster.address, topic, timed=True) as far_end:
        sent, arrivals = asyncio.run(_steady(cluster.address, topic, plan.lateness_seconds, rate, far_end))
        check(arrivals, sent)
    p50, p99, p999 = np.percentile(arrivals.late_ms, (50, 99, 99.9))
    stored = np.percentile(arrivals.stored_late_ms, (50, 99, 99.9))
    return {
        "sent": sent,
        "p50": float(p50),
        "p99": float(p99),
        "p99.9": float(p999),
        "max": max(arrivals.late_ms),
        "stored p50": float(stored[0]),
        "stored p99": float(stored[1]),
        "stored p99.9": float(stored[2]),
    }


async def _steady(address: str, topic: str, seconds: float, rate: int, far_end: Any) -> tuple[int, Arrivals]:
    target = Target(address, echo=False)
    sent = await open_loop(target, topic, rate=rate, seconds=seconds)
    await target.close()
    return sent, await far_end.all(sent)


def check(arrivals: Arrivals, sent: int) -> None:
    """Raises WrongError unless each message came once and none early."""
    if arrivals.early or arrivals.doubled or arrivals.count != sent:
        raise WrongError(
            f"{sent} sent, {arrivals.count} received, {arrivals.doubled} of them twice, {arrivals.early} early"
        )


def memory(cluster: Processes) -> dict[str, dict[str, float]]:
    """Per process, in MB: resident, and of that not backed by files."""
    pids = cluster.pids()
    found = {}
    for name in NAMES:
        resident, anonymous = memory_mb(pids[name])
        found[name] = {"resident_mb": resident, "anonymous_mb": anonymous}
    return found


def pending(plan: Plan, cluster: Processes, count: int) -> dict[str, Any]:
    """The store with `count` messages pending: its memory, lateness beside them, and how soon it answers again."""
    before = memory(cluster)["store"]
    rate = asyncio.run(fill(cluster.address, "far", count=count, level=FAR_LEVEL))
    result: dict[str, Any] = {"count": count, "fill_rate": rate, "store_before": before}
    result["store_filled"] = memory(cluster)["store"]
    result["lateness"] = lateness(plan, cluster, "pending", RATES[0])

    store = cluster.kill("store")
    started = time.monotonic()
    wait_until(lambda: cluster.pids().get("store") not in (None, store), RESTART_DEADLINE_S, "the store starts again")
    _wait_for_pending(cluster.address, count)
    result["after_kill_s"] = time.monotonic() - started
    result["after_kill_recovery_s"] = recovery_s(cluster)

    cluster.stop()
    started = time.monotonic()
    cluster.start()
    result["clean_restart_s"] = time.monotonic() - started
    _wait_for_pending(cluster.address, count)
    result["clean_restart_answer_s"] = time.monotonic() - started
    result["clean_restart_recovery_s"] = recovery_s(cluster)
    result["store_restarted"] = memory(cluster)["store"]
    return result


def recovery_s(cluster: Processes) -> float:
    """How long the store says that it took to read its directory."""
    lines = cluster.metrics("store").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("duetime_store_recovery_seconds "))


def _wait_for_pending(address: str, count: int) -> None:
    """Returns at the first answer that tells the lane's backlog; it must be exact."""
    found = [0]

    def answers() -> bool:
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                lanes = gateway_pb2_grpc.GatewayStub(channel).ListLanes(
                    gateway_pb2.ListLanesRequest(), timeout=CALL_TIMEOUT_S
                )
            except grpc.RpcError:
                return False
        found[:] = [lane.pending_count for lane in lanes.lanes if lane.level == FAR_LEVEL]
        return bool(found)

    wait_until(answers, RESTART_DEADLINE_S, "the gateway tells the lanes")
    if found != [count]:
        raise WrongError(f"{found[0]} messages are pending after the restart, and {count} were accepted")


def make_topic(address: str, topic: str, queue_count: int) -> None:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        gateway_pb2_grpc.GatewayStub(channel).CreateTopic(
            gateway_pb2.CreateTopicRequest(name=topic, queue_count=queue_count), timeout=CALL_TIMEOUT_S
        )


def stop_all(clusters: dict[str, Processes]) -> None:
    for cluster in clusters.values():
        cluster.stop()


def start_all(root: Path, plan: Plan) -> dict[str, Processes]:
    """A cluster for each flush mode, both idle until measured."""
    clusters: dict[str, Processes] = {}
    try:
        for mode in ("sync", "async"):
            clusters[mode] = Processes(root / mode, {"DUETIME_STORE_FLUSH_MODE": mode, "DUETIME_LOG_LEVEL": "WARNING"})
            clusters[mode].start()
            make_topic(clusters[mode].address, "accepted", plan.queues)
    except BaseException:
        stop_all(clusters)
        raise
    return clusters
