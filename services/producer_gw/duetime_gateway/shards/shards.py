"""All stores of the cluster."""

import asyncio
from collections.abc import Mapping

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, StartupError

from duetime_gateway.errors import shard_unavailable
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.shards.shard import Shard, ShardListener, ShardMisfit, ShardOptions

log = structlog.get_logger()

# Longest wait at startup for a store that may be down.
DESCRIBE_AT_START_MS_MAX = 1_000


class Shards:
    """The shards by number; numbers need not be consecutive."""

    def __init__(
        self,
        addresses: Mapping[int, str],
        options: ShardOptions,
        clock: Clock,
        metrics: GatewayMetrics,
        tasks: asyncio.TaskGroup,
        listener: ShardListener,
    ) -> None:
        self.numbers = sorted(addresses)
        self._shards = {
            number: Shard(number, addresses[number], options, clock, metrics, tasks, listener)
            for number in self.numbers
        }

    def get(self, number: int) -> Shard:
        """Raises: Unavailable: a route names a shard without a configured address."""
        shard = self._shards.get(number)
        if shard is None:
            raise shard_unavailable(f"shard {number} is not one of this gateway's stores {self.numbers}")
        return shard

    def all(self) -> list[Shard]:
        """All shards, by number."""
        return list(self._shards.values())

    def start(self) -> None:
        """Runs puts and calls as tasks of the gateway's group until `stop`."""
        for shard in self.all():
            shard.start()

    def end_polls(self) -> None:
        """Ends long polls, subscriptions and exports: a shutdown does not wait for them."""
        for shard in self.all():
            shard.store.end_polls()

    def stop(self) -> None:
        for shard in self.all():
            shard.stop()

    async def close(self) -> None:
        for shard in self.all():
            await shard.close()

    async def check(self) -> None:
        """Describes all stores; those that do not answer are described when needed.

        Raises:
            StartupError: a store is not the configured one.
        """
        answers = await asyncio.gather(
            *(shard.describe(DESCRIBE_AT_START_MS_MAX) for shard in self.all()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, ShardMisfit):
                raise StartupError(answer.text) from answer
            if isinstance(answer, DueTimeError):
                log.warning("cannot reach a shard", why=answer.text)
            elif isinstance(answer, BaseException):
                raise answer
