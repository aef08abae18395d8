"""The transactions of a fake store: a dictionary, and checks that a test makes due."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from duetime.v1 import message_pb2, store_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_core.calls import fault_of
from duetime_core.errors import DueTimeError, FailedPrecondition, NotFound, Overloaded
from duetime_format import record
from duetime_format.halves import group_of, message_id_of
from duetime_format.properties import decode_properties

OPEN, COMMITTED = pb.TRANSACTION_STATE_OPEN, pb.TRANSACTION_STATE_COMMITTED
ROLLED_BACK, GIVEN_UP = pb.TRANSACTION_STATE_ROLLED_BACK, pb.TRANSACTION_STATE_GIVEN_UP
CHECKED_AFTER_MS = 6_000


class Half:
    """A half message."""

    def __init__(self, data: bytes, offset: int, position: int) -> None:
        self.found = record.decode(data)
        self.data = data
        self.offset, self.position = offset, position
        self.state = OPEN
        self.checks = 0
        self.is_due = False
        self.message_id, self.group = message_id_of(self.found.properties), group_of(self.found.properties)

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.found.properties)


class FakeTransactions:
    """Of one shard."""

    def __init__(self, shard: int, now_ms: int) -> None:
        self.shard = shard
        self.now_ms = now_ms
        self.halves: list[Half] = []
        self.open_max = 1_000_000
        self.prepares: list[store_pb2.PrepareRecordsRequest] = []
        self.ends: list[store_pb2.EndTransactionsRequest] = []
        self.takes: list[store_pb2.TakeChecksRequest] = []
        self.reports: list[store_pb2.ReportChecksRequest] = []
        # Calls of TakeChecks that wait.
        self.waiting = 0
        self.changed = asyncio.Condition()

    # --- for tests --------------------------------------------------------------------------------------------------

    async def make_due(self, *offsets: int) -> None:
        """These are to be checked now."""
        async with self.changed:
            for offset in offsets:
                self.halves[offset].is_due = True
            self.changed.notify_all()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns once `holds`."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(holds)

    @property
    def heard(self) -> list[int]:
        return [offset for one in self.reports for offset in one.heard]

    @property
    def unheard(self) -> list[int]:
        return [offset for one in self.reports for offset in one.unheard]

    # --- calls ------------------------------------------------------------------------------------------------------

    def prepare(self, request: store_pb2.PrepareRecordsRequest) -> store_pb2.PrepareRecordsResponse:
        self.prepares.append(request)
        answer = store_pb2.PrepareRecordsResponse()
        known = {one.message_id: one for one in self.halves}
        at = index = 0
        while at < len(request.records):
            size = record.decode(request.records, at).size
            half = Half(request.records[at : at + size], len(self.halves), 1_000 * len(self.halves))
            at += size
            first = known.get(half.message_id)
            if first is not None:
                answer.statuses.append(store_pb2.PUT_STATUS_DUPLICATE)
                half = first
            elif len(self.halves) >= self.open_max:
                answer.statuses.append(store_pb2.PUT_STATUS_REFUSED)
                error = Overloaded("too many", reason="TRANSACTIONS_EXHAUSTED")
                answer.faults[index].CopyFrom(fault_of(error))
                half.offset = half.position = -1
            else:
                answer.statuses.append(store_pb2.PUT_STATUS_OK)
                self.halves.append(half)
                known[half.message_id] = half
            answer.offsets.append(half.offset)
            answer.positions.append(half.position)
            answer.check_at_ms.append(self.now_ms + CHECKED_AFTER_MS)
            index += 1
        return answer

    def end(self, request: store_pb2.EndTransactionsRequest) -> store_pb2.EndTransactionsResponse:
        self.ends.append(request)
        answer = store_pb2.EndTransactionsResponse()
        columns = zip(request.offsets, request.positions, request.message_ids, request.decisions, strict=True)
        for index, (offset, position, message_id, decision) in enumerate(columns):
            half = store_pb2.Half(offset=offset, position=position)
            try:
                result = self._end(request, half, message_id.decode(), decision)
            except DueTimeError as error:
                result = pb.EndTransactionResult(fault=fault_of(error))
            is_plain = result.HasField("sent") and not result.duplicate
            answer.states.append(result.state)
            answer.offsets.append(result.sent.offset if is_plain else -1)
            answer.queues.append(result.sent.queue if is_plain else 0)
            answer.topic_of.append(index)
            answer.topics.append(result.topic)
            if not is_plain and (result.HasField("fault") or result.duplicate):
                answer.others[index].CopyFrom(result)
        return answer

    def _end(
        self, request: store_pb2.EndTransactionsRequest, named: store_pb2.Half, message_id: str, decision: int
    ) -> pb.EndTransactionResult:
        half = self._find(named)
        if half is None or half.message_id != message_id:
            raise NotFound("no such transaction", reason="TRANSACTION_NOT_FOUND")
        if half.group != request.group:
            raise DueTimeError("another group's", reason="TRANSACTION_OF_ANOTHER_GROUP")
        if half.state == GIVEN_UP and not request.given_up:
            raise FailedPrecondition("given up", reason="TRANSACTION_GIVEN_UP")
        duplicate = half.state in (COMMITTED, ROLLED_BACK)
        if not duplicate and decision != pb.DECISION_UNKNOWN:
            half.state = COMMITTED if decision == pb.DECISION_COMMIT else ROLLED_BACK
        result = pb.EndTransactionResult(state=half.state, duplicate=duplicate)
        if half.state == COMMITTED:
            properties = half.properties
            queue = int(properties[record.REAL_QID])
            sent = message_pb2.SendResult(message_id=half.message_id, shard=self.shard, queue=queue, offset=half.offset)
            result.sent.CopyFrom(sent)
            result.topic = properties[record.REAL_TOPIC]
        return result

    def _find(self, named: store_pb2.Half) -> Half | None:
        return next((one for one in self.halves if (one.offset, one.position) == (named.offset, named.position)), None)

    async def take(self, request: store_pb2.TakeChecksRequest) -> store_pb2.TakeChecksResponse:
        self.takes.append(request)

        def due() -> list[Half]:
            return [one for one in self.halves if one.is_due and one.group in request.groups]

        async with self.changed:
            self.waiting += 1
            self.changed.notify_all()
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(request.wait_ms / 1000.0):
                        await self.changed.wait_for(due)
            finally:
                self.waiting -= 1
            taken = due()[: request.max_count]
            for one in taken:
                one.is_due = False
        return store_pb2.TakeChecksResponse(
            checks=[
                store_pb2.TakenCheck(half=self._half(one), group=one.group, checks=one.checks, record=one.data)
                for one in taken
            ]
        )

    async def report(self, request: store_pb2.ReportChecksRequest) -> store_pb2.ReportChecksResponse:
        async with self.changed:
            self.reports.append(request)
            for offset in request.heard:
                self.halves[offset].checks += 1
            for offset in request.unheard:
                self.halves[offset].is_due = True
            self.changed.notify_all()
        return store_pb2.ReportChecksResponse()

    def list(self, request: pb.ListTransactionsRequest) -> store_pb2.ListHalvesResponse:
        first = int(request.page_token or 0)
        found = [
            one
            for one in self.halves[first:]
            if one.state in ((OPEN, GIVEN_UP) if not request.state else (request.state,))
            and request.group in ("", one.group)
            and request.topic in ("", one.properties[record.REAL_TOPIC])
        ]
        page = found[: request.page_size]
        token = str(page[-1].offset + 1) if len(found) > len(page) else ""
        return store_pb2.ListHalvesResponse(halves=map(self._transaction, page), next_page_token=token)

    def get(self, request: store_pb2.GetHalfRequest) -> store_pb2.GetHalfResponse:
        half = self._find(request.half) if request.HasField("half") else None
        if request.message_id:
            half = next((one for one in self.halves if one.message_id == request.message_id), None)
        if half is None:
            raise NotFound("no such transaction", reason="TRANSACTION_NOT_FOUND")
        return store_pb2.GetHalfResponse(half=self._transaction(half), record=half.data)

    def _half(self, one: Half) -> store_pb2.Half:
        return store_pb2.Half(offset=one.offset, position=one.position)

    def _transaction(self, one: Half) -> store_pb2.HalfTransaction:
        properties = one.properties
        transaction = pb.Transaction(
            message_id=one.message_id,
            group=one.group,
            topic=properties[record.REAL_TOPIC],
            queue=int(properties[record.REAL_QID]),
            state=one.state,
            prepared_at_ms=self.now_ms + one.offset,
            checks=one.checks,
        )
        return store_pb2.HalfTransaction(half=self._half(one), transaction=transaction)
