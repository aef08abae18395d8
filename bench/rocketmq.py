"""RocketMQ's calls by raw stubs, beside a bare echo of the same calls: `python -m bench.rocketmq`; part of `make
bench`."""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from rich.console import Console

from bench.consume import stock
from bench.idle import idle
from bench.load import CALL_TIMEOUT_S, CHANNEL_OPTIONS, WARM_UP_S, RefusedError, closed_loop, open_loop
from bench.peers import BODY
from bench.peers.duetime import DueTime
from bench.report import draw_tables
from bench.rocketmq_echo import SERVICE, rocketmq_echo
from bench.rocketmq_tables import rocketmq_tables

TURNS = 2
IN_FLIGHT = 64
# Concurrent receives, and messages per receive; messages are acknowledged one by one.
RECEIVERS, RECEIVED = 8, 32
LATE_RATE, LATE_DELAY_MS, LATE_POLLS = 500, 1_000, 4
INVISIBLE_S = 600
METADATA = (("x-mq-client-id", "bench"),)
TOPIC, LATE_TOPIC = pb.Resource(name="rocketmq"), pb.Resource(name="rocketmq-late")
GROUP = pb.Resource(name="rocketmq-bench")
_numbers = itertools.count()


class Stubs:
    """Raw stubs of one server."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._send, self._ack = self._unary("SendMessage"), self._unary("AckMessage")
        self._receive: Any = self._channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )

    def _unary(self, name: str) -> Any:
        return self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=getattr(pb, f"{name}Response").FromString,
        )

    async def close(self) -> None:
        await self._channel.close()

    async def send(self, count: int, topic: pb.Resource = TOPIC, delay_ms: int = 0) -> int:
        """Makes one call per message, one after the other. Raises: RefusedError."""
        for _ in range(count):
            message = pb.Message(topic=topic, body=BODY)
            system = message.system_properties
            system.message_id = f"01A2B3C4D5E6F7{next(_numbers):020X}"
            now_ms = time.time_ns() // 1_000_000
            _put_ms(system.born_timestamp, now_ms)
            system.tag = "paid"
            if delay_ms:
                _put_ms(system.delivery_timestamp, now_ms + delay_ms)
            answer = await self._send(
                pb.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=CALL_TIMEOUT_S
            )
            _check(answer.status)
            _ = answer.entries[0].message_id, answer.entries[0].offset
        return count

    async def receive(self, topic: pb.Resource = TOPIC, wait_s: int = 0) -> list[tuple[pb.Message, int]]:
        """Messages, and the arrival time of each frame, in Unix ms."""
        request = pb.ReceiveMessageRequest(group=GROUP, batch_size=RECEIVED)
        request.message_queue.topic.CopyFrom(topic)
        request.invisible_duration.seconds = INVISIBLE_S
        request.long_polling_timeout.seconds = wait_s
        found = []
        async for frame in self._receive(request, metadata=METADATA, timeout=CALL_TIMEOUT_S):
            if frame.WhichOneof("content") == "message":
                found.append((frame.message, time.time_ns() // 1_000_000))
            elif frame.WhichOneof("content") == "status" and frame.status.code != pb.MESSAGE_NOT_FOUND:
                _check(frame.status)
        return found

    async def ack(self, *messages: pb.Message) -> None:
        """Acknowledges in one call. Raises: RefusedError."""
        request = pb.AckMessageRequest(group=GROUP, topic=messages[0].topic)
        for message in messages:
            system = message.system_properties
            request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        _check((await self._ack(request, metadata=METADATA, timeout=CALL_TIMEOUT_S)).status)


def _put_ms(field: Any, at_ms: int) -> None:
    field.seconds, rest_ms = divmod(at_ms, 1_000)
    field.nanos = rest_ms * 1_000_000


def _check(status: pb.Status) -> None:
    if status.code != pb.OK:
        raise RefusedError(f"{pb.Code.Name(status.code)}: {status.message}")


async def sent(address: str, seconds: float) -> float:
    """Messages/s, one per call, with `IN_FLIGHT` calls in flight."""
    stubs = Stubs(address)
    try:
        rate, _ = await closed_loop(stubs.send, batch=1, in_flight=IN_FLIGHT, seconds=seconds)
    finally:
        await stubs.close()
    return rate


async def received(address: str, seconds: float) -> float:
    """Messages/s received, 32 per call, and acknowledged, one per call. Raises: RefusedError: there are none."""
    stubs = Stubs(address)

    async def work(count: int) -> None:
        messages = await stubs.receive()
        if len(messages) < count:
            raise RefusedError(f"{len(messages)} messages came instead of {count}")
        async with asyncio.TaskGroup() as group:
            for message, _ in messages:
                group.create_task(stubs.ack(message))

    try:
        rate, _ = await closed_loop(work, batch=RECEIVED, in_flight=RECEIVERS, seconds=seconds)
    finally:
        await stubs.close()
    return rate


async def lateness(address: str, seconds: float) -> dict[str, float]:
    """p50 and p99 in ms of received minus due, at `LATE_RATE` per second. Raises: RefusedError: a message was early,
    lost or came twice."""
    stubs = Stubs(address)
    late_ms: dict[str, int] = {}
    wanted: list[int] = []

    async def read() -> None:
        while not wanted or len(late_ms) < wanted[0]:
            messages = await stubs.receive(LATE_TOPIC, wait_s=1)
            for message, came_ms in messages:
                system = message.system_properties
                due_ms = system.delivery_timestamp.seconds * 1_000 + system.delivery_timestamp.nanos // 1_000_000
                if came_ms < due_ms or system.message_id in late_ms:
                    raise RefusedError(f"{system.message_id} came {due_ms - came_ms} ms early, or twice")
                late_ms[system.message_id] = came_ms - due_ms
            if messages:
                await stubs.ack(*(message for message, _ in messages))

    try:
        async with asyncio.timeout(seconds + 60), asyncio.TaskGroup() as group:
            for _ in range(LATE_POLLS):
                group.create_task(read())
            send = lambda count: stubs.send(count, LATE_TOPIC, LATE_DELAY_MS)  # noqa: E731
            wanted.append(await open_loop(send, rate=LATE_RATE, seconds=seconds))
    finally:
        await stubs.close()
    found = np.array(list(late_ms.values()))
    return {"p50": float(np.percentile(found, 50)), "p99": float(np.percentile(found, 99))}


def compare(cluster: DueTime, turns: int, seconds: float, late_seconds: float) -> dict[str, Any]:
    """Rates of the cluster and the echo in turns, then lateness."""
    address = cluster.cluster.address
    for topic in (TOPIC, LATE_TOPIC):
        cluster.make_topic(topic.name)
    found: dict[str, Any] = {"sent": [], "received": []}
    with rocketmq_echo() as (echo, _):
        for _ in range(turns):
            found["sent"].append([asyncio.run(sent(one, seconds)) for one in (address, echo)])
        for _ in range(turns):
            theirs = asyncio.run(received(echo, seconds))
            asyncio.run(_stock(address, int(theirs * (seconds + 2 * WARM_UP_S)) + 2 * RECEIVERS * RECEIVED))
            found["received"].append([asyncio.run(received(address, seconds)), theirs])
    return found | {"late": asyncio.run(lateness(address, late_seconds))}


async def _stock(address: str, count: int) -> None:
    """Puts messages into the topic, many per call."""
    await stock(address, TOPIC.name, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of a turn")
    parser.add_argument("--lateness", type=float, default=20.0, help="seconds")
    parser.add_argument("--idle", type=int, default=0, metavar="N", help="measure only N idle push consumers")
    parser.add_argument("--directory", default="/var/tmp", help="directory of the data")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duetime-rocketmq-", dir=arguments.directory) as root:
        cluster = DueTime("sync", 8)
        cluster.start(Path(root))
        try:
            if arguments.idle:
                cluster.make_topic("idle")
                found: dict[str, Any] = {"idle": idle(cluster.cluster, arguments.idle)}
            else:
                found = compare(cluster, arguments.turns, arguments.seconds, arguments.lateness)
        finally:
            cluster.stop()
    json.dump(found, sys.stderr)
    draw_tables(rocketmq_tables(found), Console(width=130))


if __name__ == "__main__":
    main()
