"""Ends transactions, each at its own shard."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum

from duetime.v1 import transactions_pb2 as pb
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, InvalidArgument, NotFound, Violation
from duetime_core.rpc.calls import fault_of

from duetime_gateway.deadlines import shared_timeout_of
from duetime_gateway.metrics import TransactionMetrics
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.shards.shards import Shards
from duetime_gateway.transactions.admission import check_ends
from duetime_gateway.transactions.calls import EndCalls, EndScope
from duetime_gateway.transactions.columns import NOWHERE, EndColumns, EndResultColumns, Result

_STATES = {number: name.removeprefix("TRANSACTION_STATE_").lower() for name, number in pb.TransactionState.items()}


class EndDecision(IntEnum):
    """A producer's decision about a transaction; the numbers are those of the contract."""

    COMMIT = 1
    ROLLBACK = 2
    UNKNOWN = 3


class DecisionRouter:
    """Ends named transactions of one group."""

    def __init__(
        self,
        places: QueueLocator,
        shards: Shards,
        clock: Clock,
        metrics: TransactionMetrics,
        tasks: asyncio.TaskGroup,
        *,
        timeout_ms: int,
    ) -> None:
        self._places = places
        self._calls = {shard.number: EndCalls(shard, clock, tasks, timeout_ms=timeout_ms) for shard in shards.all()}
        self._metrics = metrics
        self._timeout_ms = timeout_ms

    async def end(
        self, group: str, ends: EndColumns, remaining_ms: float | None = None, *, given_up: bool = False
    ) -> EndResultColumns:
        """`given_up`: includes given-up ones. If a shard does not answer, its transactions get faults.

        Raises:
            InvalidArgument: no group, too many ends, or none.
        """
        check_ends(group, len(ends))
        timeout_ms = shared_timeout_of(self._timeout_ms, remaining_ms)
        ended = EndResultColumns.of_nothing(len(ends))
        parts: dict[int, list[int]] = {}
        for index, (shard, decision) in enumerate(zip(ends.shards, ends.decisions, strict=True)):
            if not 1 <= decision <= 3 or shard not in self._calls:
                ended.others[index] = Result(fault=fault_of(_refusal(shard, decision)))
            elif (part := parts.get(shard)) is not None:
                part.append(index)
            else:
                parts[shard] = [index]
        whose = EndScope(group, given_up)
        answers = await asyncio.gather(
            *(self._calls[shard].end(whose, ends.only(part), timeout_ms) for shard, part in parts.items())
        )
        for (shard, part), answer in zip(parts.items(), answers, strict=True):
            if isinstance(answer, DueTimeError):
                ended.others.update(dict.fromkeys(part, Result(fault=fault_of(answer))))
            else:
                await self._renumber(shard, answer)
                ended.put(part, answer)
        self._metrics.ended(_counted(ended))
        return ended

    async def _renumber(self, shard: int, answer: EndResultColumns) -> None:
        """Replaces the shard's queue numbers by the topics'."""
        names = {*answer.topics, *(one.topic for one in answer.others.values())}
        renumbered = {name: route for name in names if name and (route := await self._places.renumbered(name))}
        if not renumbered:
            return
        for index, topic in enumerate(answer.topics):
            if (route := renumbered.get(topic)) is not None and answer.offsets[index] != NOWHERE:
                answer.queues[index] = route.queue_at(shard, answer.queues[index])
        for one in answer.others.values():
            if (route := renumbered.get(one.topic)) is not None:
                one.sent.queue = route.queue_at(shard, one.sent.queue)


def _refusal(shard: int, decision: int) -> DueTimeError:
    found = []
    if shard == NOWHERE:
        found.append(Violation("transaction_id", "was not returned by Prepare"))
    if not 1 <= decision <= 3:
        found.append(Violation("decision", f"{decision} is not COMMIT (1), ROLLBACK (2) or UNKNOWN (3)"))
    if found:
        return InvalidArgument(found)
    return transaction_not_found(f"its shard {shard} is not one of this gateway's")


def transaction_not_found(text: str) -> NotFound:
    """The error for a transaction unknown to all shards."""
    return NotFound(f"there is no such transaction: {text}", reason="TRANSACTION_NOT_FOUND")


def _counted(ended: EndResultColumns) -> Mapping[str, int]:
    """The number of results by state and by reason of fault."""
    counts = Counter(ended.states)
    faults = Counter(one.fault.reason.lower() for one in ended.others.values() if one.HasField("fault"))
    del counts[0]
    return faults + Counter({_STATES[state]: count for state, count in counts.items()})
