"""A gateway without its metadata database: it serves known topics and groups, refuses new ones, and recovers."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2

from tests.gateway import conftest
from tests.gateway.conftest import Gateway, error_of, message, real_store


def damage(path: Path) -> Callable[[], None]:
    """Overwrites the whole file; the returned function restores it."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    sound = path.read_bytes()
    path.write_bytes(b"\xa5" * len(sound))

    def put_back() -> None:
        path.write_bytes(sound)

    return put_back


async def is_back(gateway: Gateway) -> None:
    async with asyncio.timeout(60):
        while gateway.metric("duetime_metadata_up") == 0 or (await gateway.send(message(topic="other")))[0].fault.code:
            await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.05)


async def test_damaged_database_ends_no_gateway(gateway: Gateway, tmp_path: Path) -> None:
    assert not (await gateway.send(message()))[0].HasField("fault")
    receive = consumer_pb2.ReceiveRequest(topic="orders", group="billing", wait_ms=0)
    await gateway.stub.Receive(receive)
    put_back = damage(tmp_path / "meta.db")
    for _ in range(3):
        known, unknown = await gateway.send(message(), message(topic="other"))
        assert not known.HasField("fault")
        assert (unknown.fault.reason, unknown.fault.retriable) == ("METADATA_UNAVAILABLE", True)
        assert unknown.fault.message.startswith("metadata database is damaged: ")
        await gateway.stub.Receive(receive)
    error = await error_of(gateway.stub.ListTopics(gateway_pb2.ListTopicsRequest()))
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    described = await gateway.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name="orders"))
    assert sum(queue.max_offset for queue in described.queues) == 4
    assert len((await gateway.stub.ListLanes(gateway_pb2.ListLanesRequest())).lanes) == 19
    assert gateway.metric("duetime_metadata_up") == 0
    put_back()
    await is_back(gateway)


async def test_group_is_paused_and_resumed_without_the_database(gateway: Gateway, tmp_path: Path) -> None:
    await gateway.send(message())
    receive = consumer_pb2.ReceiveRequest(topic="orders", group="billing")
    (got,) = (await gateway.stub.Receive(receive)).messages
    await gateway.send(message())
    put_back = damage(tmp_path / "meta.db")
    # The gateway does not know the second group, which the store pauses all the same.
    for group in ("billing", "later"):
        error = await error_of(gateway.stub.PauseGroup(consumer_pb2.PauseGroupRequest(name=group)))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        text = str(error.details())
        assert text.startswith("all shards have done it, but it is not stored for shards that join later (metadata ")
    assert not (await gateway.stub.Receive(receive)).messages
    await gateway.stub.Ack(consumer_pb2.AckRequest(group="billing", receipts=[got.receipt]))
    resume = consumer_pb2.ResumeGroupRequest(name="billing")
    assert "all shards have done it" in str((await error_of(gateway.stub.ResumeGroup(resume))).details())
    assert len((await gateway.stub.Receive(receive)).messages) == 1
    put_back()
    await is_back(gateway)
    assert not (await gateway.stub.ResumeGroup(resume)).pauses


async def test_limit_without_the_database_fails_and_changes_nothing(gateway: Gateway, tmp_path: Path) -> None:
    await gateway.send(message(), message())
    receive = consumer_pb2.ReceiveRequest(topic="orders", group="billing", max_count=1)
    assert len((await gateway.stub.Receive(receive)).messages) == 1
    put_back = damage(tmp_path / "meta.db")
    limit = consumer_pb2.GroupLimit(rate=consumer_pb2.DeliveryRate(count=1, per_ms=3_600_000))
    request = consumer_pb2.LimitGroupRequest(name="billing", limit=limit)
    declare = consumer_pb2.DeclareGroupLimitsRequest(name="billing", limits=[limit])
    declare.limits[0].topic, declare.limits[0].declared = "orders", True
    for call in (gateway.stub.LimitGroup(request), gateway.stub.DeclareGroupLimits(declare)):
        error = await error_of(call)
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert str(error.details()).startswith("metadata database is damaged: ")
    # A limit that came after all would hold it back for an hour.
    assert len((await gateway.stub.Receive(receive)).messages) == 1
    put_back()
    await is_back(gateway)
    await gateway.send(message())
    assert len((await gateway.stub.Receive(receive)).messages) == 1
    assert len((await gateway.stub.LimitGroup(request)).limits.limits) == 1


async def test_gateway_that_starts_while_the_database_does_not_answer_serves_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process locks the file: the gateway starts, and answers every call that needs no database."""
    async with real_store(tmp_path) as store:
        async with Gateway(tmp_path, {0: store.port}):
            pass
        holder = sqlite3.connect(tmp_path / "meta.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(conftest, "upgrade", lambda url: None)
        async with Gateway(tmp_path, {0: store.port}) as gateway:
            (sent,) = await gateway.send(message())
            assert sent.fault.reason == "METADATA_UNAVAILABLE"
            acked = await gateway.stub.Ack(consumer_pb2.AckRequest(group="billing", receipts=[b"\0\0none"]))
            assert list(acked.statuses) == [consumer_pb2.RECEIPT_STATUS_UNKNOWN]
            assert len((await gateway.stub.ListLanes(gateway_pb2.ListLanesRequest())).lanes) == 19
            holder.execute("ROLLBACK")
            holder.close()
            await is_back(gateway)
