"""Three gateways as processes, one of them killed: clients continue at the others."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from duetime_core.node.supervised import SUPERVISED_VARIABLE
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_gateway.rocketmq.renewing import LEASE_MS
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.rocketmq.raw import ORDERS, Raw, message, new_id, now_ms
from tests.rocketmq.test_transactions import begin, end, next_check, producing


@dataclass
class Process:
    """A gateway of its own, and a client of it."""

    process: asyncio.subprocess.Process
    raw: Raw

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def gateway_process(cluster: Cluster) -> AsyncIterator[Process]:
    settings = {
        "STORES": cluster.store_addresses,
        "DATABASE_URL": cluster.database_url,
        "RETRY_ADDRESS": f"127.0.0.1:{cluster.retry.port}",
        "PORT": "0",
        "METRICS_PORT": "-1",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    # It says then, by a line, that it serves.
    environment |= {SUPERVISED_VARIABLE: "1"}
    environment |= {f"DUETIME_GATEWAY_{name}": value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duetime_gateway"), env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = 0
        async with asyncio.timeout(60):
            while not port:
                line = await process.stdout.readline()
                assert line, "the gateway has ended"
                port = port_in(line)
        channel = make_channel(f"127.0.0.1:{port}")
        yield Process(process, Raw(channel, port))
        await channel.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def port_in(line: bytes) -> int:
    """Of the line that a node writes once it serves; 0: it is another one."""
    try:
        found = json.loads(line)
    except ValueError:
        return 0
    return int(found.get("port", 0)) if isinstance(found, dict) else 0


async def until_received(raw: Raw, count: int, **fields: Any) -> dict[str, Any]:
    """Messages by id, once `count` have come."""
    found: dict[str, Any] = {}
    while len(found) < count:
        for one in await raw.receive(wait_ms=20_000, timeout=60, **fields):
            assert one.system_properties.message_id not in found
            found[one.system_properties.message_id] = one
    return found


@pytest.mark.proof
@pytest.mark.timeout(300)
async def test_clients_of_a_killed_gateway_continue_at_the_others(cluster: Cluster) -> None:
    """Acknowledged messages stay so, leased ones are redelivered within a minute, and its handles, transactions and
    recalls are valid at the others.
    """
    async with (
        gateway_process(cluster) as killed,
        gateway_process(cluster) as second,
        gateway_process(cluster) as third,
    ):
        first = killed.raw
        await first.make_topic()
        await first.send_ok(*(message(b"%d" % number, number) for number in range(1, 13)))
        got = await until_received(first, 12, auto_renew=True)
        assert (await first.ack(*(got[new_id(number)] for number in range(1, 5)))).status.code == pb.OK
        half = await begin(first, 20)
        asked_about = await begin(first, 21)
        (later,) = await first.send_ok(message(number=22, delivery_ms=now_ms() + 3_600_000))
        (soon,) = await first.send_ok(message(number=23, delivery_ms=now_ms() + 2_000))
        await killed.kill()

        # A push consumer finishes its messages by handles that another gateway gave.
        for number, raw in ((5, second.raw), (6, third.raw)):
            assert (await raw.ack(got[new_id(number)])).status.code == pb.OK
        nacked = await second.raw.change(got[new_id(7)].system_properties.receipt_handle, 0)
        assert nacked.status.code == pb.OK
        assert (await end(third.raw, half, pb.COMMIT, 20)).status.code == pb.OK
        assert (await end(second.raw, half, pb.COMMIT, 20)).status.code == pb.OK
        recalled = await third.raw.call("RecallMessage", topic=ORDERS, recall_handle=later.recall_handle)
        assert recalled.status.code == pb.OK
        # No producer of the killed gateway is left: those of others are asked.
        stream = await producing(second.raw, "orders")
        assert (await next_check(stream)).transaction_id == asked_about
        assert (await end(second.raw, asked_about, pb.ROLLBACK, 21)).status.code == pb.OK
        # The send that it may have answered is repeated elsewhere.
        assert await third.raw.send_ok(message(number=23, delivery_ms=now_ms() + 2_000)) == [soon]

        # The nacked one, the committed one, the delayed one, and the five that were leased through it.
        wanted = {new_id(number) for number in (7, 8, 9, 10, 11, 12, 20, 23)}
        again: dict[str, Any] = {}
        async with asyncio.timeout(LEASE_MS / 1_000 + 60):
            while again.keys() < wanted:
                again |= await until_received(second.raw, 1, auto_renew=True)
        assert again.keys() == wanted
        attempts = {new_id(number): again[new_id(number)].system_properties.delivery_attempt for number in range(7, 13)}
        assert set(attempts.values()) == {2}
        assert (await third.raw.ack(*again.values())).status.code == pb.OK
        stale = await third.raw.ack(got[new_id(8)])
        assert stale.status.code == pb.INVALID_RECEIPT_HANDLE
        assert await second.raw.receive(wait_ms=2_000) == []
