"""Producers that watch their groups' transactions, through a stream of any protocol."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from duetime.v1 import store_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_core.errors import DueTimeError, InvalidArgument, NotFound, Violation
from duetime_core.telemetry.logs import sparing

from duetime_gateway.shards.shard import Shard
from duetime_gateway.shards.shards import Shards
from duetime_gateway.transactions.admission import check_answers, check_watch
from duetime_gateway.transactions.checks import CheckWatcher, Desk
from duetime_gateway.transactions.columns import EndColumns
from duetime_gateway.transactions.ending import DecisionRouter, EndDecision
from duetime_gateway.transactions.producers import ProducerGroups
from duetime_gateway.transactions.taking import CheckReporter, CheckTaker

log = sparing()

# Longest wait for the database, so that a slow one does not delay watchers.
FOUND_MS_MAX = 1_000


class WatcherRegistry:
    """Watchers, and the takers that serve them."""

    def __init__(
        self,
        groups: ProducerGroups,
        shards: Shards,
        ender: DecisionRouter,
        desk: Desk,
        reports: CheckReporter,
        takers: Sequence[CheckTaker],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`takers`: one of each shard."""
        self._groups = groups
        self._shards = shards
        self._ender = ender
        self.desk = desk
        self._reports = reports
        self._takers = takers
        self._tasks = tasks

    def start(self) -> None:
        for taker in self._takers:
            self._tasks.create_task(taker.run(self._tasks))

    def end(self) -> None:
        """Ends all watchers, and takes no more checks."""
        self.desk.end()

    async def finish(self) -> None:
        """Returns when the shards have the reports on all checks, or after a moment."""
        await self._reports.finish()

    async def join(self, group: str, caller: str) -> CheckWatcher:
        """Adds a watcher of the group; the caller must remove it from the desk.

        Raises:
            InvalidArgument: no group.
            NotFound: the group has prepared nothing.
            Overloaded: too many watchers, in total or of this caller.
            Unavailable: the gateway is stopping.
        """
        check_watch(group)
        if not await self._is_known(group, caller):
            raise NotFound(f"no producer of group {group} has prepared a transaction", reason="GROUP_NOT_FOUND")
        return self.desk.join(group, caller)

    async def _is_known(self, group: str, caller: str) -> bool:
        """Whether the database knows the group, or a shard has its half messages; True if the database fails."""
        try:
            if await self._groups.find(group, caller, FOUND_MS_MAX):
                return True
        except DueTimeError:
            return True
        asked = (self._has_open(shard, group) for shard in self._shards.all())
        if not any(await asyncio.gather(*asked)):
            return False
        try:
            await self._groups.ensure(group, caller, FOUND_MS_MAX)
        except DueTimeError as error:
            # The next producer triggers another attempt.
            log.warning("cannot register a producer group", group=group, why=error.text)
        return True

    async def _has_open(self, shard: Shard, group: str) -> bool:
        """Whether the shard has open transactions of the group; True on error."""
        request = pb.ListTransactionsRequest(group=group, state=pb.TRANSACTION_STATE_OPEN, page_size=1)
        try:
            answer: store_pb2.ListHalvesResponse = await shard.store.ask("ListTransactions", request, FOUND_MS_MAX)
        except DueTimeError as error:
            return error.retriable
        return bool(answer.halves)

    async def answer(self, watcher: CheckWatcher, group: str, ends: EndColumns) -> None:
        """Applies a watcher's answers to checks; results are not returned to it.

        Raises:
            InvalidArgument: too many ends, or another group's.
        """
        check_answers(group, watcher.group, len(ends))
        # UNKNOWN leaves a transaction open, so no shard needs it.
        decided = [index for index, decision in enumerate(ends.decisions) if decision != EndDecision.UNKNOWN]
        if not decided:
            return
        ended = await self._ender.end(watcher.group, ends.only(decided))
        for result in ended.others.values():
            if result.HasField("fault"):
                log.info("answer to a check rejected", group=watcher.group, why=result.fault.message)

    def follow(self, watcher: CheckWatcher, answers: "AsyncIterator[tuple[str, EndColumns]]") -> "asyncio.Task[None]":
        """Reads the answers of a watcher's stream; the watcher ends with the stream."""
        return self._tasks.create_task(self._follow(watcher, answers))

    async def _follow(self, watcher: CheckWatcher, answers: "AsyncIterator[tuple[str, EndColumns]]") -> None:
        try:
            async for group, ends in answers:
                await self.answer(watcher, group, ends)
            watcher.end()
        except Exception as error:
            # The stream raises it again and ends with a status; raised here, it would end the process.
            watcher.end(error)


def no_group() -> InvalidArgument:
    """The error of a stream that ends before it names a group."""
    return InvalidArgument([Violation("group", "is not given: the stream has no first request")])
