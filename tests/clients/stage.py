"""Clusters prepared for the programs of official clients: topics, groups, and users."""

import asyncio
import base64
import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc
from duetime_core.clock import SystemClock
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster

from tests.certified import Certified
from tests.gateway.people import Metadata, People, shown
from tests.rocketmq.conftest import another_gateway
from tests.tidy.sources import PROJECT

TOPICS = (
    *("orders", "shop%orders", "normal", "shop%normal", "second", "delayed", "recalls", "transactions"),
    *("leases", "failing", "ordered", "groups", "filters", "large"),
)
TYPED = {"rooms": gateway_pb2.TOPIC_TYPE_LITE, "alerts": gateway_pb2.TOPIC_TYPE_PRIORITY}
# Grants of `shop`: everything that clients do, and nothing peculiar to DueTime.
GRANTS = ("send topic *", "send group *", "receive topic *", "receive group *")
DEADLINE_S = 60.0
FAST_CHECKS = {"transaction_timeout_ms": 1_000, "transaction_check_interval_ms": 1_000}


DOCUMENT = PROJECT / "docs" / "rocketmq.md"


def documented(language: str, address: str) -> str:
    """The document's program of a client, for a gateway at this address."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)
    assert "127.0.0.1:9800" in code
    return str(code).replace("127.0.0.1:9800", address)


class Stage:
    """A running cluster. `environment`: a client program's variables for connecting."""

    def __init__(
        self, addresses: Sequence[str], environment: Mapping[str, str], channel: grpc.aio.Channel, metadata: Metadata
    ) -> None:
        self.addresses = ",".join(addresses)
        self.environment = environment
        self._stub = gateway_pb2_grpc.GatewayStub(channel)
        self._metadata = metadata

    async def prepare(self) -> None:
        """Creates the topics and groups that the programs need."""
        typed = [gateway_pb2.CreateTopicRequest(name=topic, message_type=kind) for topic, kind in TYPED.items()]
        for create in (*typed, *(gateway_pb2.CreateTopicRequest(name=topic) for topic in TOPICS)):
            await self._stub.CreateTopic(create, metadata=self._metadata, timeout=DEADLINE_S, wait_for_ready=True)
        failing = consumer_pb2.Group(name="failing")
        failing.retry.max_attempts = 2
        failing.retry.intervals.delays_ms.append(1_000)
        for group in (failing, consumer_pb2.Group(name="ordered", ordered=True)):
            make = consumer_pb2.CreateGroupRequest(group=group)
            await self._stub.CreateGroup(make, metadata=self._metadata, timeout=DEADLINE_S)

    async def dead_letters(self, group: str) -> list[consumer_pb2.DeadLetter]:
        asked = consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group=group))
        answer = await self._stub.ListDeadLetters(asked, metadata=self._metadata, timeout=DEADLINE_S)
        return list(answer.letters)


@asynccontextmanager
async def staged(root: Path, gateways: int = 1) -> AsyncIterator[Stage]:
    """One gateway and shard, or some gateways over two shards; in plain text, and for anybody."""
    async with AsyncExitStack() as stack:
        shards = 1 if gateways == 1 else 2
        made = Cluster(root, clock=SystemClock(), shards=shards, store_settings=FAST_CHECKS)
        cluster = await stack.enter_async_context(made)
        addresses = [cluster.address]
        for _ in range(gateways - 1):
            node = await stack.enter_async_context(another_gateway(cluster))
            addresses.append(f"127.0.0.1:{node.port}")
        channel = await stack.enter_async_context(make_channel(cluster.address))
        stage = Stage(addresses, {}, channel, ())
        await stage.prepare()
        yield stage


@asynccontextmanager
async def secured(root: Path) -> AsyncIterator[Stage]:
    """Two shards, by TLS alone, and for users with a key. `CLIENTS_CA` of its environment is the CA to trust."""
    certified = Certified(root / "certs").issue_all()
    directory, key = root / "data", base64.b64encode(secrets.token_bytes(32)).decode()
    directory.mkdir()
    async with AsyncExitStack() as stack:
        people = await stack.enter_async_context(People(f"sqlite:///{directory / 'metadata.db'}"))
        admin = await people.add("root", "admin")
        await people.add("shop", *GRANTS)
        access_key, secret = await people.add_key("shop", key)
        made = Cluster(
            directory,
            clock=SystemClock(),
            shards=2,
            store_settings=FAST_CHECKS,
            gateway_settings={"auth": "required", "secrets_key": key},
            certs=certified.root,
        )
        cluster = await stack.enter_async_context(made)
        ca = certified.files("gateway").ca
        trust = grpc.ssl_channel_credentials(ca.read_bytes())
        channel = await stack.enter_async_context(grpc.aio.secure_channel(cluster.address, trust))
        environment = {
            "CLIENTS_TLS": "1",
            "CLIENTS_CA": str(ca),
            "CLIENTS_ACCESS_KEY": access_key,
            "CLIENTS_SECRET": secret,
        }
        stage = Stage([cluster.address], environment, channel, shown(admin))
        await stage.prepare()
        yield stage


async def run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """A program's exit code and all that it says."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode()
