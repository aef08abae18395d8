"""Producers that watch the transactions of their groups, through a stream of any protocol."""

import asyncio
from collections.abc import AsyncIterator

from duetime.v1 import store_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, InvalidArgument, NotFound, Violation
from duetime_core.logs import sparing

from duetime_gateway.metrics import TransactionMetrics
from duetime_gateway.shards.shard import Shard
from duetime_gateway.shards.shards import Shards
from duetime_gateway.transactions.admission import check_answers, check_watch
from duetime_gateway.transactions.checks import Desk, Watcher
from duetime_gateway.transactions.columns import Ends
from duetime_gateway.transactions.ending import Decision, Ender
from duetime_gateway.transactions.producers import ProducerGroups
from duetime_gateway.transactions.taking import Reports, Taker

log = sparing()

# A database that is slow holds up no watcher.
FOUND_MS_MAX = 1_000


class Watching:
    """Watchers, and the takers that work for them."""

    def __init__(
        self,
        groups: ProducerGroups,
        shards: Shards,
        ender: Ender,
        clock: Clock,
        metrics: TransactionMetrics,
        tasks: asyncio.TaskGroup,
        *,
        gateway: str,
        watchers_max: int,
        timeout_ms: int,
    ) -> None:
        self._groups = groups
        self._shards = shards
        self._ender = ender
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._reports = Reports(shards.all(), clock, tasks)
        self.desk = Desk(clock, metrics, self._reports.add, watchers_max=watchers_max)
        self._takers = [
            Taker(shard, self.desk, clock, gateway=gateway, timeout_ms=timeout_ms) for shard in shards.all()
        ]

    def start(self) -> None:
        for taker in self._takers:
            self._tasks.create_task(taker.run(self._tasks))

    def end(self) -> None:
        """Watchers end, and nothing more is taken."""
        self.desk.end()

    async def finish(self) -> None:
        """Returns when shards know what became of all checks, or after a moment."""
        await self._reports.finish()

    async def join(self, group: str, caller: str) -> Watcher:
        """A watcher of the group, which is to leave the desk in the end.

        Raises:
            InvalidArgument: no group.
            NotFound: it has prepared nothing.
            Overloaded: there are too many watchers, or too many of this caller.
            Unavailable: the gateway is stopping.
        """
        check_watch(group)
        if not await self._is_known(group):
            raise NotFound(f"no producer of group {group} has prepared a transaction", reason="GROUP_NOT_FOUND")
        return self.desk.join(group, caller)

    async def _is_known(self, group: str) -> bool:
        """Also while nobody can say; and a group whose half messages came with a shard's directory."""
        try:
            if await self._groups.find(group, FOUND_MS_MAX):
                return True
        except DueTimeError:
            return True
        asked = (self._has_open(shard, group) for shard in self._shards.all())
        if not any(await asyncio.gather(*asked)):
            return False
        try:
            await self._groups.ensure(group, FOUND_MS_MAX)
        except DueTimeError as error:
            # It is asked again when the next producer comes.
            log.warning("producer group not made known", group=group, why=error.text)
        return True

    async def _has_open(self, shard: Shard, group: str) -> bool:
        """Also if it can't say."""
        request = pb.ListTransactionsRequest(group=group, state=pb.TRANSACTION_STATE_OPEN, page_size=1)
        try:
            answer: store_pb2.ListHalvesResponse = await shard.store.ask("ListTransactions", request, FOUND_MS_MAX)
        except DueTimeError as error:
            return error.retriable
        return bool(answer.halves)

    async def answer(self, watcher: Watcher, group: str, ends: Ends) -> None:
        """What a watcher says to checks: what comes of it nobody is told.

        Raises:
            InvalidArgument: too many ends, or another group's.
        """
        check_answers(group, watcher.group, len(ends))
        # What is unknown stays open: that needs no shard.
        decided = [index for index, decision in enumerate(ends.decisions) if decision != Decision.UNKNOWN]
        if not decided:
            return
        ended = await self._ender.end(watcher.group, ends.only(decided))
        for result in ended.others.values():
            if result.HasField("fault"):
                log.info("answer to a check not taken", group=watcher.group, why=result.fault.message)

    def follow(self, watcher: Watcher, answers: "AsyncIterator[tuple[str, Ends]]") -> "asyncio.Task[None]":
        """Reads the answers of a watcher's stream, with whose end the watcher ends."""
        return self._tasks.create_task(self._follow(watcher, answers))

    async def _follow(self, watcher: Watcher, answers: "AsyncIterator[tuple[str, Ends]]") -> None:
        try:
            async for group, ends in answers:
                await self.answer(watcher, group, ends)
            watcher.end()
        except Exception as error:
            # Raised again by the stream, so that it ends as a status: here it would end the process.
            watcher.end(error)


def no_group() -> InvalidArgument:
    """Of a stream that ends before it names one."""
    return InvalidArgument([Violation("group", "is not given: the stream has no first request")])
