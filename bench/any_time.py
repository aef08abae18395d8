"""Messages for any time: cancels, many due at one instant, and millions pending.

`python -m bench.any_time [--pending N] [--instant N]` adds them to the last run, bench/last.json.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from duetime import AsyncPuller, Message
from duetime.client.ids import new_id
from duetime.client.message import wire_fields
from duetime.client.sending.batch import now_ms
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2, pending_pb2
from rich.console import Console

from bench import report
from bench.contest import BATCH, BATCHES_IN_FLIGHT, PLAN, WrongError, lateness, sustained
from bench.figures import RATES
from bench.load import RefusedError, closed_loop, send_count
from bench.measure import RESTART_DEADLINE_S, lane_of, memory, restarts
from bench.peers import BODY, FAR_DELAY_S
from bench.peers.anytime import SCATTERED_MS, AnyTime
from bench.peers.duetime import TIMER_LANE, DueTime
from bench.processes import wait_until

CALL_TIMEOUT_S = 60.0
FAR_LEVEL = 18
# Messages of one cancel, as the SDK sends them.
CANCEL_BATCH = 1_024
CANCELS = 100_000
# Numbers of topics and keys of pending messages.
TOPICS, KEYS = 50, 100_000
PAGES, PAGE_COUNT = 100, 100
# Seconds of lateness measured beside an instant.
INSTANT_LATENESS_S = 15.0
# The assumed rate of sends before the instant; the actual rate is higher.
INSTANT_RATE = 10_000
DUE_RANGE_MS = 60_000


def cancels(duetime: DueTime, delay: str | None, level: int | None, count: int = CANCELS) -> float:
    """Cancels/s by receipt through the gateway, in batches."""
    duetime.make_topic("cancelled")

    async def run() -> float:
        async with grpc.aio.insecure_channel(duetime.cluster.address) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            refs: list[pending_pb2.PendingRef] = []

            async def send(taken: int) -> None:
                messages = [Message("cancelled", BODY, delay=delay, level=level) for _ in range(taken)]
                for result in _accepted_results(await stub.Send(_request(messages), timeout=CALL_TIMEOUT_S)):
                    place = {"shard": result.shard, "lane": result.lane, "entry": result.offset}
                    refs.append(pending_pb2.PendingRef(message_id=result.message_id, topic="cancelled", **place))

            await send_count(send, count, batch=BATCH, in_flight=BATCHES_IN_FLIGHT)
            random.shuffle(refs)

            async def cancel(taken: int) -> None:
                part = [refs.pop() for _ in range(taken)]
                answer = await stub.Cancel(pending_pb2.CancelRequest(messages=part), timeout=CALL_TIMEOUT_S)
                if any(result.status != pending_pb2.CANCEL_STATUS_CANCELLED for result in answer.results):
                    raise WrongError("a pending message was not cancelled")

            started = time.perf_counter()
            await send_count(cancel, count, batch=CANCEL_BATCH, in_flight=4)
            return count / (time.perf_counter() - started)

    return asyncio.run(run())


def all_cancels(duetime: DueTime) -> dict[str, float]:
    """Cancels/s of both kinds of lanes."""
    return {
        "any time": cancels(duetime, f"{random.randrange(*SCATTERED_MS)}ms", None),
        "levels": cancels(duetime, None, FAR_LEVEL),
    }


def same_instant(duetime: DueTime, count: int, lateness_seconds: float) -> dict[str, Any]:
    """Lateness on a level's lane by itself, and beside `count` messages for any time that are due at one instant; also
    the delivery rate of those, and a check of their order."""
    result: dict[str, Any] = {"count": count, "usual": lateness(duetime, "late-usual", RATES[0], lateness_seconds)}
    topic = "instant"
    duetime.make_topic(topic)
    # Whole seconds, with time to send them all.
    instant = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=count // INSTANT_RATE + 5)

    entries = asyncio.run(fill_instant(duetime.cluster.address, topic, instant, count))
    if datetime.now(UTC) >= instant:
        raise WrongError("the instant came before all were sent")
    took_s = [0.0]

    def watch() -> None:
        wait_until(lambda: not lane_of(duetime, TIMER_LANE).due_count, RESTART_DEADLINE_S, "the lane is drained")
        took_s[0] = datetime.now(UTC).timestamp() - instant.timestamp()

    # The instant is within the measurement of lateness, whose first messages are due by then.
    ahead_s = instant.timestamp() - time.time()
    time.sleep(max(ahead_s - 2.0, 0.0))
    timer = threading.Timer(max(instant.timestamp() - time.time(), 0.0), watch)
    timer.start()
    result["beside"] = lateness(duetime, "late-instant", RATES[0], lateness_seconds)
    timer.join()
    asyncio.run(_check_order(duetime.cluster.address, topic, entries))
    return result | {"restored_per_s": count / took_s[0]}


async def fill_instant(address: str, topic: str, instant: datetime, count: int) -> dict[str, int]:
    """Sends the messages; returns the entry of each id."""
    entries: dict[str, int] = {}
    async with grpc.aio.insecure_channel(address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)

        async def send(taken: int) -> None:
            messages = [Message(topic, BODY, deliver_at=instant) for _ in range(taken)]
            for result in _accepted_results(await stub.Send(_request(messages), timeout=CALL_TIMEOUT_S)):
                entries[result.message_id] = result.offset

        await send_count(send, count, batch=512, in_flight=BATCHES_IN_FLIGHT)
    return entries


async def _check_order(address: str, topic: str, entries: dict[str, int]) -> None:
    """Raises WrongError unless all came once, in the order of their entries."""
    left, before = len(entries), -1
    async with AsyncPuller(address, topic, start="earliest") as puller:
        while left:
            messages = await puller.poll(max=4_096, wait="5s")
            if not messages:
                raise WrongError(f"{left} of {len(entries)} messages due at one instant are missing")
            for message in messages:
                entry = entries[message.id]
                if entry <= before:
                    raise WrongError(f"entry {entry} came after {before}")
                before = entry
            left -= len(messages)


def pending(duetime: DueTime, count: int, plan: Any, say: Any) -> dict[str, Any]:
    """Measures a store with `count` messages for any time pending, due at random within an hour."""
    cluster, lane = duetime.cluster, AnyTime(duetime)
    result: dict[str, Any] = {"count": count, "store_before": memory(cluster)["store"]}
    result["accepted_before"] = _accepted(duetime, lane, plan.seconds)
    result["sustained_before"], result["cpu_before_us"] = sustained(lane, "sustained-alone", plan.sustained_seconds)
    say(f"{count:,} messages for any time")
    result["fill_rate"] = asyncio.run(_fill(duetime, count))
    result["store_filled"] = memory(cluster)["store"]
    result["accepted_filled"] = _accepted(duetime, lane, plan.seconds)
    say("lateness and rate beside them")
    result["lateness"] = lateness(lane, "late-beside-any", RATES[0], plan.lateness_seconds)
    result["sustained"], result["cpu_us"] = sustained(lane, "sustained-beside-any", plan.sustained_seconds)
    say("pages, cancels, restarts")
    result["pages"] = asyncio.run(_pages(cluster.address))
    result["cancels"] = all_cancels(duetime)
    result["store_used"] = memory(cluster)["store"]
    return result | restarts(cluster, TIMER_LANE, lane_of(duetime, TIMER_LANE).pending_count)


def _accepted(levels: DueTime, lane: AnyTime, seconds: float) -> dict[str, float]:
    """Messages/s for levels, and for any time at random."""

    async def rate(connecting: Any) -> float:
        sender = await connecting
        found, _ = await closed_loop(
            lambda count: sender.send(count, FAR_DELAY_S), batch=BATCH, in_flight=BATCHES_IN_FLIGHT, seconds=seconds
        )
        await sender.close()
        return found

    return {
        "levels": asyncio.run(rate(levels.scattered_sender("accepted"))),
        "any time": asyncio.run(rate(lane.scattered_sender("accepted"))),
    }


async def _fill(duetime: DueTime, count: int) -> float:
    """Messages/s."""
    for number in range(TOPICS):
        duetime.make_topic(f"far-{number}")
    async with grpc.aio.insecure_channel(duetime.cluster.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)

        async def send(taken: int) -> None:
            topic = f"far-{random.randrange(TOPICS)}"
            messages = [
                Message(topic, BODY, f"{random.randrange(*SCATTERED_MS)}ms", key=f"key-{random.randrange(KEYS)}")
                for _ in range(taken)
            ]
            _accepted_results(await stub.Send(_request(messages), timeout=CALL_TIMEOUT_S))

        started = time.perf_counter()
        await send_count(send, count, batch=512, in_flight=6)
        return count / (time.perf_counter() - started)


def _request(messages: list[Message]) -> gateway_pb2.SendRequest:
    born_at_ms = now_ms()
    return gateway_pb2.SendRequest(messages=[wire_fields(message, new_id(), born_at_ms) for message in messages])


def _accepted_results(answer: gateway_pb2.SendResponse) -> list[message_pb2.SendResult]:
    for result in answer.results:
        if result.HasField("fault"):
            raise RefusedError(result.fault.message)
    return list(answer.results)


async def _pages(address: str) -> dict[str, dict[str, float]]:
    """Milliseconds per page, by filter: consecutive pages, and first pages of random filters."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)

        async def page(token: bytes = b"", **fields: Any) -> tuple[float, pending_pb2.ListPendingResponse]:
            request = pending_pb2.ListPendingRequest(
                filter=pending_pb2.PendingFilter(**fields), max_count=PAGE_COUNT, page_token=token
            )
            began = time.perf_counter()
            answer = await stub.ListPending(request, timeout=CALL_TIMEOUT_S)
            return (time.perf_counter() - began) * 1e3, answer

        def start() -> dict[str, int]:
            return {"due_from_ms": now_ms() + random.randrange(*SCATTERED_MS)}

        def due_range() -> dict[str, int]:
            from_ms = now_ms() + random.randrange(*SCATTERED_MS)
            return {"due_from_ms": from_ms, "due_before_ms": from_ms + DUE_RANGE_MS}

        filters: dict[str, Any] = {
            "all": dict,
            "of a topic": lambda: {"topic": f"far-{random.randrange(TOPICS)}", **start()},
            "with a key": lambda: {"key": f"key-{random.randrange(KEYS)}", **start()},
            "due within a minute": due_range,
        }
        found = {}
        for name, made in filters.items():
            took_ms: list[float] = []
            returned = 0
            while len(took_ms) < PAGES:
                fields, token = made(), b""
                # A few pages of each filter.
                for _ in range(5):
                    one_ms, answer = await page(token, **fields)
                    took_ms.append(one_ms)
                    returned += len(answer.messages)
                    token = answer.next_page_token
                    if not token:
                        break
            low, high = map(float, np.percentile(took_ms, (50, 99)))
            found[name] = {"p50": low, "p99": high, "count": returned / len(took_ms)}
        return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.any_time", description=__doc__)
    parser.add_argument("--pending", type=int, default=10_000_000, metavar="N", help="messages pending at random")
    parser.add_argument("--instant", type=int, default=500_000, metavar="N", help="messages due at one instant")
    parser.add_argument("--directory", default="/var/tmp", help="directory of the data; on a disk")
    arguments = parser.parse_args()
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="duetime-bench-", dir=arguments.directory) as root:
        duetime = DueTime("sync", PLAN.queues)
        try:
            duetime.start(Path(root) / "any-time")
            duetime.make_topic("accepted")
            found: dict[str, Any] = {}
            if arguments.instant:
                progress.print(f"{arguments.instant:,} due at one instant")
                found["instant"] = same_instant(duetime, arguments.instant, INSTANT_LATENESS_S)
            if arguments.pending:
                found["pending"] = pending(duetime, arguments.pending, PLAN, progress.print)
        except WrongError as error:
            print(f"WRONG: {error}", file=sys.stderr)
            return 1
        finally:
            duetime.stop()
    report.keep_any_time(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
