"""The groups known to this shard: config/subscriptionGroup.json, RocketMQ's file.

Brokers read from it the number of retries of a group; gateways read from it the groups of a broker's directory. A
broker's content is kept as it is. The file is replaced with each change, durable when a call returns. Calls that come
while it is being written share the next write, and after a long write the next one waits a while: with 10,000 groups a
write takes a third of a second, and many groups may be created in one.

Source: RocketMQ 4.9.3 and 5.3 SubscriptionGroupManager, SubscriptionGroupConfig.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import structlog
from duetime.v1 import consumer_pb2, message_pb2
from duetime_core.clock import Clock
from duetime_core.errors import DiskFull, Unavailable, refuse
from duetime_format import limits
from duetime_format.errors import within

from duetime_store.files import configs
from duetime_store.files.gate import NO_ROOM
from duetime_store.files.worker import FileWorker

log = structlog.get_logger()

# The pause between two writes, in lengths of one write, so that the interpreter is free for others.
PAUSE_SHARE = 5
PAUSE_MS_MAX = 1_000


class SubscriptionGroups:
    """The file's content. Belongs to the event loop's thread; `worker` writes."""

    def __init__(self, worker: FileWorker, clock: Clock) -> None:
        directory = self._directory = worker.directory
        self._worker = worker
        self._clock = clock
        loaded = configs.load(directory.config, configs.GROUPS)
        if loaded.fault:
            log.error("groups' file is damaged", file=configs.GROUPS, why=loaded.fault)
        # The content on disk; never changed in place: the writer has it too.
        self._content = loaded.value
        # Changes to be written: retries and order by group; None: the group is removed.
        self._changes: dict[str, tuple[int, bool] | None] = {}
        # Changes being written.
        self._under_way: dict[str, tuple[int, bool] | None] = {}
        self._writing = asyncio.Lock()
        self._next_at_ms = 0.0

    def list(self) -> Iterator[consumer_pb2.Group]:
        """Groups by name, with the settings in the file."""
        for name, entry in sorted(configs.groups(self._changed(self._under_way | self._changes)).items()):
            yield consumer_pb2.Group(
                name=name,
                ordered=entry.get("consumeMessageOrderly") is True,
                retry=message_pb2.RetryPolicy(max_attempts=_max_attempts(entry.get("retryMaxTimes"))),
            )

    async def put(self, group: consumer_pb2.Group) -> None:
        """Durable on return.

        Raises:
            InvalidArgument: the number of attempts is out of range.
            DiskFull, Unavailable: it was not written.
        """
        refuse(within("retry.max_attempts", group.retry.max_attempts, 0, limits.ATTEMPTS_MAX))
        retries = (group.retry.max_attempts or limits.DELIVERIES_DEFAULT) - 1
        self._changes[group.name] = (retries, group.ordered)
        await self._write()

    async def remove(self, name: str) -> None:
        """As `put`."""
        self._changes[name] = None
        await self._write()

    def _changed(self, changes: Mapping[str, tuple[int, bool] | None]) -> dict[str, Any]:
        return configs.with_groups(self._content, changes, self._clock.now_ms())

    async def _write(self) -> None:
        async with self._writing:
            if not self._changes:
                return
            pause_ms = self._next_at_ms - self._clock.monotonic_ms()
            if pause_ms > 0:
                await self._clock.sleep(pause_ms)
            changes, self._changes = self._changes, {}
            self._under_way = changes
            began_ms = self._clock.monotonic_ms()
            try:
                self._content = await self._worker.run(self._replace, changes)
            except OSError as error:
                self._changes = changes | self._changes
                why = f"the group is not saved, {configs.GROUPS} was not written: {error.strerror or error}"
                full = error.errno in NO_ROOM
                raise (DiskFull(why) if full else Unavailable(why, reason="GROUP_NOT_KEPT")) from error
            finally:
                self._under_way = {}
                ended_ms = self._clock.monotonic_ms()
                self._next_at_ms = ended_ms + min((ended_ms - began_ms) * PAUSE_SHARE, PAUSE_MS_MAX)

    def _replace(self, changes: Mapping[str, tuple[int, bool] | None]) -> dict[str, Any] | None:
        """Writes the file, on the worker's thread. Returns its new content."""
        changed = self._changed(changes)
        if changed and changed != self._content:
            configs.write(self._directory.disk, self._directory.config, configs.GROUPS, changed)
            return changed
        return self._content


def most_attempts(content: Mapping[str, Any] | None) -> dict[str, int]:
    """Maximum attempts by group, from the content of the file."""
    return {name: _max_attempts(entry.get("retryMaxTimes")) for name, entry in configs.groups(content).items()}


def _max_attempts(retries: object) -> int:
    """The maximum attempts by `retryMaxTimes`: brokers accept any number, and one below 0 as RocketMQ's default."""
    if not isinstance(retries, int) or retries < 0:
        return limits.DELIVERIES_DEFAULT
    return min(retries + 1, limits.ATTEMPTS_MAX)
