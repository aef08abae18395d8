"""Ends the leases of failed messages: stores a copy together with the end, or makes the message wait in its place.

    decision      unordered group                        ordered group
    dead letter   put into %DLQ%group, with the end      the same
    redelivery    put into %RETRY%group, with the end    deferred in place: it keeps its turn

The store does both as one step, so a crash between them leaves no second copy and no lost message. Deferred messages go
first, in the order of the queue: the store ends the leases of later ones, so that a dead letter after a deferred
message is not put before its turn.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import time_ns

from duetime.v1 import consumer_pb2, store_pb2
from duetime_core.errors import DueTimeError
from duetime_core.rpc.calls import fault_of
from duetime_core.telemetry import tracing
from duetime_core.telemetry.logs import sparing
from duetime_format import attempts as histories
from duetime_format import names, record
from duetime_format.levels import DelayLevels

from duetime_retry.copies import FailedMessage, FailureCopy, NoRoom, dead_letter, id_of, retry_copy
from duetime_retry.delays import wait_of
from duetime_retry.metrics import RetryMetrics
from duetime_retry.policy import DeadLetterDecision, Decision, Redeliver
from duetime_retry.stores import Stores
from duetime_retry.topics import GroupTopics

log = sparing()

# Bytes of one put: several fit into the store's own limit for bytes waiting for a flush.
PUT_BYTES_MAX = 8 * 1024 * 1024
OK, EXPIRED = consumer_pb2.RECEIPT_STATUS_OK, consumer_pb2.RECEIPT_STATUS_EXPIRED


@dataclass(frozen=True, slots=True)
class FailureCase:
    """A failed message and the decision about it."""

    leased: store_pb2.LeasedRecord
    failed: FailedMessage
    decision: Decision
    # Whether it keeps its place, in an ordered group.
    stays: bool = False


@dataclass(slots=True)
class _Put:
    """A case's copy, on its way."""

    index: int
    case: FailureCase
    encoded: bytes
    copy: FailureCopy
    # Time of its redelivery, if the store does not return it.
    at_ms: int = 0
    way: str = ""


class FailureSettler:
    """Settles cases of one shard and one group at a time."""

    def __init__(self, stores: Stores, topics: GroupTopics, levels: DelayLevels, metrics: RetryMetrics) -> None:
        self._stores = stores
        self._topics = topics
        self._levels = levels
        self._metrics = metrics

    async def settle(
        self, shard: int, group: str, now_ms: int, cases: Sequence[FailureCase]
    ) -> list[consumer_pb2.NackResult]:
        """Returns the result of each case, in order; `now_ms`: the shard's clock when the leases were read."""
        began_ns = time_ns()
        results = [consumer_pb2.NackResult(attempt=case.leased.attempt) for case in cases]
        puts: list[_Put] = []
        deferred: list[int] = []
        # Sorted by the order of the queues, regardless of the caller's.
        for index, case in sorted(enumerate(cases), key=_place_of):
            put = self._put_of(index, group, case, now_ms)
            if put is None:
                deferred.append(index)
            else:
                puts.append(put)
        if deferred:
            try:
                await self._defer(shard, group, cases, deferred, results)
            except DueTimeError as error:
                # Whether they wait is unknown. In an ordered group no message may overtake them.
                _fail(deferred + [put.index for put in puts if put.case.stays], error, results)
                puts = [put for put in puts if not put.case.stays]
        for topic in (names.retry_topic(group), names.dlq_topic(group)):
            dead = topic == names.dlq_topic(group)
            same = [put for put in puts if isinstance(put.case.decision, DeadLetterDecision) == dead]
            try:
                if same:
                    await self._topics.ensure(topic, shard)
                for chunk in _chunks(same):
                    await self._store(shard, group, chunk, results)
            except DueTimeError as error:
                _fail([put.index for put in same], error, results)
        if tracing.active is not None:
            _trace(tracing.active, group, cases, results, began_ns)
        return results

    def _put_of(self, index: int, group: str, case: FailureCase, now_ms: int) -> _Put | None:
        """The case's copy; None: it has to wait in its place."""
        if isinstance(case.decision, DeadLetterDecision):
            copy = dead_letter(case.failed, group, case.decision.reason)
            return _Put(index, case, record.encode(copy.record), copy)
        if case.stays:
            return None
        wait = wait_of(case.decision.delay_ms, now_ms, self._levels)
        try:
            copy = retry_copy(case.failed, group, wait)
        except NoRoom as error:
            self._metrics.crowded.labels("in_place").inc()
            message_id = id_of(case.failed.record)
            log.info("message is retried in place", message_id=message_id, group=group, reason=str(error))
            return None
        way = "level" if wait.level else "timer" if wait.due_at_ms else "at_once"
        return _Put(index, case, record.encode(copy.record), copy, wait.due_at_ms or now_ms, way)

    # --- in place ---------------------------------------------------------------------------------------------------

    async def _defer(
        self,
        shard: int,
        group: str,
        cases: Sequence[FailureCase],
        indices: list[int],
        results: list[consumer_pb2.NackResult],
    ) -> None:
        """Raises: DueTimeError: the shard does not answer, or rejects the request."""
        request = store_pb2.DeferRequest(group=group)
        for index in indices:
            case = cases[index]
            assert isinstance(case.decision, Redeliver)
            history = histories.encode(case.failed.history) or ""
            request.deferrals.add(
                receipt=case.leased.receipt, delay_ms=case.decision.delay_ms, history=history.encode()
            )
        answer = await self._stores.call(shard, "Defer", request)
        statuses = answer.statuses or [OK] * len(indices)
        for index, status, at_ms in zip(indices, statuses, answer.deliver_at_ms, strict=True):
            results[index].status = status
            if status == OK:
                results[index].deliver_at_ms = at_ms
                self._metrics.retries.labels("in_place").inc()

    # --- copies -----------------------------------------------------------------------------------------------------

    async def _store(
        self, shard: int, group: str, puts: Sequence[_Put], results: list[consumer_pb2.NackResult]
    ) -> None:
        request = store_pb2.SettleRequest(records=b"".join(put.encoded for put in puts))
        for number, put in enumerate(puts):
            request.settles.add(record=number, receipt=put.case.leased.receipt, group=group)
        try:
            answer: store_pb2.SettleResponse = await self._stores.call(shard, "Settle", request)
        except DueTimeError as error:
            _fail([put.index for put in puts], error, results)
            return
        statuses = answer.statuses or [store_pb2.PUT_STATUS_OK] * len(puts)
        dues = answer.due_at_ms or [0] * len(puts)
        for number, (put, status, due_at_ms) in enumerate(zip(puts, statuses, dues, strict=True)):
            result = results[put.index]
            if status == store_pb2.PUT_STATUS_OK:
                self._fill_result(group, put, due_at_ms or put.at_ms, result)
            elif status == store_pb2.PUT_STATUS_SETTLED:
                result.status = EXPIRED
            else:
                result.fault.CopyFrom(answer.faults[number])

    def _fill_result(self, group: str, put: _Put, at_ms: int, result: consumer_pb2.NackResult) -> None:
        decision = put.case.decision
        result.stored_bytes = len(put.copy.record.body)
        if isinstance(decision, DeadLetterDecision):
            result.dead = True
            self._metrics.dead_letters.labels(decision.reason).inc()
            log.info(
                "dead letter",
                group=group,
                message_id=id_of(put.case.failed.record),
                reason=decision.reason,
                attempts=put.case.failed.attempt,
            )
        else:
            result.deliver_at_ms = at_ms
            self._metrics.retries.labels(put.way).inc()
        if not put.copy.has_history:
            self._metrics.crowded.labels("history").inc()
            log.info("no space for the history in its message", group=group, message_id=id_of(put.case.failed.record))
        if put.copy.lost:
            self._metrics.crowded.labels("property").inc()
            log.warning(
                "dead letter lost properties for lack of space",
                group=group,
                message_id=id_of(put.case.failed.record),
                properties=put.copy.lost,
            )


def _trace(
    active: tracing.ProcessTracer,
    group: str,
    cases: Sequence[FailureCase],
    results: Sequence[consumer_pb2.NackResult],
    began_ns: int,
) -> None:
    """Makes spans of the messages settled now."""
    ended_ns = time_ns()
    for case, result in zip(cases, results, strict=True):
        context = active.context_of(case.failed.record)
        if context is not None and result.status == OK and not result.HasField("fault"):
            what = "dead letter" if result.dead else "retry"
            of_group = {"messaging.consumer.group.name": group, "duetime.attempt": result.attempt}
            active.message(what, case.failed.record, context, began_ns, ended_ns, **of_group)


def _fail(indices: Sequence[int], error: DueTimeError, results: list[consumer_pb2.NackResult]) -> None:
    for index in indices:
        results[index].fault.CopyFrom(fault_of(error))


def _place_of(numbered: tuple[int, FailureCase]) -> tuple[str, int, int]:
    leased = numbered[1].leased
    return leased.topic, leased.queue, leased.offset


def _chunks(puts: Sequence[_Put]) -> Iterator[list[_Put]]:
    chunk: list[_Put] = []
    size = 0
    for put in puts:
        if chunk and size + len(put.encoded) > PUT_BYTES_MAX:
            yield chunk
            chunk, size = [], 0
        chunk.append(put)
        size += len(put.encoded)
    if chunk:
        yield chunk


def by_group(leased: Sequence[store_pb2.LeasedRecord]) -> dict[str, list[store_pb2.LeasedRecord]]:
    groups: dict[str, list[store_pb2.LeasedRecord]] = defaultdict(list)
    for one in leased:
        groups[one.group].append(one)
    return groups
