"""Traces of transactions."""

from pathlib import Path

import pytest
from duetime.v1 import consumer_pb2
from duetime_store.finding import journals

from tests.store.running import Running
from tests.store.test_transaction_checks import (
    INTERVAL_MS,
    TIMEOUT_MS,
    asked_to_the_end,
    given_up,
    passes,
    report,
    take,
)
from tests.store.transacting import COMMIT, ROLLBACK, end, end_of, prepared


async def kinds(store: Running, message_id: str) -> list[tuple[str, str]]:
    """Kinds without their prefix, and topics."""
    answer = await store.stub.TraceMessage(consumer_pb2.TraceMessageRequest(id=message_id), timeout=60)
    assert list(answer.gaps) == []
    names = consumer_pb2.TraceKind.Name
    return [(names(event.kind).removeprefix("TRACE_KIND_"), event.topic) for event in answer.events]


@pytest.mark.parametrize(
    ("decision", "delay", "expected"),
    [
        (0, "", []),
        (COMMIT, "", [("COMMITTED", "orders")]),
        (ROLLBACK, "", [("ROLLED_BACK", "RMQ_SYS_TRANS_OP_HALF_TOPIC")]),
        (COMMIT, "2", [("COMMITTED", "SCHEDULE_TOPIC_XXXX"), ("DEFERRED", "SCHEDULE_TOPIC_XXXX")]),
    ],
)
async def test_transaction_is_shown(tmp_path: Path, decision: int, delay: str, expected: list[tuple[str, str]]) -> None:
    async with Running(tmp_path / "store") as store:
        (one,) = await prepared(store, "m0", DELAY=delay)
        if decision:
            await end(store, end_of(one, "m0", decision))
        assert await kinds(store, "m0") == [("PREPARED", "RMQ_SYS_TRANS_HALF_TOPIC"), *expected]


@pytest.mark.parametrize("decision", [0, COMMIT, ROLLBACK])
async def test_checks_are_reported(tmp_path: Path, decision: int) -> None:
    async with Running(tmp_path / "store") as store:
        one, _ = await prepared(store, "m0", "m1")
        for count in (1, 2, 3):
            await passes(store, TIMEOUT_MS if count == 1 else INTERVAL_MS)
            await take(store)
            # The other is asked once.
            await report(store, heard=[0] if count > 1 else [0, 1])
        checked_ms = store.clock.now_ms()
        if decision:
            await passes(store, 1_000)
            await end(store, end_of(one, "m0", decision))
        answer = await store.stub.TraceMessage(consumer_pb2.TraceMessageRequest(id="m0"), timeout=60)
        prepared_, checked, *_ = answer.events
        assert (prepared_.kind, checked.kind) == (consumer_pb2.TRACE_KIND_PREPARED, consumer_pb2.TRACE_KIND_CHECKED)
        assert (checked.checks, checked.at_ms, checked.group) == (3, checked_ms, "g")
        assert (checked.topic, checked.offset) == ("DT_CHECKS", 2)
        assert len(answer.events) == 2 + bool(decision)
        other = await store.stub.TraceMessage(consumer_pb2.TraceMessageRequest(id="m1"), timeout=60)
        assert [event.checks for event in other.events] == [0, 1]


async def test_checks_of_an_abandoned_transaction_are_reported(tmp_path: Path) -> None:
    async with Running(tmp_path / "store", transaction_checks_max=3) as store:
        await prepared(store, "m0")
        await asked_to_the_end(store)
        await given_up(store, 1)
        answer = await store.stub.TraceMessage(consumer_pb2.TraceMessageRequest(id="m0"), timeout=60)
        names = consumer_pb2.TraceKind.Name
        told = [(names(event.kind).removeprefix("TRACE_KIND_"), event.checks) for event in answer.events]
        assert told == [("PREPARED", 0), ("CHECKED", 3), ("GIVEN_UP", 3)]


async def test_checks_beyond_the_read_range_are_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Running(tmp_path / "store") as store:
        await prepared(store, "m0")
        for count in (1, 2):
            await passes(store, TIMEOUT_MS if count == 1 else INTERVAL_MS)
            await take(store)
            await report(store, heard=[0])
        monkeypatch.setattr(journals, "BYTES_MAX", 1)
        answer = await store.stub.TraceMessage(consumer_pb2.TraceMessageRequest(id="m0"), timeout=60)
        assert [event.checks for event in answer.events] == [0, 1]
        (gap,) = answer.gaps
        assert gap.startswith("checks of transactions were read until ")
