"""Possible answers of stores, and the handling of the results: stores in memory with scripted answers."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, message_pb2, store_pb2
from duetime_core.clock import turn
from duetime_core.errors import DueTimeError, Overloaded, Unavailable
from duetime_core.testing import FakeClock
from duetime_format import receipts, record
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.properties import encode_properties
from duetime_format.record import Record
from duetime_retry import exhausted, stores
from duetime_retry.decision import Decider
from duetime_retry.exhausted import Collector
from duetime_retry.metrics import RetryMetrics
from duetime_retry.nacks import Nacks
from duetime_retry.policies import RetryRules
from duetime_retry.settling import FailureSettler
from prometheus_client import CollectorRegistry

OK, EXPIRED, UNKNOWN = range(3)
NOW_MS = 1_700_000_000_000
LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


class Stores(stores.Stores):
    """Shard 0 has a lease on every receipt; `put` and `look` answer, or raise."""

    def __init__(self) -> None:
        super().__init__({}, 1_000)
        self.bodies: dict[bytes, bytes] = {}
        self.calls: list[tuple[str, Any]] = []
        self.put: Callable[[store_pb2.SettleRequest], store_pb2.SettleResponse] = self.take
        self.take_answers: list[store_pb2.GetLeasedResponse | DueTimeError] = []
        self.nothing_taken = asyncio.Event()
        self.answer_bytes_max = 1 << 25

    def take(self, request: store_pb2.SettleRequest) -> store_pb2.SettleResponse:
        return store_pb2.SettleResponse(queue_offsets=[0] * len(request.settles))

    async def call(self, shard: int, method: str, request: Any, *, wait_ms: int = 0) -> Any:
        self.calls.append((method, request))
        await turn()
        if method == "Settle":
            return self.put(request)
        if method == "Defer":
            raise Unavailable("gone", reason="SHARD_UNAVAILABLE")
        if method == "TakeExhausted":
            if not self.take_answers:
                self.nothing_taken.set()
                await asyncio.Event().wait()
            answer = self.take_answers.pop(0)
            if isinstance(answer, DueTimeError):
                raise answer
            return answer
        answer = store_pb2.GetLeasedResponse(now_ms=NOW_MS)
        for receipt in request.receipts:
            if answer.ByteSize() < self.answer_bytes_max:
                answer.leased.append(self.leased_one(receipt))
        return answer

    def leased_one(self, receipt: bytes, attempt: int = 1) -> store_pb2.LeasedRecord:
        found = receipts.parse(receipt)
        assert found is not None
        properties = encode_properties({"UNIQ_KEY": f"id{found.offset}"})
        data = record.encode(Record("orders", 0, self.bodies.get(receipt, b""), properties, queue_offset=found.offset))
        return store_pb2.LeasedRecord(
            receipt=receipt, group="billing", record=data, attempt=attempt, topic="orders", offset=found.offset
        )

    def made(self, method: str) -> list[Any]:
        return [request for called, request in self.calls if called == method]


class Topics:
    """Routes of a metadata database that answers, or does not."""

    def __init__(self) -> None:
        self.error: DueTimeError | None = None

    async def ensure(self, topic: str, shard: int) -> None:
        if self.error is not None and topic.startswith("%DLQ%"):
            raise self.error

    async def queue_at(self, topic: str, shard: int, number: int) -> int:
        return number


class Policies:
    def __init__(self) -> None:
        self.error: DueTimeError | None = None
        self.asked = 0
        self.ordered = False

    async def of_group(self, group: str) -> RetryRules:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return RetryRules(ordered=self.ordered)


class Service:
    def __init__(self) -> None:
        self.stores, self.topics, self.clock = Stores(), Topics(), FakeClock()
        self.registry = CollectorRegistry()
        self.metrics = RetryMetrics(self.registry)
        topics: Any = self.topics
        self.policies = Policies()
        policies: Any = self.policies
        settler = FailureSettler(self.stores, topics, LEVELS, self.metrics)
        self.decider = Decider(policies, topics, settler, LEVELS, self.metrics)
        self.nacks = Nacks(self.stores, self.decider, self.metrics)

    async def nack(self, names: list[bytes], **options: Any) -> list[consumer_pb2.NackResult]:
        nacks = [consumer_pb2.Nack(receipt=name, **options) for name in names]
        return await self.nacks.nack(consumer_pb2.NackRequest(group="billing", nacks=nacks))

    def faults(self, reason: str) -> float:
        return self.registry.get_sample_value("duetime_retry_faults_total", {"reason": reason}) or 0.0


def names(count: int, lease: int = 5) -> list[bytes]:
    return receipts.pack(0, lease, range(count))


async def test_each_status_of_a_put_becomes_its_result() -> None:
    service = Service()
    refused = message_pb2.Fault(reason="RECORD_REFUSED", message="no")

    def put(request: store_pb2.SettleRequest) -> store_pb2.SettleResponse:
        statuses = [store_pb2.PUT_STATUS_OK, store_pb2.PUT_STATUS_SETTLED, store_pb2.PUT_STATUS_REFUSED]
        due_at_ms = [NOW_MS + 10_003, 0, 0]
        return store_pb2.SettleResponse(statuses=statuses, due_at_ms=due_at_ms, faults={2: refused})

    service.stores.put = put
    results = await service.nack(names(3))
    assert [(one.status, one.deliver_at_ms) for one in results] == [(OK, NOW_MS + 10_003), (EXPIRED, 0), (OK, 0)]
    assert results[2].fault == refused
    assert service.faults("RECORD_REFUSED") == 1
    (request,) = service.stores.made("Settle")
    assert [(one.record, one.receipt, one.group) for one in request.settles] == [
        (number, name, "billing") for number, name in enumerate(names(3))
    ]


async def test_put_that_fails_is_a_fault_of_each_and_of_no_other() -> None:
    service = Service()
    service.topics.error = Unavailable("away", reason="METADATA_UNAVAILABLE")
    asked = names(2)
    request = consumer_pb2.NackRequest(group="billing")
    request.nacks.add(receipt=asked[0])
    request.nacks.add(receipt=asked[1], reject=True)
    results = await service.nacks.nack(request)
    assert [one.fault.reason for one in results] == ["", "METADATA_UNAVAILABLE"]

    def put(request: store_pb2.SettleRequest) -> store_pb2.SettleResponse:
        raise Unavailable("gone", reason="SHARD_UNAVAILABLE")

    service.stores.put = put
    results = await service.nack(names(2, lease=6))
    assert [(one.fault.reason, one.fault.retriable) for one in results] == [("SHARD_UNAVAILABLE", True)] * 2


async def test_unavailable_shard_is_not_asked_for_the_rest() -> None:
    service = Service()
    asked = names(20)
    service.stores.bodies = {name: bytes(1 << 20) for name in asked}
    service.stores.answer_bytes_max = 4 << 20

    def put(request: store_pb2.SettleRequest) -> store_pb2.SettleResponse:
        raise Unavailable("gone", reason="SHARD_UNAVAILABLE")

    service.stores.put = put
    results = await service.nack(asked)
    assert [one.fault.reason for one in results] == ["SHARD_UNAVAILABLE"] * 20
    assert service.faults("SHARD_UNAVAILABLE") == 20
    assert len(service.stores.made("GetLeased")) == 1


async def test_nothing_dies_behind_an_ordered_message_that_may_not_wait() -> None:
    service = Service()
    service.policies.ordered = True
    first, second = names(2)
    request = consumer_pb2.NackRequest(group="billing")
    request.nacks.add(receipt=first)
    request.nacks.add(receipt=second, reject=True)
    results = await service.nacks.nack(request)
    assert [one.fault.reason for one in results] == ["SHARD_UNAVAILABLE"] * 2
    assert not service.stores.made("Settle")


async def test_answer_that_was_lost_is_given_again() -> None:
    service = Service()
    first = await service.nack(names(1), delay_ms=7_000)

    def put(request: store_pb2.SettleRequest) -> store_pb2.SettleResponse:
        return store_pb2.SettleResponse(statuses=[store_pb2.PUT_STATUS_SETTLED])

    service.stores.put = put
    assert await service.nack(names(1)) == first
    assert first[0].deliver_at_ms == NOW_MS + 7_000
    assert [one.status for one in await service.nack(names(1, lease=6))] == [EXPIRED]


async def test_large_bodies_are_looked_at_and_put_in_parts() -> None:
    service = Service()
    asked = names(20)
    service.stores.bodies = {name: bytes(1 << 20) for name in asked}
    service.stores.answer_bytes_max = 12 << 20
    results = await service.nack(asked)
    assert not any(one.HasField("fault") for one in results)
    puts = service.stores.made("Settle")
    assert sum(len(one.settles) for one in puts) == 20
    assert max(len(one.records) for one in puts) <= 8 << 20
    assert [len(one.receipts) for one in service.stores.made("GetLeased")] == [20, 8]


async def test_shard_without_leases_in_its_answer_is_asked_once() -> None:
    service = Service()
    service.stores.answer_bytes_max = 0
    results = await service.nack(names(3))
    assert [one.fault.reason for one in results] == ["SHARD_UNAVAILABLE"] * 3
    assert service.faults("SHARD_UNAVAILABLE") == 3


async def test_database_that_does_not_answer_is_asked_once_for_all() -> None:
    service = Service()
    service.policies.error = Unavailable("away", reason="METADATA_UNAVAILABLE")
    results = await service.nack(names(300))
    assert [(one.fault.reason, one.attempt) for one in results] == [("METADATA_UNAVAILABLE", 1)] * 300
    assert service.policies.asked == 1
    assert service.faults("METADATA_UNAVAILABLE") == 300
    assert not service.stores.made("Settle")


async def test_collector_continues_after_faults_and_ends_on_stop() -> None:
    service = Service()
    taken = store_pb2.GetLeasedResponse(now_ms=NOW_MS)
    taken.leased.extend(service.stores.leased_one(name, attempt=17) for name in names(2))
    taken.leased[1].group = "other"
    service.stores.take_answers = [Overloaded("calls in flight"), taken, store_pb2.GetLeasedResponse()]
    collector = Collector(0, service.stores, service.decider, service.clock, service.metrics)
    running = asyncio.create_task(collector.run())
    async with asyncio.timeout(60):
        while not service.stores.nothing_taken.is_set():
            await service.clock.advance(exhausted.BACKOFF_MS_MAX)
    assert len(service.stores.made("TakeExhausted")) == 4
    puts = service.stores.made("Settle")
    assert [[one.group for one in put.settles] for put in puts] == [["billing"], ["other"]]
    assert [record.decode(put.records).topic for put in puts] == ["%DLQ%billing", "%DLQ%other"]
    errors = {"shard": "0", "code": grpc.StatusCode.RESOURCE_EXHAUSTED.name}
    assert service.registry.get_sample_value("duetime_retry_poll_errors_total", errors) == 1
    collector.stop()
    async with asyncio.timeout(60):
        await running


async def test_stopping_collector_finishes_its_batch() -> None:
    service = Service()
    taken = store_pb2.GetLeasedResponse(now_ms=NOW_MS)
    taken.leased.append(service.stores.leased_one(names(1)[0], attempt=17))
    service.stores.take_answers = [taken]
    collector = Collector(0, service.stores, service.decider, service.clock, service.metrics)

    def put(request: store_pb2.SettleRequest) -> store_pb2.SettleResponse:
        collector.stop()
        return store_pb2.SettleResponse()

    service.stores.put = put
    async with asyncio.timeout(60):
        await collector.run()
    assert service.registry.get_sample_value(
        "duetime_retry_dead_letters_total", {"reason": "ATTEMPTS_EXHAUSTED"}
    ) == pytest.approx(1)
    assert len(service.stores.made("TakeExhausted")) == 1
