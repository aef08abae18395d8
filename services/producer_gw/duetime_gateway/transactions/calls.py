"""EndTransactions of one shard: small sets of ends that arrive during a call share the next one."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from duetime.v1 import store_pb2
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError
from duetime_core.telemetry.defects import outcome
from duetime_format.limits import ENDS_COUNT_MAX

from duetime_gateway.errors import shard_unavailable, stopping
from duetime_gateway.shards.shard import Shard
from duetime_gateway.transactions.columns import EndColumns, EndResultColumns

# Number of ends from which they get a call of their own.
FEW_MAX = 64


class EndScope(NamedTuple):
    """The group whose transactions a call ends, and whether given-up ones are included."""

    name: str
    given_up: bool


class _EndPart(NamedTuple):
    """The ends of one request, and their pending result."""

    ends: EndColumns
    answer: "asyncio.Future[EndResultColumns | DueTimeError]"


class EndCalls:
    """The calls to one shard."""

    def __init__(self, shard: Shard, clock: Clock, tasks: asyncio.TaskGroup, *, timeout_ms: int) -> None:
        self._shard = shard
        self._clock = clock
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        # Ends that wait during a call, by group.
        self._waiting: dict[EndScope, list[_EndPart]] = {}

    async def end(self, group: EndScope, ends: EndColumns, timeout_ms: float) -> EndResultColumns | DueTimeError:
        """Returns the results, or the error if they are unknown."""
        if len(ends) >= FEW_MAX:
            return await self._call(group, ends, timeout_ms)
        part = _EndPart(ends, asyncio.get_running_loop().create_future())
        if group in self._waiting:
            self._waiting[group].append(part)
        else:
            self._waiting[group] = [part]
            # A separate task: it continues for others when this caller leaves.
            self._tasks.create_task(self._run(group))
        if not await self._clock.wait_for(part.answer, timeout_ms):
            part.answer.cancel()
            return shard_unavailable(f"shard {self._shard.number} did not answer within {timeout_ms:.0f} ms")
        return part.answer.result()

    async def _run(self, group: EndScope) -> None:
        parts: list[_EndPart] = []
        try:
            while parts := self._take(group):
                ends = EndColumns.of(())
                for part in parts:
                    ends.add(part.ends)
                answer, error = await outcome(lambda ends=ends: self._call(group, ends, self._timeout_ms), "end")  # type: ignore[misc]
                self._answer(parts, error or answer)
        finally:
            # Release the waiters of a cancelled call.
            self._answer([*parts, *self._waiting.pop(group, [])], stopping())

    def _take(self, group: EndScope) -> list[_EndPart]:
        """Takes the parts of the next call."""
        taken: list[_EndPart] = []
        count = 0
        waiting = self._waiting[group]
        while waiting and count + len(waiting[0].ends) <= ENDS_COUNT_MAX:
            part = waiting.pop(0)
            if not part.answer.done():
                taken.append(part)
                count += len(part.ends)
        return taken

    def _answer(self, parts: Sequence[_EndPart], answer: EndResultColumns | DueTimeError | None) -> None:
        first = 0
        for part in parts:
            stop = first + len(part.ends)
            if not part.answer.done():
                part.answer.set_result(
                    answer.part(first, stop) if isinstance(answer, EndResultColumns) else answer or stopping()
                )
            first = stop

    async def _call(self, group: EndScope, ends: EndColumns, timeout_ms: float) -> EndResultColumns | DueTimeError:
        request = store_pb2.EndTransactionsRequest(
            group=group.name,
            offsets=ends.offsets,
            positions=ends.positions,
            message_ids=[one.encode() for one in ends.ids],
            decisions=ends.decisions,  # type: ignore[arg-type]
            given_up=group.given_up,
        )
        try:
            answer: store_pb2.EndTransactionsResponse = await self._shard.store.ask(
                "EndTransactions", request, timeout_ms
            )
        except DueTimeError as error:
            return error
        if len(answer.states) != len(ends):
            return shard_unavailable(
                f"shard {self._shard.number} answered {len(answer.states)} results for {len(ends)} ends"
            )
        ended = EndResultColumns.of_nothing(len(ends))
        ended.states = list(answer.states)
        if answer.offsets:
            names = list(answer.topics)
            ended.topics = [names[number] for number in answer.topic_of]
            ended.queues, ended.offsets = list(answer.queues), list(answer.offsets)
        ended.others = dict(answer.others)
        return ended
