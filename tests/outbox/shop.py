"""A user's database with an outbox, and relays whose steps a test can await."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from duetime import Message, Puller
from duetime.outbox import Outbox, OutboxStatus, Relay, RelayStats, Rows
from duetime_core.testing import LocalCluster
from sqlalchemy import Column, Engine, Integer, MetaData, Row, Table, func, insert, select
from sqlalchemy.exc import DBAPIError

# Limit on a busy machine.
SOON_S = 60.0

_topics = itertools.count()


def new_topic() -> str:
    """One that no other test uses."""
    return f"orders{next(_topics)}"


@dataclass(frozen=True)
class Shop:
    engine: Engine
    outbox: Outbox
    orders: Table

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Makes its tables."""
        metadata = MetaData()
        shop = cls(engine, Outbox(metadata), Table("orders", metadata, Column("id", Integer, primary_key=True)))
        metadata.create_all(engine)
        return shop

    def order(self, *messages: Message) -> list[str]:
        """One order and its messages in one transaction; the messages' ids."""
        with self.engine.begin() as connection:
            connection.execute(insert(self.orders))
            return self.outbox.send_many(connection, messages)

    def rows(self) -> list[Row[Any]]:
        with self.engine.begin() as connection:
            return list(connection.execute(select(self.outbox.table).order_by(self.outbox.table.c.id)))

    def orders_count(self) -> int:
        with self.engine.begin() as connection:
            return connection.execute(select(func.count()).select_from(self.orders)).scalar_one()

    def status(self) -> OutboxStatus:
        with self.engine.begin() as connection:
            return Rows(self.outbox).status(connection)

    def relay(self, server: str, **options: Any) -> "WatchedRelay":
        return WatchedRelay(self.engine, server, outbox=self.outbox, **options)

    def drain(self, server: str, **options: Any) -> RelayStats:
        """Moves all that can be moved."""
        relay = self.relay(server, **options)
        relay.run(drain=True)
        return relay.stats


class WatchedRelay(Relay):
    """Says when it rests, has settled a batch, or met a fault of the database."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.resting, self.settled, self.faulty = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def _rest(self, listener: Any) -> None:
        self.resting.set()
        await super()._rest(listener)

    async def _settle(self, claim: str, verdicts: Any) -> None:
        await super()._settle(claim, verdicts)
        self.settled.set()

    async def _in_transaction(self, work: Any) -> Any:
        try:
            return await super()._in_transaction(work)
        except DBAPIError:
            self.faulty.set()
            raise


@asynccontextmanager
async def running(*relays: WatchedRelay) -> AsyncIterator[None]:
    """Until the end of the block; then they are stopped."""
    async with asyncio.TaskGroup() as tasks:
        for relay in relays:
            tasks.create_task(relay.run_async())
        try:
            yield
        finally:
            for relay in relays:
                relay.stop()


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(SOON_S):
        await event.wait()
    event.clear()


async def _count(cluster: LocalCluster, topic: str) -> int:
    queues = [queue for node in cluster.cluster.stores for queue in node.store.queues.all()]
    return sum(queue.max_offset for queue in queues if queue.topic == topic)


def stored(cluster: LocalCluster, topic: str, *, count_min: int = 0) -> list[bytes]:
    """The bodies in a topic, in the order of its queues; waits for `count`."""
    with Puller(cluster.address, topic, start="earliest") as puller:
        found = []
        while len(found) < max(cluster.run(_count(cluster, topic)), count_min):
            batch = puller.poll(wait=timedelta(seconds=SOON_S))
            assert batch, f"{len(found)} messages came"
            found += batch
    return [message.body for message in sorted(found, key=lambda one: (one.queue, one.offset))]


def doubled(bodies: list[bytes]) -> list[bytes]:
    return [body for body, count in Counter(bodies).items() if count > 1]
