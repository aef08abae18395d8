"""A cluster, a webhook worker and a receiver, on the system's clock."""

import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncAdmin, AsyncProducer
from duetime.client.connection import GatewayConnection
from duetime.v1 import webhooks_pb2 as pb
from duetime_core.clock import SystemClock
from duetime_core.testing.cluster import Cluster
from duetime_webhooks.node import WebhookNode
from duetime_webhooks.settings import WebhookSettings

from tests.webhooks.receiver import Receiver

KEY = base64.b64encode(os.urandom(32)).decode()
# The worker reads the database each second.
DEADLINE_MS = 60_000


class WebhookRig:
    """Webhook `paid` posts topic `orders` as group `hook` to the receiver."""

    def __init__(self, cluster: Cluster, receiver: Receiver, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self.receiver = receiver
        self._stack = stack
        self._connection = GatewayConnection(cluster.address)
        self.admin = AsyncAdmin(cluster.address)
        self.producer = AsyncProducer(cluster.address)

    async def call(self, method: str, request: Any) -> Any:
        return await self._connection.call(method, request, 60)

    async def close(self) -> None:
        await self._connection.close()
        await self.admin.close()
        await self.producer.close()

    async def worker(self, **settings: Any) -> WebhookNode:
        """Starts one more worker, which the test may stop."""
        own = {"database_url": self.cluster.database_url, "server": self.cluster.address, "secrets_key": KEY}
        own |= {"permitted_networks": "127.0.0.1", "ca_file": str(self.receiver.ca), "metrics_port": -1}
        node = WebhookNode(WebhookSettings(**{**own, "drain_ms": 200, **settings}), SystemClock())
        self._stack.push_async_callback(node.stop)
        await node.start()
        return node

    async def create(self, backoff: str = "1s", max_attempts: int = 3) -> str:
        """The webhook; returns its secret."""
        await self.admin.create_topic("orders")
        await self.admin.create_group("hook", backoff=backoff, max_attempts=max_attempts)
        named = {"name": "paid", "topic": "orders", "group": "hook"}
        webhook = pb.Webhook(**named, url=self.receiver.url(), timeout_ms=60_000)
        answer = await self.call("CreateWebhook", pb.CreateWebhookRequest(webhook=webhook))
        return str(answer.secret)

    async def shown(self) -> pb.Webhook:
        (found,) = (await self.call("ListWebhooks", pb.ListWebhooksRequest(name="paid"))).webhooks
        return pb.Webhook.FromString(found.SerializeToString())

    async def until(self, holds: Callable[[pb.Webhook], Any]) -> pb.Webhook:
        """The webhook, once its report is as expected."""
        return await until(self.shown, holds)


async def until(read: Callable[[], Awaitable[Any]], holds: Callable[[Any], Any]) -> Any:
    clock = SystemClock()
    end_ms = clock.monotonic_ms() + DEADLINE_MS
    while not holds(found := await read()):
        assert clock.monotonic_ms() < end_ms, found
        await clock.sleep(50)
    return found


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[WebhookRig]:
    async with AsyncExitStack() as stack:
        cluster = Cluster(tmp_path / "cluster", clock=SystemClock(), within=True, gateway_settings={"secrets_key": KEY})
        await stack.enter_async_context(cluster)
        receiver = await stack.enter_async_context(Receiver(tmp_path / "certs"))
        rig = WebhookRig(cluster, receiver, stack)
        stack.push_async_callback(rig.close)
        yield rig
