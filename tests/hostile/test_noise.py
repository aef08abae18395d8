"""A stranger's bad bytes, at every port: each process logs a line a second of a kind at most, and serves."""

import asyncio
import json
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import grpc
import pytest

from tests.hostile.bystander import Bystander
from tests.hostile.rig import Node, Rig, told

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
GARBAGE = (
    os.urandom(300),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(200),
    PREFACE + os.urandom(200),
    PREFACE + b"\xff\xff\xff\0\0\0\0\0\1",
    PREFACE + b"\0\0\x20\1\5\0\0\0\1" + os.urandom(32),
    # Headers with an invalid scheme, which gRPC's core logs.
    PREFACE + b"\0\0\x03\1\5\0\0\0\1\x06\x01x",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /metrics?name[]=\xff HTTP/1.1\r\n\r\n",
)
METHODS = {
    "gateway": ("Send", "Pull", "Receive", "CreateTopic", "ListFiles", "Ack", "NoSuchMethod"),
    "store": ("Put", "Pull", "Receive", "PutTopic"),
    "scheduler": ("PauseLane",),
    "retry": ("Nack", "SendBack"),
}
ROUNDS = 3
# Sent to each method in each round.
CALLS = 10


def throw(port: int, data: bytes) -> None:
    """Sends bytes and breaks the connection off."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        stranger.sendall(data)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def misuse(node: Node) -> None:
    """Calls with bytes that are no message."""
    kind = node.name.partition("-")[0]
    async with grpc.aio.insecure_channel(node.address) as channel:
        for method in METHODS[kind]:
            call = channel.unary_unary(f"/duetime.v1.{kind.capitalize()}/{method}")
            asked = [call(b"\xff\xff", timeout=10) for _ in range(CALLS)]
            for answer in asked:
                with suppress(grpc.aio.AioRpcError):
                    await answer


def lines(node: Node) -> list[str]:
    return node.log.read_text().splitlines()


@pytest.mark.proof
def test_bad_bytes_cost_a_line_a_second(start: Callable[..., Rig]) -> None:
    rig = start()
    with Bystander(rig.address) as beside:
        before = {node.name: len(lines(node)) for node in rig.nodes}
        started = time.monotonic()
        for _ in range(ROUNDS):
            for node in rig.nodes:
                for data in GARBAGE:
                    throw(node.port, data)
                    throw(node.metrics_port, data)
                asyncio.run(misuse(node))
        phase = beside.phase()
        took_s = time.monotonic() - started
    assert phase.errors == {}
    for node in rig.nodes:
        # One line each, none of them a trace on many lines.
        events = Counter(str(json.loads(line)["event"]) for line in lines(node)[before[node.name] :])
        told(process=node.name, seconds=took_s, lines=dict(events))
        assert all(count <= took_s + 1 for count in events.values()), events
        assert len(events) < 10
