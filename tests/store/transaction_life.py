"""The lives of a shard (life.py) with transactions: half messages, and their ends, some of them two at a time.

answered ends    as answered, for good
others           as one of the ends decided, or open; unchanged from the next life on
committed        its message is delivered once
others           never delivered
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
from duetime.v1 import store_pb2, transactions_pb2
from duetime_core.errors import DiskFull, ReadOnly
from duetime_format.names import HALF_TOPIC, OP_TOPIC
from duetime_format.properties import decode_properties
from duetime_format.record import Record
from duetime_store.reading.turns import ScanTurns
from duetime_store.transactions.ending import STATES, Result, TransactionResolver
from duetime_store.transactions.preparing import TransactionPreparer
from duetime_store.transactions.results import SendResultMaker

from tests.store.life import DELAYS_MS, Life
from tests.store.life_lanes import TIMERS
from tests.store.life_sends import Message
from tests.store.transacting import COMMIT, COMMITTED, OPEN, ROLLBACK, UNKNOWN, end_of, half, staged_ends


@dataclass
class Transaction:
    """The model's state of a transaction. `half`: None until its prepare is answered; `state`: None until an end is."""

    half: store_pb2.Half | None = None
    state: int | None = None
    refused: bool = False


@dataclass
class Call:
    """One that is not answered yet."""

    durable: "asyncio.Future[None]"
    answered: Callable[[], None]
    refused: Callable[[], None] = field(default=lambda: None)


class TransactionLife(Life):
    """See the module."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.calls: list[Call] = []
        self.halves: dict[str, int] = {}
        super().__init__(*args, **options)

    def _begin(self) -> None:
        super()._begin()
        flusher, settings, table = self.flusher, self.settings, self.opened.transactions
        self.preparing = TransactionPreparer(self.store, table, flusher, timeout_ms=settings.transaction_timeout_ms)
        self.ending = TransactionResolver(self.store, table, SendResultMaker(self.store, shard=0), flusher, ScanTurns())

    def _end(self) -> None:
        self.calls.clear()
        super()._end()

    def _lose(self) -> None:
        super()._lose()
        if not self.sync:
            # Any answered end may be lost; the rest must still be consistent.
            for name, one in self.transactions.items():
                one.half = one.state = self.messages[name].offset = None

    def _settle(self) -> None:
        super()._settle()
        waiting = []
        for call in self.calls:
            if not call.durable.done():
                waiting.append(call)
            elif call.durable.exception() is None:
                call.answered()
            elif isinstance(call.durable.exception(), DiskFull):
                call.refused()
        self.calls = waiting

    @property
    def others(self) -> Collection[str]:  # type: ignore[override] # Life's is what it never changes
        return self.transactions

    # --- steps ------------------------------------------------------------------------------------------------------

    def prepare(self, count: int, topic: str, queue: int, level: int) -> None:
        self.run(self._prepare(count, topic, queue, level))

    async def _prepare(self, count: int, topic: str, queue: int, level: int) -> None:
        names = []
        for _ in range(count):
            self._count += 1
            names.append(f"m{self._count}")
            self.messages[names[-1]], self.transactions[names[-1]] = Message(topic, queue, level), Transaction()
        asked = {} if not level else {"DELAY": str(level)}
        if level == TIMERS:
            asked = {"TIMER_DELAY_MS": str(self.dice.choice(DELAYS_MS))}
        records = [half(name, topic=topic, queue=queue, body=name.encode(), **asked) for name in names]
        try:
            prepared = self.preparing.stage(b"".join(records))
        except (DiskFull, ReadOnly):
            self._prepare_refused(names)
            return
        assert not any(prepared.outcome.statuses)
        places = zip(prepared.outcome.queue_offsets, prepared.positions, strict=True)
        halves = [store_pb2.Half(offset=offset, position=position) for offset, position in places]
        answered, refused = partial(self._prepared, names, halves), partial(self._prepare_refused, names)
        self._call(Call(self._future(), answered, refused))

    def _call(self, call: Call) -> None:
        self.calls.append(call)
        self._settle()

    def _prepared(self, names: list[str], halves: list[store_pb2.Half]) -> None:
        for name, one in zip(names, halves, strict=True):
            self.transactions[name].half = one

    def _prepare_refused(self, names: list[str]) -> None:
        for name in names:
            self.transactions[name].refused = True

    def end(self, count: int, *, newest: bool) -> None:
        """Ends some transactions, open or not, some of them both ways in one call."""
        known = [name for name, one in self.transactions.items() if one.half is not None]
        known = known[-count:] if newest else self.dice.sample(known, min(count, len(known)))
        if known:
            self.run(self._end_these([(name, self.dice.choice((COMMIT, COMMIT, ROLLBACK, UNKNOWN))) for name in known]))

    async def _end_these(self, chosen: list[tuple[str, int]]) -> None:
        chosen += [(name, ROLLBACK) for name, _ in chosen[:1]]
        ends = [end_of(cast("store_pb2.Half", self.transactions[name].half), name, code) for name, code in chosen]
        with suppress(DiskFull, ReadOnly):
            self.store.gate.check_write()
            results = staged_ends(self.ending, "g", ends)
            self._call(Call(self._future(), partial(self._ended, [name for name, _ in chosen], results)))

    def _ended(self, names: list[str], results: list[Result]) -> None:
        for name, result in zip(names, results, strict=True):
            one, message = self.transactions[name], self.messages[name]
            assert not result.HasField("fault"), result
            if result.state == OPEN:
                assert one.state is None, f"{name} was answered as {one.state} and is open"
                continue
            assert one.state in (None, result.state), f"{name} was answered as {one.state} and is {result.state}"
            one.state = result.state
            if result.state == COMMITTED:
                assert message.offset in (None, result.sent.offset)
                message.offset = result.sent.offset

    # --- checks -------------------------------------------------------------------------------------------------------

    def found(self) -> Iterator[tuple[str, int, int, Record | None]]:
        self.halves = {}
        for topic, queue, offset, one in super().found():
            if topic == HALF_TOPIC and one is not None:
                name = decode_properties(one.properties)["UNIQ_KEY"]
                assert name not in self.halves, f"{name} was prepared twice"
                self.halves[name] = offset
            elif topic not in (HALF_TOPIC, OP_TOPIC):
                yield topic, queue, offset, one

    def check(self) -> None:
        super().check()
        names = list(self.halves)
        offsets = np.array([self.halves[name] for name in names], np.int64)
        units = self.store.halves.units(offsets)
        opened = []
        for name, end in zip(names, self.store.halves.ends(self.store.halves.tags(offsets, units)), strict=True):
            one, message = self.transactions[name], self.messages[name]
            assert not one.refused, f"{name} was refused and is there"
            state = OPEN if end is None else STATES[end.code]
            assert one.state in (None, state), f"{name} was answered as {one.state} and is {state}"
            assert (message.offset is not None) == (state == COMMITTED), f"{name} is {state}: {message}"
            if end is None:
                opened.append(self.halves[name])
            else:
                one.state = state
        for name, one in self.transactions.items():
            assert one.half is None or self.halves.get(name) == one.half.offset, f"{name} was prepared and is not there"
        table = self.opened.transactions.page(-1, "", 1_000_000)
        assert table.offsets.tolist() == sorted(opened)
        assert transactions_pb2.TRANSACTION_STATE_GIVEN_UP not in {one.state for one in self.transactions.values()}
