"""The groups that this shard was told of: config/subscriptionGroup.json, RocketMQ's file.

It is for brokers, which find in it how often a group retries, and for gateways, which find in it the groups of a
broker's directory. What a broker left is kept as it is. The file is replaced with each change, durable when a call
returns; calls that come while it is being written share the next write.

Source: RocketMQ 4.9.3 and 5.3 SubscriptionGroupManager, SubscriptionGroupConfig.
"""

import asyncio
from concurrent.futures import Executor

import structlog
from duetime.v1 import consumer_pb2, message_pb2
from duetime_core import limits
from duetime_core.clock import Clock
from duetime_core.errors import DiskFull, Unavailable

from duetime_store import configs
from duetime_store.directory import StoreDirectory
from duetime_store.gate import NO_ROOM

log = structlog.get_logger()


class SubscriptionGroups:
    """The file's content. Belongs to the event loop's thread; `executor` writes."""

    def __init__(self, directory: StoreDirectory, executor: Executor, clock: Clock) -> None:
        self._directory = directory
        self._executor = executor
        self._clock = clock
        loaded = configs.load(directory.config, configs.GROUPS)
        if loaded.fault:
            log.error("groups' file is damaged", file=configs.GROUPS, why=loaded.fault)
        # Never changed in place: the writer has it too.
        self._content = loaded.value
        self._written = loaded.value
        self._writing = asyncio.Lock()

    def list(self) -> list[consumer_pb2.Group]:
        """By name; of their settings those that the file has."""
        return [
            consumer_pb2.Group(
                name=name,
                ordered=entry.get("consumeMessageOrderly") is True,
                retry=message_pb2.RetryPolicy(max_attempts=_max_attempts(entry.get("retryMaxTimes"))),
            )
            for name, entry in sorted(configs.groups(self._content).items())
        ]

    async def put(self, group: consumer_pb2.Group) -> None:
        """Durable on return. Raises: DiskFull, Unavailable: it was not written."""
        retries = (group.retry.max_attempts or limits.DELIVERIES_DEFAULT) - 1
        now_ms = self._clock.now_ms()
        self._content = configs.with_group(self._content, group.name, retries, group.ordered, now_ms)
        await self._write()

    async def remove(self, name: str) -> None:
        """As `put`."""
        self._content = configs.without_group(self._content, name, self._clock.now_ms())
        await self._write()

    async def _write(self) -> None:
        async with self._writing:
            content = self._content
            if not content or content == self._written:
                return
            disk, config = self._directory.disk, self._directory.config
            run = asyncio.get_running_loop().run_in_executor
            try:
                await run(self._executor, configs.write, disk, config, configs.GROUPS, content)
            except OSError as error:
                why = f"the group is not kept, {configs.GROUPS} was not written: {error.strerror or error}"
                full = error.errno in NO_ROOM
                raise (DiskFull(why) if full else Unavailable(why, reason="GROUP_NOT_KEPT")) from error
            self._written = content


def _max_attempts(retries: object) -> int:
    """Of `retryMaxTimes`; brokers take any number, and below 0 RocketMQ's default."""
    if not isinstance(retries, int) or retries < 0:
        return limits.DELIVERIES_DEFAULT
    return min(retries + 1, limits.ATTEMPTS_MAX)
