"""Prepares half messages and ends transactions: batched requests, repeated until the timeout.

A lost answer is harmless: a prepare is repeated with the same message id, and an end is idempotent. An undelivered end
leaves the transaction open: its producer group is asked about it.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime

from duetime_format.limits import CHECK_IMMUNITY_S_MAX

from duetime.client import tracing
from duetime.client.connection import GatewayConnection
from duetime.client.errors import DueTimeError, InvalidArgument, Overloaded
from duetime.client.ids import new_id
from duetime.client.lengths import Length, seconds
from duetime.client.message import Message, Receipt, moment
from duetime.client.sending.batch import MessageBatch, SendBatch, encode, now_ms
from duetime.client.sending.calls import Calls
from duetime.client.sending.capacity import Capacity
from duetime.client.sending.checking import CheckRegistry
from duetime.client.sending.chunks import Chunks
from duetime.client.sending.delivery import BatchDeliverer
from duetime.client.sending.gatherer import SendGatherer
from duetime.client.sending.letters import OutgoingMessage
from duetime.client.transaction import STATES, Decision, TransactionRef, TransactionState
from duetime.v1 import transactions_pb2 as pb

# Concurrent requests of one `prepare_many`, and of one `end_many` and group.
REQUESTS_IN_FLIGHT_MAX = 4
# Ends in one request.
END_COUNT_MAX = 1_024

_PREPARE = "/duetime.v1.Gateway/Prepare"
_END = "/duetime.v1.Gateway/EndTransaction"

log = logging.getLogger("duetime.producer")


class Prepared(TransactionRef):
    """A stored message, invisible until its transaction is committed. Fields are decoded on access."""

    __slots__ = ("_group", "_ordered", "_result", "_topic")

    def __init__(self, result: pb.PrepareResult, topic: str, group: str) -> None:
        self._result = result
        self._topic = topic
        self._group = group
        self._ordered = False

    def keep_order(self) -> None:
        """Makes the ends of this and other transactions follow each other."""
        self._ordered = True

    def _is_ordered(self) -> bool:
        return self._ordered

    @property
    def id(self) -> str:
        return self._result.transaction_id

    @property
    def message_id(self) -> str:
        return self._result.message_id

    @property
    def group(self) -> str:
        return self._group

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def shard(self) -> int:
        return self._result.shard

    @property
    def check_at(self) -> datetime:
        """The time of the first check, if the transaction is open by then; by the server's clock."""
        return moment(self._result.check_at_ms)

    @property
    def requested_level(self) -> int | None:
        """The requested delay level, if it is above the highest; the highest is applied. Else None."""
        return self._result.requested_level or None

    @property
    def duplicate(self) -> bool:
        """Whether an earlier request had prepared it; the transaction may have ended."""
        return self._result.duplicate

    def __repr__(self) -> str:
        return f"Prepared({self.id}, topic={self.topic!r}, group={self.group!r})"


class Ended:
    """The end of a transaction."""

    __slots__ = ("_result", "_topic")

    def __init__(self, result: pb.EndTransactionResult, topic: str) -> None:
        self._result = result
        self._topic = topic

    @property
    def state(self) -> TransactionState:
        """`committed`, `rolled back`, `given up`, or `open`: the first decision is final."""
        return STATES[self._result.state]

    @property
    def duplicate(self) -> bool:
        """Whether it had ended before."""
        return self._result.duplicate

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of a committed message, as from `send`; only the id if the message has left the log."""
        if self.state != "committed":
            return None
        return Receipt(self._result.sent, self._result.topic or self._topic)

    def __repr__(self) -> str:
        return f"Ended({self.state}{', duplicate=True' if self.duplicate else ''})"


class _ProducerGroup:
    """The requests of one producer group."""

    def __init__(self, connection: GatewayConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        self.preparing = SendGatherer(self.prepares().deliver)
        self.ending = SendGatherer(self.ends().deliver)
        self.warned = False

    def prepares(self, check_after_s: int = 0) -> BatchDeliverer[Prepared]:
        common = pb.PrepareRequest(group=self._name, check_immunity_s=check_after_s).SerializeToString()

        def read(result: pb.PrepareResult, topic: str) -> Prepared:
            return Prepared(result, topic, self._name)

        return BatchDeliverer(self._connection, _PREPARE, pb.PrepareResponse, read, common=common)

    def ends(self, *, given_up: bool = False) -> BatchDeliverer[Ended]:
        common = pb.EndTransactionRequest(group=self._name, given_up=given_up).SerializeToString()
        return BatchDeliverer(self._connection, _END, pb.EndTransactionResponse, Ended, common=common)


class ProducerTransactions:
    """The transactions of one producer. `calls` and `capacity` are shared with its sends."""

    def __init__(self, connection: GatewayConnection, timeout: float, capacity: Capacity, calls: Calls) -> None:
        self._connection = connection
        self._timeout = timeout
        self._capacity = capacity
        self._calls = calls
        self._groups: dict[str, _ProducerGroup] = {}
        self.checks = CheckRegistry(connection, self._answer)

    async def prepare(self, message: Message, group: str, check_after: Length | None) -> Prepared:
        """Stores one half message; concurrent calls share requests. Raises: DueTimeError."""
        if tracing.active is None:
            return await self._prepare(message, group, check_after)
        with tracing.active.sending(message) as carrying:
            return await self._prepare(carrying, group, check_after)

    async def _prepare(self, message: Message, group: str, check_after: Length | None) -> Prepared:
        deadline, requests, after_s = self._deadline(), self._group(group), _check_after_s(check_after)
        message_id = message.id or new_id()
        encoded = encode(message, message_id, now_ms(), pb.PrepareRequest)
        with self._calls:
            await self._capacity.acquire_within(1, len(encoded), deadline, self._timeout)
            try:
                if after_s:
                    batch = SendBatch([encoded], [message_id], [message.topic], len(encoded), False, pb.PrepareRequest)
                    (outcome,) = await requests.prepares(after_s).deliver(batch, deadline)
                else:
                    outcome = await requests.preparing.send(
                        OutgoingMessage(message.topic, message_id, encoded), deadline
                    )
            finally:
                self._capacity.release(1, len(encoded))
        if isinstance(outcome, DueTimeError):
            raise outcome
        self._note_prepared(group)
        return outcome

    async def prepare_many(
        self, messages: Iterable[Message], group: str, check_after: Length | None
    ) -> list[Prepared | DueTimeError]:
        """An outcome for each, in order."""
        delivery = self._group(group).prepares(_check_after_s(check_after))
        if tracing.active is None:
            return await self._prepare_many(messages, group, delivery)
        with tracing.active.sending_many(messages) as carrying:
            return await self._prepare_many(carrying, group, delivery)

    async def _prepare_many(
        self, messages: Iterable[Message], group: str, delivery: BatchDeliverer[Prepared]
    ) -> list[Prepared | DueTimeError]:
        chunks: Chunks[Prepared] = Chunks(messages, pb.PrepareRequest)
        batches = iter(chunks)

        async def work() -> None:
            for indices, batch in batches:
                results = await self._deliver(delivery, batch)
                chunks.note(indices, results)
                for outcome in results if batch.ordered else ():
                    if isinstance(outcome, Prepared):
                        outcome.keep_order()
                if any(isinstance(one, Prepared) for one in results):
                    self._note_prepared(group)

        try:
            with self._calls:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(REQUESTS_IN_FLIGHT_MAX):
                        workers.create_task(work())
        except ExceptionGroup as errors:
            # Only iterating over `messages` raises; the caller expects that error, not a group.
            raise errors.exceptions[0] from None
        return [outcome for outcome in chunks.outcomes if outcome is not None]

    async def _deliver(
        self, delivery: BatchDeliverer[Prepared], batch: MessageBatch
    ) -> Sequence[Prepared | DueTimeError]:
        count, deadline = len(batch), self._deadline()
        try:
            await self._capacity.acquire_within(count, batch.size, deadline, self._timeout)
        except Overloaded as error:
            return [error.about(message_id) for message_id in batch.ids]
        try:
            return await delivery.deliver(batch, deadline)
        finally:
            self._capacity.release(count, batch.size)

    async def end(self, transaction: TransactionRef, decision: Decision) -> Ended:
        """Ends one transaction; concurrent calls share requests.

        Raises:
            DueTimeError: the end was rejected, or its result is unknown; the text says which.
        """
        encoded = _encoded(transaction, decision)
        requests = self._group(transaction.group)
        try:
            with self._calls:
                letter = OutgoingMessage(transaction.topic, transaction.message_id, encoded)
                outcome = await requests.ending.send(letter, self._deadline())
        except DueTimeError as error:
            outcome = error
        if isinstance(outcome, DueTimeError):
            raise _undecided(outcome, transaction, decision)
        return outcome

    async def end_many(
        self, transactions: Iterable[TransactionRef], decision: Decision, *, given_up: bool
    ) -> list[Ended | DueTimeError]:
        """An outcome for each, in order."""
        every = list(transactions)
        _check_decision(decision)
        _check_refs(every)
        by_group: dict[str, list[int]] = {}
        for index, transaction in enumerate(every):
            by_group.setdefault(transaction.group, []).append(index)
        outcomes: list[Ended | DueTimeError | None] = [None] * len(every)
        turn = asyncio.Lock()

        async def work(delivery: BatchDeliverer[Ended], parts: Iterator[Sequence[int]]) -> None:
            for part in parts:
                ordered = any(every[index]._is_ordered() for index in part)
                batch = _batch([every[index] for index in part], decision)
                # The lock is fair: the earlier part gets it first.
                async with turn if ordered else nullcontext():
                    ended = await delivery.deliver(batch, self._deadline())
                for index, outcome in zip(part, ended, strict=True):
                    if isinstance(outcome, DueTimeError):
                        outcomes[index] = _undecided(outcome, every[index], decision)
                    else:
                        outcomes[index] = outcome

        with self._calls:
            async with asyncio.TaskGroup() as workers:
                for group, indices in by_group.items():
                    delivery, parts = self._group(group).ends(given_up=given_up), _parts(indices)
                    for _ in range(REQUESTS_IN_FLIGHT_MAX):
                        workers.create_task(work(delivery, parts))
        return [outcome for outcome in outcomes if outcome is not None]

    async def close(self) -> None:
        """Ends the check handlers; then cancels the requests whose callers have stopped waiting."""
        await self.checks.close()
        for group in self._groups.values():
            await group.preparing.close()
            await group.ending.close()

    async def _answer(self, group: str, ends: Sequence[pb.TransactionEnd], timeout: float) -> None:
        """Sends answers to checks that no stream takes. Raises: DueTimeError."""
        await self._connection.call("EndTransaction", pb.EndTransactionRequest(group=group, ends=ends), timeout)

    def _group(self, name: str) -> _ProducerGroup:
        requests = self._groups.get(name)
        if requests is None:
            if not name or not isinstance(name, str):
                raise InvalidArgument.of("group", f"{name!r} is not a valid name of a producer group")
            requests = self._groups[name] = _ProducerGroup(self._connection, name)
        return requests

    def _note_prepared(self, group: str) -> None:
        self.checks.start()
        self.checks.note_prepared(group)
        requests = self._groups[group]
        if not requests.warned and not self.checks.has(group):
            requests.warned = True
            log.warning(
                "producer group %s: this producer has no check handler for it; without one in another producer, "
                "open transactions are given up eventually",
                group,
            )

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout


def _check_after_s(length: Length | None) -> int:
    """Whole seconds; 0: the server's default. Raises: InvalidArgument."""
    if length is None:
        return 0
    length_s = math.ceil(seconds(length, "check_after"))
    if not 1 <= length_s <= CHECK_IMMUNITY_S_MAX:
        raise InvalidArgument.of("check_after", f"{length!r} is not within 1 s and 72 h")
    return length_s


def _check_decision(decision: Decision) -> None:
    if decision not in (Decision.COMMIT, Decision.ROLLBACK):
        raise InvalidArgument.of("decision", f"{decision!r} is not an end: give Decision.COMMIT or Decision.ROLLBACK")


def _check_refs(transactions: Iterable[object]) -> None:
    for one in transactions:
        if not isinstance(one, TransactionRef):
            text = "is not a transaction from `prepare_many` or a finder; a `transaction` block ends itself"
            raise TypeError(f"{one!r} {text}")


def _encoded(transaction: TransactionRef, decision: Decision) -> bytes:
    """A request with this end alone."""
    end = pb.TransactionEnd(transaction_id=transaction.id, decision=decision.wire)
    return pb.EndTransactionRequest(ends=[end]).SerializeToString()


def _batch(transactions: Sequence[TransactionRef], decision: Decision) -> SendBatch:
    batch = SendBatch()
    for transaction in transactions:
        batch.add(_encoded(transaction, decision), transaction.message_id, transaction.topic)
    return batch


def _parts(indices: Sequence[int]) -> Iterator[Sequence[int]]:
    return (indices[at : at + END_COUNT_MAX] for at in range(0, len(indices), END_COUNT_MAX))


def _undecided(error: DueTimeError, transaction: TransactionRef, decision: Decision) -> DueTimeError:
    """The error, extended with the state of the transaction."""
    if error.reason.startswith("TRANSACTION_"):
        return error
    text = (
        f"{error.text}; it is unknown whether this {decision.value} ended transaction {transaction.id}: "
        f"if it is open, group {transaction.group} will be asked about it"
    )
    return error.about(transaction.message_id, text)
