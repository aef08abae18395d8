"""Ends transactions: each shard is asked for its own."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from duetime.v1 import transactions_pb2 as pb
from duetime_core.calls import fault_of
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, InvalidArgument, NotFound, Violation

from duetime_gateway.deadlines import shared_timeout_of
from duetime_gateway.metrics import TransactionMetrics
from duetime_gateway.routing.places import Places
from duetime_gateway.shards.shards import Shards
from duetime_gateway.transactions.admission import check_ends
from duetime_gateway.transactions.calls import End, EndCalls, Group
from duetime_gateway.transactions.names import TransactionName

Result = pb.EndTransactionResult

_STATES = {number: name.removeprefix("TRANSACTION_STATE_").lower() for name, number in pb.TransactionState.items()}


class Decision(IntEnum):
    """What a producer says of a transaction; the numbers are those of the contract."""

    COMMIT = 1
    ROLLBACK = 2
    UNKNOWN = 3


class Ender:
    """Ends transactions that are named, of one group."""

    def __init__(
        self,
        places: Places,
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
        self, group: str, ends: Sequence[End], remaining_ms: float | None = None, *, given_up: bool = False
    ) -> Sequence[Result]:
        """One result each. `given_up`: also those that were given up. A shard that does not answer is a fault of its
        own transactions.

        Raises:
            InvalidArgument: no group, too many ends, or none.
        """
        check_ends(group, len(ends))
        timeout_ms = shared_timeout_of(self._timeout_ms, remaining_ms)
        parts: dict[int, list[int]] = {}
        faults: dict[int, DueTimeError] = {}
        known = self._calls
        for index, (name, decision) in enumerate(ends):
            if name is None or not 1 <= decision <= 3 or name[0] not in known:
                faults[index] = _refusal(name, decision)
            elif (part := parts.get(name[0])) is not None:
                part.append(index)
            else:
                parts[name[0]] = [index]
        whose = Group(group, given_up)
        calls = (
            self._calls[number].end(whose, [ends[index] for index in part], timeout_ms)
            for number, part in parts.items()
        )
        answers = dict(zip(parts, await asyncio.gather(*calls), strict=True))
        await self._renumber(answers)
        results = _in_order(len(ends), parts, answers, faults)
        self._metrics.ended(Counter(map(_label, results)))
        return results

    async def _renumber(self, answers: Mapping[int, Sequence[Result] | DueTimeError]) -> None:
        """Shards number their queues themselves; users know them by the topic's."""
        found = [(shard, answer) for shard, answer in answers.items() if not isinstance(answer, DueTimeError)]
        names = {one.topic for _, answer in found for one in answer}
        renumbered = {name: route for name in names if name and (route := await self._places.renumbered(name))}
        if not renumbered:
            return
        for shard, answer in found:
            for one in answer:
                route = renumbered.get(one.topic)
                if route is not None:
                    one.sent.queue = route.queue_at(shard, one.sent.queue)


def _refusal(name: TransactionName | None, decision: int) -> DueTimeError:
    found = []
    if name is None:
        found.append(Violation("transaction_id", "is none that Prepare has given"))
    if not 1 <= decision <= 3:
        found.append(Violation("decision", f"{decision} is not COMMIT (1), ROLLBACK (2) or UNKNOWN (3)"))
    if found or name is None:
        return InvalidArgument(found)
    return transaction_not_found(f"shard {name.shard}, which is none of this gateway's, has it")


def transaction_not_found(text: str) -> NotFound:
    """Of a transaction that no shard knows."""
    return NotFound(f"there is no such transaction: {text}", reason="TRANSACTION_NOT_FOUND")


def _in_order(
    count: int,
    parts: Mapping[int, list[int]],
    answers: Mapping[int, Sequence[Result] | DueTimeError],
    faults: Mapping[int, DueTimeError],
) -> Sequence[Result]:
    """The results in the order of the request."""
    if len(parts) == 1 and not faults:
        ((_, answer),) = answers.items()
        if not isinstance(answer, DueTimeError):
            # The request's own order.
            return answer
    results: list[Result | None] = [None] * count
    for number, part in parts.items():
        answer = answers[number]
        found: Iterable[Result] = (
            [Result(fault=fault_of(answer))] * len(part) if isinstance(answer, DueTimeError) else answer
        )
        for index, one in zip(part, found, strict=True):
            results[index] = one
    for index, error in faults.items():
        results[index] = Result(fault=fault_of(error))
    return [one for one in results if one is not None]


def _label(result: Result) -> str:
    state = result.state
    return _STATES[state] if state in _STATES and state else result.fault.reason.lower()
