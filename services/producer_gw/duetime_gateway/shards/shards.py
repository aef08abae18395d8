"""All stores of the cluster."""

import asyncio
from collections.abc import Mapping

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, StartupError

from duetime_gateway.errors import shard_unavailable
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.shards.shard import Misfit, Shard, ShardListener, ShardOptions

log = structlog.get_logger()

# A start does not wait longer for a store that may be down.
DESCRIBE_AT_START_MS_MAX = 1_000


class Shards:
    """By number, which need not be consecutive."""

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
        """Raises: Unavailable: a route names a shard that this gateway was given no address of."""
        shard = self._shards.get(number)
        if shard is None:
            raise shard_unavailable(f"shard {number} is none of this gateway's stores {self.numbers}")
        return shard

    def all(self) -> list[Shard]:
        """By number."""
        return list(self._shards.values())

    def start(self) -> None:
        """Puts and questions are tasks of the gateway's group until `stop`."""
        for shard in self.all():
            shard.start()

    def end_polls(self) -> None:
        """Long polls, subscriptions and exports end now: a stop does not wait for them."""
        for shard in self.all():
            shard.store.end_polls()

    def stop(self) -> None:
        for shard in self.all():
            shard.stop()

    async def close(self) -> None:
        for shard in self.all():
            await shard.close()

    async def check(self) -> None:
        """Asks all stores what they are; those that do not answer are asked again when they are needed.

        Raises:
            StartupError: one answers and does not belong here.
        """
        answers = await asyncio.gather(
            *(shard.describe(DESCRIBE_AT_START_MS_MAX) for shard in self.all()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, Misfit):
                raise StartupError(answer.text) from answer
            if isinstance(answer, DueTimeError):
                log.warning("shard not reached", why=answer.text)
            elif isinstance(answer, BaseException):
                raise answer
