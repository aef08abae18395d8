"""Prepare: stores half messages, which opens their transactions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import halves, record
from duetime_format.columns import values
from duetime_format.limits import REQUEST_BYTES_MAX
from duetime_format.properties import as_text

from duetime_store.log.intake import Intake
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.half_faults import half_faults
from duetime_store.writing.halves import prepare
from duetime_store.writing.staging import DUPLICATE, OK, PutOutcome
from duetime_store.writing.store import Store
from duetime_store.writing.visible import VisibleLog

_IMMUNITY = record.CHECK_IMMUNITY_S.encode()
_GROUP = (record.PRODUCER_GROUP.encode(),)


@dataclass(frozen=True, slots=True)
class PreparedHalves:
    """`outcome` has the half offsets; the columns have one value for each record, -1 for rejected ones."""

    outcome: PutOutcome
    positions: list[int]
    check_at_ms: list[int]


class TransactionPreparer:
    """Serves Prepare."""

    def __init__(self, store: Store, table: OpenTransactions, flusher: Flusher, *, timeout_ms: int) -> None:
        self._store = store
        self._table = table
        self._flusher = flusher
        self._timeout_ms = timeout_ms

    async def prepare(
        self, records: bytes, caller: str = "", callers: Sequence[tuple[str, int]] = ()
    ) -> PreparedHalves:
        """Durable on return. `callers`: the callers that the transactions count for, and the number of records of each,
        in order; the rest counts for `caller`.

        Raises:
            As Store.put.
        """
        if len(records) > REQUEST_BYTES_MAX:
            text = f"{len(records)} bytes; the limit is {REQUEST_BYTES_MAX}"
            raise InvalidArgument([Violation("records", text)], reason="RECORDS_INVALID")
        prepared = self.stage(records, caller, callers)
        await self._flusher.durable()
        return prepared

    def stage(self, records: bytes, caller: str = "", callers: Sequence[tuple[str, int]] = ()) -> PreparedHalves:
        """As `prepare`; the result holds once everything is durable."""
        store = self._store
        store.gate.check_send()
        intake = store.admit(records)
        names = [*chain.from_iterable(repeat(name, count) for name, count in callers)][: intake.count]
        names += [caller] * (intake.count - len(names))
        seats, seated = self._table.seats, set[int]()

        def take(index: int) -> None:
            seats.take(names[index])
            seated.add(index)

        new: list[int] = []
        try:
            outcome, positions = prepare(store, intake, half_faults(store, intake), take)
            new = [index for index, status in enumerate(outcome.statuses) if status == OK]
        finally:
            for index in seated.difference(new):
                seats.give(names[index])
        check_at_ms = self._check_at_ms(intake, outcome, new)
        self._answer_repeated(outcome, positions, check_at_ms)
        if new:
            self._add(intake, outcome, new, check_at_ms, [names[index] for index in new])
        return PreparedHalves(outcome, positions, check_at_ms)

    def _check_at_ms(self, intake: Intake, outcome: PutOutcome, new: list[int]) -> list[int]:
        """Times of the first checks of new ones; 0 for others."""
        found = [0] * intake.count
        asks = _IMMUNITY in intake.data
        for index in new:
            immune_ms = halves.immunity_ms(intake.properties(index), self._timeout_ms) if asks else self._timeout_ms
            found[index] = outcome.stored_at_ms + immune_ms
        return found

    def _answer_repeated(self, outcome: PutOutcome, positions: list[int], check_at_ms: list[int]) -> None:
        log: VisibleLog | None = None
        for index, status in enumerate(outcome.statuses):
            if status == DUPLICATE:
                log = log or self._store.visible_log
                first = log.record_at(positions[index])
                if first is not None:
                    check_at_ms[index] = first.stored_at_ms + halves.immunity_ms(first.properties, self._timeout_ms)

    def _add(
        self,
        intake: Intake,
        outcome: PutOutcome,
        new: list[int],
        check_at_ms: list[int],
        callers: list[str],
    ) -> None:
        """Opens the transactions once they are durable."""
        offsets, checks = (
            np.array([column[index] for index in new], np.int64) for column in (outcome.queue_offsets, check_at_ms)
        )
        (named,) = values(intake.data, intake.sizes.tolist(), _GROUP)
        groups = [as_text(named[index] or b"") for index in new]
        stored_at_ms = np.full(len(new), outcome.stored_at_ms, np.int64)

        def settled(durable: bool) -> None:
            if durable:
                self._table.add(offsets, groups, checks, stored_at_ms, callers=callers)
            else:
                for caller in callers:
                    self._table.seats.give(caller)

        self._store.staged.settles.append(settled)
