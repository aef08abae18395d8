"""The retry service as a node."""

import asyncio

import grpc
from duetime.v1 import retry_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.metadata import Database
from duetime_core.serving import Server, make_channel
from prometheus_client import CollectorRegistry, Counter

from duetime_retry.dead_letters import DeadLetters
from duetime_retry.service import RetryService
from duetime_retry.settings import RetrySettings
from duetime_retry.stores import Stores
from duetime_retry.topics import Topics


class RetryNode:
    """See duetime_core.node.Node. It keeps nothing: a crash loses calls in flight, which callers see."""

    settings_class = RetrySettings

    def __init__(self, settings: RetrySettings, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._settings = settings
        self._clock = clock
        self._database = Database(settings.database_url)
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._server: Server | None = None
        self._dead_letters: DeadLetters | None = None
        self._letters_ended = Counter(
            "duetime_retry_dead_letters_total",
            "Dead letters that a redrive or discard came to, by outcome",
            ["outcome"],
            registry=self.registry,
        )
        self._sent_back = Counter(
            "duetime_retry_sent_back_total", "Messages sent back, by where they went", ["to"], registry=self.registry
        )

    @property
    def port(self) -> int:
        return self._server.port if self._server else 0

    async def start(self) -> None:
        settings = self._settings
        await self._database.start()
        self._channels = {shard: make_channel(address) for shard, address in settings.store_addresses.items()}
        stores = Stores(self._channels, settings.store_timeout_ms)
        topics = Topics(self._database, self._clock, stores.put_topic)
        self._server = Server(["duetime.v1.Retry"], settings.calls_in_flight_max)
        letters = DeadLetters(stores.call, topics.places, topics.ensure, self._clock, self._letters_ended)
        self._dead_letters = letters
        service = RetryService(topics, stores, settings.levels, self._sent_back, letters)
        retry_pb2_grpc.add_RetryServicer_to_server(service, self._server.grpc)  # type: ignore[no-untyped-call]
        await self._server.start(settings.host, settings.port)

    async def failed(self) -> None:
        """There is no loop that could die."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Streams ended, then calls drained, before what they use is closed."""
        if self._dead_letters:
            self._dead_letters.end_streams()
        if self._server:
            await self._server.stop(self._settings.drain_ms)
        for channel in self._channels.values():
            await channel.close()
        await self._database.stop()
