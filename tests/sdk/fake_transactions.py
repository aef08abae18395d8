"""The transactions of a fake gateway, and what goes wrong with them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from duetime.v1 import gateway_pb2, message_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_core import errors
from duetime_core.serving import status_of

from tests.sdk.fake_gateway import FakeGateway

NOW_MS = 1_800_000_000_000
OPEN, COMMITTED = pb.TRANSACTION_STATE_OPEN, pb.TRANSACTION_STATE_COMMITTED
ROLLED_BACK, GIVEN_UP = pb.TRANSACTION_STATE_ROLLED_BACK, pb.TRANSACTION_STATE_GIVEN_UP
_STATES = {pb.DECISION_COMMIT: COMMITTED, pb.DECISION_ROLLBACK: ROLLED_BACK}
_MESSAGE_STATES = {
    OPEN: gateway_pb2.MESSAGE_STATE_PREPARED,
    COMMITTED: gateway_pb2.MESSAGE_STATE_STORED,
    ROLLED_BACK: gateway_pb2.MESSAGE_STATE_ROLLED_BACK,
    GIVEN_UP: gateway_pb2.MESSAGE_STATE_GIVEN_UP,
}


@dataclass
class Half:
    group: str
    message: message_pb2.Message
    state: int = OPEN
    checks: int = 0


@dataclass
class FakeTransactions(FakeGateway):
    """Transactions `t0`, `t1`, ... in order of prepare. `statuses`: with which the next calls of a method end, after
    they were carried out."""

    halves: dict[str, Half] = field(default_factory=dict)
    # Of transactions, by the message's.
    ids: dict[str, str] = field(default_factory=dict)
    prepares: list[pb.PrepareRequest] = field(default_factory=list)
    ends: list[pb.EndTransactionRequest] = field(default_factory=list)
    lists: list[pb.ListTransactionsRequest] = field(default_factory=list)
    statuses: dict[str, deque[grpc.StatusCode]] = field(default_factory=dict)
    # Streams that are open, by group: what is put in is given to the watcher; None ends the stream.
    watchers: dict[str, "asyncio.Queue[list[pb.TransactionCheck] | None]"] = field(default_factory=dict)
    # Every answer of a stream: transaction id and decision.
    answers: list[tuple[str, int]] = field(default_factory=list)
    watch_count: int = 0
    # Set: an End waits for it before it is carried out.
    end_gate: asyncio.Event | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: Any) -> None:
        """Returns once something is true; it is looked at after each change."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def note(self) -> None:
        self._changed.set()

    async def Prepare(self, request: pb.PrepareRequest, context: Any) -> pb.PrepareResponse:
        self.prepares.append(request)
        self.note()
        response = pb.PrepareResponse(results=[self._prepare(request, message) for message in request.messages])
        await self._fail("Prepare", context)
        return response

    def _prepare(self, request: pb.PrepareRequest, message: message_pb2.Message) -> pb.PrepareResult:
        if message.replace:
            violation = message_pb2.FieldViolation(field="replace", description="a transaction replaces nothing")
            return pb.PrepareResult(
                fault=message_pb2.Fault(code=3, reason="MESSAGE_INVALID", message="replace: no", violations=[violation])
            )
        known = self.ids.get(message.id)
        transaction_id = known or f"t{len(self.halves)}"
        if known is None:
            self.ids[message.id] = transaction_id
            self.halves[transaction_id] = Half(request.group, message)
        return pb.PrepareResult(
            message_id=message.id,
            transaction_id=transaction_id,
            check_at_ms=NOW_MS + (request.check_immunity_s or 6) * 1000,
            duplicate=known is not None,
        )

    async def EndTransaction(self, request: pb.EndTransactionRequest, context: Any) -> pb.EndTransactionResponse:
        self.ends.append(request)
        self.note()
        if self.end_gate is not None:
            await self.end_gate.wait()
        results = [self._end(request.group, end, request.given_up) for end in request.ends]
        self.note()
        await self._fail("EndTransaction", context)
        return pb.EndTransactionResponse(results=results)

    def _end(self, group: str, end: pb.TransactionEnd, given_up: bool) -> pb.EndTransactionResult:
        half = self.halves.get(end.transaction_id)
        if half is None:
            return _refused(5, "TRANSACTION_NOT_FOUND", f"no transaction {end.transaction_id}")
        if half.group != group:
            return _refused(7, "TRANSACTION_OF_ANOTHER_GROUP", f"{end.transaction_id} is another group's")
        if half.state == GIVEN_UP and not given_up:
            return _refused(9, "TRANSACTION_GIVEN_UP", f"{end.transaction_id} was given up")
        duplicate = half.state in (COMMITTED, ROLLED_BACK)
        if not duplicate:
            half.state = _STATES.get(end.decision, half.state)
        result = pb.EndTransactionResult(duplicate=duplicate)
        result.state = half.state  # type: ignore[assignment]
        if half.state == COMMITTED:
            lane = 1_000 if half.message.WhichOneof("due") else 0
            due_at_ms = NOW_MS + half.message.delay_ms if lane else 0
            result.sent.CopyFrom(
                message_pb2.SendResult(
                    message_id=half.message.id, shard=0, queue=1, offset=7, lane=lane, deliver_at_ms=due_at_ms
                )
            )
        return result

    async def WatchTransactions(
        self, requests: AsyncIterator[pb.WatchTransactionsRequest], context: Any
    ) -> AsyncIterator[pb.WatchTransactionsResponse]:
        self.watch_count += 1
        self.note()
        await self._fail("WatchTransactions", context)
        group = (await anext(requests)).group
        if all(half.group != group for half in self.halves.values()):
            await context.abort_with_status(
                status_of(errors.NotFound(f"no producer group {group}", reason="GROUP_NOT_FOUND"))
            )
        queue: asyncio.Queue[list[pb.TransactionCheck] | None] = asyncio.Queue()

        async def read() -> None:
            async for request in requests:
                for end in request.ends:
                    self.answers.append((end.transaction_id, end.decision))
                    self._end(group, end, given_up=False)
                self.note()

        reading = asyncio.create_task(read())
        try:
            yield pb.WatchTransactionsResponse()
            self.watchers[group] = queue
            self.note()
            while (checks := await queue.get()) is not None:
                yield pb.WatchTransactionsResponse(checks=checks)
        finally:
            self.watchers.pop(group, None)
            reading.cancel()
            self.note()

    def ask(self, group: str, *ids: str) -> None:
        """Gives the watcher of a group checks."""
        checks = []
        for transaction_id in ids:
            half = self.halves[transaction_id]
            half.checks += 1
            message = message_pb2.StoredMessage(
                topic=half.message.topic,
                body=half.message.body,
                properties=half.message.properties,
                tags=half.message.tags,
                keys=half.message.keys,
                id=half.message.id,
                stored_at_ms=NOW_MS,
            )
            checks.append(pb.TransactionCheck(transaction_id=transaction_id, message=message, number=half.checks))
        self.watchers[group].put_nowait(checks)

    async def ListTransactions(self, request: pb.ListTransactionsRequest, context: Any) -> pb.ListTransactionsResponse:
        self.lists.append(pb.ListTransactionsRequest.FromString(request.SerializeToString()))
        found = [
            self._transaction(id_)
            for id_, half in self.halves.items()
            if half.state in (OPEN, GIVEN_UP)
            and request.group in ("", half.group)
            and request.topic in ("", half.message.topic)
            and request.state in (0, half.state)
        ]
        first = int(request.page_token or "0")
        more = str(first + 3) if first + 3 < len(found) else ""
        return pb.ListTransactionsResponse(transactions=found[first : first + 3], next_page_token=more)

    async def GetTransaction(self, request: pb.GetTransactionRequest, context: Any) -> pb.GetTransactionResponse:
        for id_, half in self.halves.items():
            if request.id in (id_, half.message.id):
                response = pb.GetTransactionResponse(transaction=self._transaction(id_))
                response.message.body = half.message.body
                if half.state == COMMITTED:
                    response.sent.message_id = half.message.id
                return response
        await context.abort_with_status(
            status_of(errors.NotFound(f"no transaction {request.id}", reason="TRANSACTION_NOT_FOUND"))
        )
        raise AssertionError

    async def GetMessage(self, request: gateway_pb2.GetMessageRequest, context: Any) -> gateway_pb2.FoundMessage:
        half = self.halves[self.ids[request.id]]
        found = gateway_pb2.FoundMessage(message=message_pb2.StoredMessage(id=request.id, topic=half.message.topic))
        found.state = _MESSAGE_STATES[half.state]  # type: ignore[assignment]
        found.message.body = half.message.body
        return found

    def _transaction(self, transaction_id: str) -> pb.Transaction:
        half = self.halves[transaction_id]
        is_open = half.state == OPEN
        found = pb.Transaction(
            transaction_id=transaction_id,
            message_id=half.message.id,
            group=half.group,
            topic=half.message.topic,
            queue=1,
            shard=0,
            prepared_at_ms=NOW_MS,
            checks=half.checks,
            next_check_at_ms=NOW_MS + 6_000 if is_open else 0,
            ended_at_ms=0 if is_open else NOW_MS + 9_000,
        )
        found.state = half.state  # type: ignore[assignment]
        return found

    async def _fail(self, method: str, context: Any) -> None:
        if self.statuses.get(method):
            await context.abort(self.statuses[method].popleft(), "as the test wants it")


async def _not_found(context: Any, reason: str, text: str) -> None:
    await context.abort_with_status(status_of(errors.NotFound(text, reason=reason)))


def _refused(code: int, reason: str, text: str) -> pb.EndTransactionResult:
    return pb.EndTransactionResult(fault=message_pb2.Fault(code=code, reason=reason, message=text))
