"""EndTransactions: half messages are committed or rolled back, once each.

    read units and half records ──▶ judge, and stage real records, op records and ends ──▶ durable ──▶ answer

Judging and staging are one step of the store's only writer: whichever end of a transaction is staged first counts, and
every other one, then or later, gets its result. The answer waits until all that it rests on is durable.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from duetime.v1 import store_pb2, transactions_pb2
from duetime_core.bounds import shown
from duetime_core.calls import fault_of
from duetime_core.errors import (
    DiskFull,
    DueTimeError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Violation,
)
from duetime_format import halves, record
from duetime_format.errors import Damaged
from duetime_format.halves import COMMITTED, ENDED, GIVEN_UP, ROLLED_BACK
from duetime_format.limits import ENDS_COUNT_MAX
from duetime_format.properties import as_text
from duetime_format.units import spans

from duetime_store.queues.halfqueue import End
from duetime_store.reading.turns import Turns
from duetime_store.transactions.reading import Half, read_halves
from duetime_store.transactions.results import Results
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.halves import Decided, end
from duetime_store.writing.store import Store

# Judged and staged in one step, which takes a few milliseconds; so many bytes of half messages at most, but always one.
STEP_COUNT = 256
STEP_BYTES = 4 * 1024 * 1024

Result = transactions_pb2.EndTransactionResult
_CODES = {transactions_pb2.DECISION_COMMIT: COMMITTED, transactions_pb2.DECISION_ROLLBACK: ROLLED_BACK}
STATES = {
    COMMITTED: transactions_pb2.TRANSACTION_STATE_COMMITTED,
    ROLLED_BACK: transactions_pb2.TRANSACTION_STATE_ROLLED_BACK,
    GIVEN_UP: transactions_pb2.TRANSACTION_STATE_GIVEN_UP,
}
OPEN = transactions_pb2.TRANSACTION_STATE_OPEN


class Ending:
    """Serves EndTransactions."""

    def __init__(
        self,
        store: Store,
        table: OpenTransactions,
        results: Results,
        flusher: Flusher,
        turns: Turns,
    ) -> None:
        self._store = store
        self._table = table
        self._results = results
        self._flusher = flusher
        self._turns = turns

    async def end(self, request: store_pb2.EndTransactionsRequest) -> transactions_pb2.EndTransactionResponse:
        """Durable on return.

        Raises:
            InvalidArgument: no end, or too many; no group.
            ReadOnly: a write or flush failed before.
            DiskFull: there is no room, not even the reserve's.
        """
        violations = []
        if not 1 <= len(request.ends) <= ENDS_COUNT_MAX:
            violations.append(Violation("ends", f"{len(request.ends)} are not 1 to {ENDS_COUNT_MAX}"))
        if not request.group:
            violations.append(Violation("group", "is empty"))
        if violations:
            raise InvalidArgument(violations)
        results = [Result() for _ in request.ends]
        offsets = np.array([one.half.offset for one in request.ends], np.int64)
        steps = [range(*span) for span in spans(self._store.halves.units(offsets), STEP_BYTES, STEP_COUNT)]
        refused, _ = await self._end(request, results, steps)
        if refused:
            # The reserve is free now.
            _, error = await self._end(request, results, refused)
            if error is not None:
                raise error
        return transactions_pb2.EndTransactionResponse(results=results)

    async def _end(
        self, request: store_pb2.EndTransactionsRequest, results: list[Result], steps: Sequence[range]
    ) -> tuple[list[range], DiskFull | None]:
        """Returns the steps that the disk had no room for, and the error."""
        durables: list[asyncio.Future[None] | None] = []
        with self._turns.walk() as walk:
            walk.start()
            for step in steps:
                self._store.gate.check_write()
                self.stage(request, results, step)
                self._flusher.wake()
                # In one step with the staging: another batch may be the newest one later.
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
                for index in step:
                    results[index].Clear()
            elif outcome is not None:
                raise outcome
        return refused, error

    def stage(self, request: store_pb2.EndTransactionsRequest, results: list[Result], indices: Sequence[int]) -> None:
        """Judges ends, stages those that are first, and fills in the results, which hold once all of it is durable."""
        store = self._store
        ends = [request.ends[index] for index in indices]
        offsets = np.array([one.half.offset for one in ends], np.int64)
        units = store.halves.units(offsets)
        chosen: dict[int, tuple[int, int, Half]] = {}
        later: list[int] = []
        rows = zip(
            *(indices, ends, offsets.tolist(), units["size"].tolist()),
            *(store.halves.ends(offsets, units), read_halves(store, offsets, units)),
            strict=True,
        )
        for index, one, offset, size, known, found in rows:
            if offset in chosen:
                later.append(index)
                continue
            try:
                self._check(one, request.group, size, known, found)
                code = self._code(one, known, given_up=request.given_up)
                if code is None or found is None:
                    results[index].CopyFrom(self._known(one, known))
                else:
                    chosen[offset] = index, code, found
            except DueTimeError as error:
                results[index].fault.CopyFrom(fault_of(error))
        self._stage_chosen(results, chosen)
        if later:
            self.stage(request, results, later)

    def _stage_chosen(self, results: list[Result], chosen: dict[int, tuple[int, int, Half]]) -> None:
        ends = [(offset, *row) for offset, row in chosen.items()]
        reals = iter(self._reals([found for _, _, code, found in ends if code == COMMITTED]))
        decided: list[Decided] = []
        staged: list[tuple[int, Half]] = []
        for offset, index, code, found in ends:
            real = next(reals) if code == COMMITTED else b""
            if isinstance(real, Damaged):
                _refuse(results[index], real.text)
            else:
                decided.append(Decided(offset, code, real))
                staged.append((index, found))
        placed = end(self._store, decided, self._ended)
        for row, (index, found) in enumerate(staged):
            place, result = placed.get(row), results[index]
            if isinstance(place, str):
                _refuse(result, place)
                continue
            result.state = STATES[decided[row].code]
            if place is not None:
                result.topic = as_text(found.topic)
                self._results.fill(result.sent, place, found)

    def _reals(self, committed: Sequence[Half]) -> list[bytes | Damaged]:
        """The records of commits, or why there can't be one."""
        quick = [one for one in committed if one.queue is not None and one.delay is None and not one.is_timer]
        made = halves.quickest_run(
            b"".join([one.data for one in quick]),
            [len(one.data) for one in quick],
            [one.topic for one in quick],
            [one.queue or 0 for one in quick],
        )
        known = {id(one): real for one, real in zip(quick, made, strict=True) if real is not None}
        return [known.get(id(one)) or self._real(one) for one in committed]

    def _ended(self, offsets: Sequence[int]) -> None:
        self._table.end(np.array(offsets, np.int64))

    def _check(self, one: store_pb2.HalfEnd, group: str, size: int, known: End | None, found: Half | None) -> None:
        """Returns if the end is that of this half message. `found` None: its record has left the log.

        Raises:
            NotFound, PermissionDenied: the end is another transaction's.
        """
        if found is None:
            if known is not None and size:
                return
            raise not_found(one.half.offset)
        # Retention may have appended the record again.
        if as_text(found.message_id) != one.message_id or one.half.position > found.position:
            raise not_found(one.half.offset, f" with id {shown(one.message_id)} at {one.half.position}")
        if as_text(found.group) != group:
            text = f"transaction of message {shown(one.message_id)} is not one of group {shown(group)}"
            raise PermissionDenied(text, reason="TRANSACTION_OF_ANOTHER_GROUP")

    def _code(self, one: store_pb2.HalfEnd, known: End | None, *, given_up: bool) -> int | None:
        """How the transaction ends now; None: it has ended before, or stays open.

        Raises:
            FailedPrecondition: it was given up.
            InvalidArgument: that is no decision.
        """
        if one.decision == transactions_pb2.DECISION_UNKNOWN:
            return None
        code = _CODES.get(one.decision)
        if code is None:
            raise InvalidArgument([Violation("decision", f"{one.decision} is not COMMIT, ROLLBACK or UNKNOWN")])
        if known is None or (known.code == GIVEN_UP and given_up):
            return code
        if known.code == GIVEN_UP:
            text = f"transaction of message {shown(one.message_id)} was given up: only an operator can end it"
            raise FailedPrecondition(text, reason="TRANSACTION_GIVEN_UP")
        return None

    def _real(self, found: Half) -> bytes | Damaged:
        """The record of a commit, or why there can't be one."""
        half = record.decode(found.data, check_crc=False)
        try:
            return halves.committed(half, self._store.levels.highest, self._store.timer_lane_count)
        except Damaged as error:
            return error

    def _known(self, one: store_pb2.HalfEnd, known: End | None) -> Result:
        """The answer to an end that changes nothing."""
        if known is None:
            return Result(state=OPEN)
        if known.code == ENDED:
            raise not_found(one.half.offset, ": a broker has ended it, and does not say how")
        result = Result(state=STATES[known.code], duplicate=True)
        if known.code == COMMITTED:
            result.topic, sent = self._results.at(known.position, one.message_id)
            result.sent.CopyFrom(sent)
            result.sent.duplicate = True
        return result


def _refuse(result: Result, why: str) -> None:
    refused = InvalidArgument([Violation("half", why)], reason="RECORD_REFUSED")
    result.fault.CopyFrom(fault_of(refused))


def not_found(offset: int, what: str = "") -> NotFound:
    return NotFound(f"half message {offset}{what} is not known", reason="TRANSACTION_NOT_FOUND")
