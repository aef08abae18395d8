"""Traces of transactions."""

from pathlib import Path

import pytest
from duetime.v1 import consumer_pb2

from tests.store.running import Running
from tests.store.transacting import COMMIT, ROLLBACK, end, end_of, prepared


async def kinds(store: Running, message_id: str) -> list[tuple[str, str]]:
    """Kinds without their prefix, and topics."""
    answer = await store.stub.TraceMessage(consumer_pb2.TraceMessageRequest(id=message_id), timeout=10)
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
async def test_transaction_is_told(tmp_path: Path, decision: int, delay: str, expected: list[tuple[str, str]]) -> None:
    async with Running(tmp_path / "store") as store:
        (one,) = await prepared(store, "m0", DELAY=delay)
        if decision:
            await end(store, end_of(one, "m0", decision))
        assert await kinds(store, "m0") == [("PREPARED", "RMQ_SYS_TRANS_HALF_TOPIC"), *expected]
