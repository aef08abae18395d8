"""DueTime alone: its memory, and the effect of a million pending messages on its restart."""

import asyncio
import threading
import time
from typing import Any

import grpc
from duetime.v1 import gateway_pb2, gateway_pb2_grpc

from bench.consume import fail, stock
from bench.contest import WrongError, lateness, sustained
from bench.figures import RATES
from bench.load import fill
from bench.peers.duetime import CHANNEL_OPTIONS, LEVEL_NUMBERS, DueTime
from bench.processes import NAMES, Processes, memory_mb, wait_until

FAR_LEVEL = 18
CALL_TIMEOUT_S = 10.0
RESTART_DEADLINE_S = 120.0
BURST_DELAY_S = 5.0
# Starts within the measurement of lateness, whose first messages are due by then.
RELEASE_AFTER_S = 2.0


def memory(cluster: Processes) -> dict[str, dict[str, float]]:
    """Per process, in MB: resident, and the part not backed by files."""
    pids = cluster.pids()
    found = {}
    for name in NAMES:
        resident, anonymous = memory_mb(pids[name])
        found[name] = {"resident_mb": resident, "anonymous_mb": anonymous}
    return found


def pending(duetime: DueTime, count: int, sustained_seconds: float, lateness_seconds: float) -> dict[str, Any]:
    """The store with `count` messages pending: its memory, lateness beside them, and time to its first answer."""
    cluster = duetime.cluster
    before = memory(cluster)["store"]
    # Left by other measurements.
    there = lane_of(duetime, FAR_LEVEL).pending_count
    rate = asyncio.run(fill(cluster.address, "far", count=count, level=FAR_LEVEL))
    result: dict[str, Any] = {"count": count, "fill_rate": rate, "store_before": before}
    result["store_filled"] = memory(cluster)["store"]
    result["lateness"] = lateness(duetime, "late-pending", RATES[0], lateness_seconds)
    result["sustained"], result["cpu_us"] = sustained(duetime, "sustained-pending", sustained_seconds)

    return result | restarts(cluster, FAR_LEVEL, there + count)


def restarts(cluster: Processes, lane: int, count: int) -> dict[str, Any]:
    """Time to the store's answer after a kill and after a stop, with `count` messages pending in a lane."""
    result: dict[str, Any] = {}
    store = cluster.kill("store")
    started = time.monotonic()
    wait_until(lambda: cluster.pids().get("store") not in (None, store), RESTART_DEADLINE_S, "the store starts again")
    _wait_for_pending(cluster.address, lane, count)
    result["after_kill_s"] = time.monotonic() - started
    result["after_kill_recovery_s"] = recovery_s(cluster)

    cluster.stop()
    started = time.monotonic()
    cluster.start()
    result["clean_restart_s"] = time.monotonic() - started
    _wait_for_pending(cluster.address, lane, count)
    result["clean_restart_answer_s"] = time.monotonic() - started
    result["clean_restart_recovery_s"] = recovery_s(cluster)
    result["store_restarted"] = memory(cluster)["store"]
    return result


def beside_burst(duetime: DueTime, count: int, lateness_seconds: float) -> dict[str, Any]:
    """Lateness on one lane by itself, and while another lane delivers `count` messages that are due at once."""
    result: dict[str, Any] = {"count": count, "usual": lateness(duetime, "late-usual", RATES[0], lateness_seconds)}
    duetime.hold(BURST_DELAY_S)
    level = LEVEL_NUMBERS[BURST_DELAY_S]
    asyncio.run(fill(duetime.cluster.address, "burst-beside", count=count, level=level))
    wait_until(lambda: not lane_of(duetime, level).next_due_at_ms, RESTART_DEADLINE_S, "all of the burst is due")
    begun = time.monotonic()
    took_s = [0.0]

    def release() -> None:
        duetime.release(BURST_DELAY_S)
        wait_until(lambda: not lane_of(duetime, level).pending_count, RESTART_DEADLINE_S, "the burst is delivered")
        took_s[0] = time.monotonic() - begun - RELEASE_AFTER_S

    timer = threading.Timer(RELEASE_AFTER_S, release)
    timer.start()
    result["beside"] = lateness(duetime, "late-beside", RATES[0], lateness_seconds)
    timer.join()
    return result | {"restored_per_s": count / took_s[0]}


def beside_retries(duetime: DueTime, count: int, lateness_seconds: float) -> dict[str, Any]:
    """Lateness by itself, and while a group has `count` retries pending."""
    result: dict[str, Any] = {"count": count, "usual": lateness(duetime, "late-without", RATES[0], lateness_seconds)}
    address = duetime.cluster.address
    duetime.make_topic("retried")
    asyncio.run(stock(address, "retried", count))
    result["failed_per_s"] = asyncio.run(fail(address, "retried", count=count))
    result["beside"] = lateness(duetime, "late-retries", RATES[0], lateness_seconds)
    return result


def lane_of(duetime: DueTime, level: int) -> gateway_pb2.Lane:
    """A lane in the gateway's list."""
    with grpc.insecure_channel(duetime.cluster.address, options=CHANNEL_OPTIONS) as channel:
        request = gateway_pb2.ListLanesRequest()
        lanes = gateway_pb2_grpc.GatewayStub(channel).ListLanes(request, timeout=CALL_TIMEOUT_S).lanes
    return next(lane for lane in lanes if lane.level == level)


def recovery_s(cluster: Processes) -> float:
    """The time in which the store read its directory, as it reports it."""
    lines = cluster.metrics("store").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("duetime_store_recovery_seconds "))


def _wait_for_pending(address: str, lane: int, count: int) -> None:
    """Returns at the first answer with the lane's backlog; it must be exact."""
    found = [0]

    def answers() -> bool:
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                lanes = gateway_pb2_grpc.GatewayStub(channel).ListLanes(
                    gateway_pb2.ListLanesRequest(), timeout=CALL_TIMEOUT_S
                )
            except grpc.RpcError:
                return False
        found[:] = [one.pending_count for one in lanes.lanes if one.level == lane]
        return bool(found)

    wait_until(answers, RESTART_DEADLINE_S, "the gateway lists the lanes")
    if found != [count]:
        raise WrongError(f"{found[0]} messages are pending after the restart, and {count} were accepted")
