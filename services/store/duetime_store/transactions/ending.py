"""EndTransactions: half messages are committed or rolled back, once each.

    read units and half records ──▶ judge, and stage real records, op records and ends ──▶ durable ──▶ answer

The ends of a step are processed together, by columns; unusual ones are examined one by one.

Judging and staging are one step of the store's only writer: the first staged end of a transaction counts, and every
other one, then or later, gets its result. The answer waits until everything that it relies on is durable.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import eq
from typing import NamedTuple

import numpy as np
from duetime.v1 import store_pb2, transactions_pb2
from duetime_core.errors import (
    DiskFull,
    DueTimeError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Violation,
    refuse,
)
from duetime_core.rpc.calls import fault_of
from duetime_format import halves, record
from duetime_format.errors import DamagedBytes
from duetime_format.halves import COMMITTED, ENDED, GIVEN_UP, ROLLED_BACK, are_ended
from duetime_format.lanes import LANE_TOPIC_NAMES
from duetime_format.limits import ENDS_COUNT_MAX
from duetime_format.properties import as_text
from duetime_format.texts import shown
from duetime_format.units import Ints, spans

from duetime_store.queues import halfqueue
from duetime_store.reading.turns import ScanTurns
from duetime_store.transactions.reading import Halves, read_halves
from duetime_store.transactions.results import CommitPlace, SendResultMaker
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.halves import HalfResolutions, PlacedEnds, end
from duetime_store.writing.store import Store

# Limits of a step, which takes a few milliseconds: ends, and bytes of half messages, but always at least one end.
STEP_COUNT = 256
STEP_BYTES = 4 * 1024 * 1024

Result = transactions_pb2.EndTransactionResult
_CODES: dict[int, int] = {transactions_pb2.DECISION_COMMIT: COMMITTED, transactions_pb2.DECISION_ROLLBACK: ROLLED_BACK}
STATES = {
    COMMITTED: transactions_pb2.TRANSACTION_STATE_COMMITTED,
    ROLLED_BACK: transactions_pb2.TRANSACTION_STATE_ROLLED_BACK,
    GIVEN_UP: transactions_pb2.TRANSACTION_STATE_GIVEN_UP,
}
OPEN = transactions_pb2.TRANSACTION_STATE_OPEN
# Marks a missing offset or topic.
NOWHERE = -1


class RequestedEnds:
    """The ends of a request, as columns."""

    def __init__(self, request: store_pb2.EndTransactionsRequest) -> None:
        """Raises: InvalidArgument: no end, or too many; no group; columns of different lengths."""
        violations = []
        if not 1 <= len(request.offsets) <= ENDS_COUNT_MAX:
            violations.append(Violation("offsets", f"{len(request.offsets)} are not 1 to {ENDS_COUNT_MAX}"))
        for name in ("positions", "message_ids", "decisions"):
            count = len(getattr(request, name))
            if count != len(request.offsets):
                violations.append(Violation(name, f"{count} for {len(request.offsets)} ends"))
        if not request.group:
            violations.append(Violation("group", "is empty"))
        refuse(violations)
        self.group = request.group.encode()
        self.given_up = request.given_up
        self.offsets = np.array(request.offsets, np.int64)
        self.positions = np.array(request.positions, np.int64)
        self.ids = list(request.message_ids)
        self.decisions = list(request.decisions)


class EndResults:
    """Results of ends, as columns."""

    def __init__(self, count: int) -> None:
        self.states = [0] * count
        self._offsets = [NOWHERE] * count
        self._queues = [0] * count
        self._topic_of = [0] * count
        self._topics: dict[bytes, int] = {}
        self.others: dict[int, Result] = {}

    def topic(self, name: bytes) -> int:
        """The number of a topic."""
        return self._topics.setdefault(name, len(self._topics))

    def committed(self, index: int, topic: int, queue: int, offset: int) -> None:
        """Notes a committed message in a queue of the topic with this number."""
        self._topic_of[index], self._queues[index], self._offsets[index] = topic, queue, offset

    def tell(self, index: int, result: Result) -> None:
        """Sets a result that does not fit the columns."""
        self.states[index], self.others[index] = result.state, result

    def refuse(self, index: int, error: DueTimeError) -> None:
        self.tell(index, Result(fault=fault_of(error)))

    def clear(self, indices: Iterable[int]) -> None:
        for index in indices:
            self.states[index], self._offsets[index] = 0, NOWHERE
            self.others.pop(index, None)

    def response(self) -> store_pb2.EndTransactionsResponse:
        response = store_pb2.EndTransactionsResponse(states=self.states)  # type: ignore[arg-type]
        if self._topics:
            response.offsets.extend(self._offsets)
            response.queues.extend(self._queues)
            response.topic_of.extend(self._topic_of)
            response.topics.extend(map(as_text, self._topics))
        for index, result in self.others.items():
            response.others[index].CopyFrom(result)
        return response


class UnclearEnd(NamedTuple):
    """An end that needs a closer look."""

    offset: int
    position: int
    message_id: str


class TransactionResolver:
    """Serves EndTransactions."""

    def __init__(
        self,
        store: Store,
        table: OpenTransactions,
        results: SendResultMaker,
        flusher: Flusher,
        turns: ScanTurns,
    ) -> None:
        self._store = store
        self._table = table
        self._results = results
        self._flusher = flusher
        self._turns = turns

    async def end(self, request: store_pb2.EndTransactionsRequest) -> tuple[RequestedEnds, EndResults]:
        """Durable on return.

        Raises:
            InvalidArgument: see RequestedEnds.
            ReadOnly: a write or flush failed before.
            DiskFull: there is no room, not even the reserve's.
        """
        asked = RequestedEnds(request)
        answer = EndResults(len(asked.ids))
        steps = [range(*span) for span in spans(self._store.halves.units(asked.offsets), STEP_BYTES, STEP_COUNT)]
        refused, _ = await self._end(asked, answer, steps)
        if refused:
            # The reserve is free now.
            _, error = await self._end(asked, answer, refused)
            if error is not None:
                raise error
        return asked, answer

    async def _end(
        self, asked: RequestedEnds, answer: EndResults, steps: Sequence[range]
    ) -> tuple[list[range], DiskFull | None]:
        """Returns the steps for which the disk had no room, and the error."""
        durables: list[asyncio.Future[None] | None] = []
        with self._turns.walk() as walk:
            walk.start()
            for step in steps:
                self._store.gate.check_write()
                self.stage(asked, answer, step)
                self._flusher.wake()
                # Asked in the same step as the staging: another batch may be the newest one later.
                durables.append(self._store.when_durable())
                await walk.turn_if_over()
        refused: list[range] = []
        error: DiskFull | None = None
        waits = [(step, durable) for step, durable in zip(steps, durables, strict=True) if durable is not None]
        outcomes = await asyncio.gather(*(durable for _, durable in waits), return_exceptions=True)
        for (step, _), outcome in zip(waits, outcomes, strict=True):
            if isinstance(outcome, DiskFull):
                error = outcome
                refused.append(step)
                answer.clear(step)
            elif outcome is not None:
                raise outcome
        return refused, error

    def stage(self, asked: RequestedEnds, answer: EndResults, indices: Sequence[int]) -> None:
        """Judges ends, stages the first of each, and fills in the answer, which holds once all of it is durable."""
        own = np.array(indices, np.int64)
        _, firsts = np.unique(asked.offsets[own], return_index=True)
        later = np.delete(own, firsts)
        part = _EndStep(self._store, asked, np.sort(own[firsts]))
        self._stage_chosen(answer, part, self._judged(asked, answer, part))
        if len(later):
            self.stage(asked, answer, later.tolist())

    def _judged(self, asked: RequestedEnds, answer: EndResults, part: "_EndStep") -> dict[int, int]:
        """Codes of the ends that count, by their places in the part. Answers all others."""
        plain = part.are_plain
        codes = {at: _CODES[asked.decisions[part.indices[at]]] for at in np.flatnonzero(plain).tolist()}
        for at in np.flatnonzero(~plain).tolist():
            index = part.indices[at]
            one = UnclearEnd(int(asked.offsets[index]), int(asked.positions[index]), as_text(asked.ids[index]))
            (known,) = self._store.halves.ends(part.tags[at : at + 1])
            try:
                self._check(one, asked, part, at, known)
                code = self._code(one, asked.decisions[index], known, given_up=asked.given_up)
                if code is None or not part.found.sizes[at]:
                    answer.tell(index, self._known(one, known))
                else:
                    codes[at] = code
            except DueTimeError as error:
                answer.refuse(index, error)
        return codes

    def _stage_chosen(self, answer: EndResults, part: "_EndStep", codes: Mapping[int, int]) -> None:
        chosen = sorted(codes)
        reals = self._reals(part.found, [at for at in chosen if codes[at] == COMMITTED])
        for at, real in reals.items():
            if isinstance(real, DamagedBytes):
                answer.refuse(part.indices[at], _refused(real.text))
                chosen.remove(at)
        decided = HalfResolutions(
            [part.offset_list[at] for at in chosen],
            [codes[at] for at in chosen],
            [reals.get(at, b"") for at in chosen],  # type: ignore[misc]
        )
        placed = end(self._store, decided, self._ended)
        for at in chosen:
            answer.states[part.indices[at]] = STATES[codes[at]]
        for number, why in placed.refused.items():
            answer.refuse(part.indices[chosen[number]], _refused(why))
        self._answer_placed(answer, part, chosen, placed)

    def _answer_placed(self, answer: EndResults, part: "_EndStep", chosen: Sequence[int], placed: PlacedEnds) -> None:
        topics = [answer.topic(topic) if topic not in LANE_TOPIC_NAMES else NOWHERE for topic, _ in placed.keys]
        past = set(placed.past)
        columns = zip(placed.ends, placed.key_of, placed.offsets, placed.due_at_ms, strict=True)
        for row, (number, key, offset, due_at_ms) in enumerate(columns):
            at = chosen[number]
            index, (name, queue) = part.indices[at], placed.keys[key]
            if topics[key] != NOWHERE:
                answer.committed(index, topics[key], queue, offset)
                continue
            found, place = part.found, CommitPlace(name, queue, offset, due_at_ms, row in past)
            sent = self._results.sent(place, as_text(found.ids[at] or b""), found.queues[at], found.levels[at])
            topic = as_text(found.topics[at] or b"")
            answer.tell(index, Result(state=STATES[COMMITTED], topic=topic, sent=sent))

    def _reals(self, found: Halves, commits: Sequence[int]) -> dict[int, bytes | DamagedBytes]:
        """The records of commits, or the damage that prevents them."""
        quick = [at for at in commits if found.queues[at] is not None and at not in found.delayed]
        are_all = len(quick) == len(found.sizes)
        made = halves.quickest_run(
            found.data if are_all else b"".join(found.records(quick)),
            [found.sizes[at] for at in quick],
            [found.topics[at] or b"" for at in quick],
            [found.queues[at] or 0 for at in quick],
        )
        reals: dict[int, bytes | DamagedBytes] = {
            at: real for at, real in zip(quick, made, strict=True) if real is not None
        }
        others = [at for at in commits if at not in reals]
        for at, data in zip(others, found.records(others), strict=True):
            reals[at] = self._real(data)
        return reals

    def _ended(self, offsets: Sequence[int]) -> None:
        self._table.end(np.array(offsets, np.int64))

    def _check(
        self, one: UnclearEnd, asked: RequestedEnds, part: "_EndStep", at: int, known: halfqueue.HalfOutcome | None
    ) -> None:
        """Returns if the end belongs to this half message.

        Raises:
            NotFound, PermissionDenied: the end belongs to another transaction.
        """
        found = part.found
        if not found.sizes[at]:
            # Its record has left the log.
            if known is not None and part.units["size"][at]:
                return
            raise not_found(one.offset)
        # Retention may have appended the record again.
        if as_text(found.ids[at] or b"") != one.message_id or one.position > part.units["position"][at]:
            raise not_found(one.offset, f" with id {shown(one.message_id)} at {one.position}")
        if found.groups[at] != asked.group:
            group = shown(as_text(asked.group))
            text = f"transaction of message {shown(one.message_id)} is not one of group {group}"
            raise PermissionDenied(text, reason="TRANSACTION_OF_ANOTHER_GROUP")

    def _code(
        self, one: UnclearEnd, decision: int, known: halfqueue.HalfOutcome | None, *, given_up: bool
    ) -> int | None:
        """The code of the transaction's end; None: it has ended before, or stays open.

        Raises:
            FailedPrecondition: it was given up.
            InvalidArgument: the decision is unknown.
        """
        if decision == transactions_pb2.DECISION_UNKNOWN:
            return None
        code = _CODES.get(decision)
        if code is None:
            raise InvalidArgument([Violation("decision", f"{decision} is not COMMIT, ROLLBACK or UNKNOWN")])
        if known is None or (known.code == GIVEN_UP and given_up):
            return code
        if known.code == GIVEN_UP:
            text = f"transaction of message {shown(one.message_id)} was given up: only an operator can end it"
            raise FailedPrecondition(text, reason="TRANSACTION_GIVEN_UP")
        return None

    def _real(self, data: bytes) -> bytes | DamagedBytes:
        """The record of a commit, or the damage that prevents it."""
        half = record.decode(data, check_crc=False)
        try:
            return halves.committed(half, self._store.levels.highest, self._store.timer_lane_count)
        except DamagedBytes as error:
            return error

    def _known(self, one: UnclearEnd, known: halfqueue.HalfOutcome | None) -> Result:
        """The answer to an end that changes nothing."""
        if known is None:
            return Result(state=OPEN)
        if known.code == ENDED:
            raise not_found(one.offset, ": a broker has ended it without recording the outcome")
        result = Result(state=STATES[known.code], duplicate=True)
        if known.code == COMMITTED:
            result.topic, sent = self._results.at(known.position, one.message_id)
            result.sent.CopyFrom(sent)
            result.sent.duplicate = True
        return result


class _EndStep:
    """Ends that are judged in one step, at most one per half message, and the data about these."""

    def __init__(self, store: Store, asked: RequestedEnds, indices: Ints) -> None:
        offsets = asked.offsets[indices]
        self.indices: list[int] = indices.tolist()
        self.offset_list: list[int] = offsets.tolist()
        self.units = store.halves.units(offsets)
        self.tags = store.halves.tags(offsets, self.units)
        self.found = found = read_halves(store.log, offsets, self.units)
        # Ends of open half messages with ids, groups and decisions that need no closer look.
        ids, decisions = ([column[index] for index in self.indices] for column in (asked.ids, asked.decisions))
        self.are_plain = ~are_ended(self.tags) & (asked.positions[indices] <= self.units["position"])
        for columns in (
            map(eq, found.ids, ids),
            map(eq, found.groups, repeat(asked.group)),
            map(_CODES.__contains__, decisions),
        ):
            self.are_plain &= np.fromiter(columns, np.bool_, len(indices))


def _refused(why: str) -> InvalidArgument:
    return InvalidArgument([Violation("half", why)], reason="RECORD_REFUSED")


def not_found(offset: int, what: str = "") -> NotFound:
    return NotFound(f"half message {offset}{what} is not known", reason="TRANSACTION_NOT_FOUND")
