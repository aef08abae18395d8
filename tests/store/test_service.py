"""A store node over gRPC on a fake clock: waiting, waking, filters, flush modes, failures."""

import asyncio
import errno
import socket
import threading
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2
from duetime_core.clock import turn
from duetime_core.errors import StartupError
from duetime_format import record
from duetime_store.log.segment import Segment
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.store.conftest import sent
from tests.store.running import Running

FOUND = gateway_pb2.PULL_STATUS_FOUND
NO_NEW = gateway_pb2.PULL_STATUS_NO_NEW
NO_MATCH = gateway_pb2.PULL_STATUS_NO_MATCH
OUT_OF_RANGE = gateway_pb2.PULL_STATUS_OFFSET_OUT_OF_RANGE


async def test_ids_name_the_port_that_the_shard_had_first(tmp_path: Path) -> None:
    """Each start listens on another one. A setting goes first, and is kept too."""

    async def advertised(**settings: int) -> tuple[int, int]:
        async with Running(tmp_path / "store", **settings) as running:
            host = (await running.stub.Describe(store_pb2.DescribeRequest())).store_host
            return int.from_bytes(host[-4:], "big"), running.node.port

    first, port = await advertised()
    assert first == port
    with socket.socket() as taken:
        # So that the next start gets another one.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            # Otherwise another process has it already.
            taken.bind(("127.0.0.1", port))
            taken.listen()
        again, port = await advertised()
    assert port != again == first
    assert (await advertised(advertise_port=10_911))[0] == 10_911
    assert (await advertised())[0] == 10_911


async def test_start_waits_for_the_process_that_holds_the_directory(tmp_path: Path) -> None:
    later = Running(tmp_path, lock_wait_ms=5_000)
    async with Running(tmp_path):
        starting = asyncio.create_task(later.__aenter__())
        await turn()
        await later.clock.advance(4_900)
        assert not starting.done()
    await later.clock.advance(100)
    await starting
    await later.__aexit__()


async def test_start_ends_when_the_directory_stays_in_use(store: Running, tmp_path: Path) -> None:
    later = Running(tmp_path / "store", lock_wait_ms=5_000)
    starting = asyncio.create_task(later.__aenter__())
    await turn()
    await later.clock.advance(4_900)
    assert not starting.done()
    await later.clock.advance(100)
    with pytest.raises(StartupError, match="is in use by another process"):
        await starting
    await later.node.stop()


async def test_pull_gives_messages_in_order(store: Running) -> None:
    await store.put(*(sent(f"{n}") for n in range(5)))
    answer = await store.pull(1, max_count=2)
    assert answer.status == FOUND
    assert [message.id for message in answer.messages] == ["1", "2"]
    assert (answer.next_offset, answer.min_offset, answer.max_offset) == (3, 0, 5)


async def test_pull_gives_the_log_s_own_bytes_when_asked(store: Running) -> None:
    await store.put(sent("A"), sent("B"))
    answer = await store.pull(encoding=gateway_pb2.PULL_ENCODING_RECORDS)
    first = record.decode(answer.records)
    assert record.decode(answer.records, first.size).queue_offset == 1
    assert not answer.messages


async def test_pull_is_limited_by_bytes_but_gives_one(store: Running) -> None:
    await store.put(*(sent(f"{n}", body=bytes(1000)) for n in range(5)))
    assert len((await store.pull(max_bytes=1)).messages) == 1
    assert len((await store.pull(max_bytes=2_500)).messages) == 2


async def test_long_poll_is_woken_by_the_append(store: Running) -> None:
    await store.put(sent("A"))
    poll = asyncio.ensure_future(store.pull(1, wait_ms=30_000))
    await store.waiting("orders")
    await store.put(sent("B"))
    answer = await poll
    assert [message.id for message in answer.messages] == ["B"]


async def test_long_poll_ends_with_its_time(store: Running) -> None:
    await store.put(sent("A"))
    poll = asyncio.ensure_future(store.pull(1, wait_ms=5_000))
    await store.waiting("orders")
    await store.clock.advance(5_000)
    answer = await poll
    assert (answer.status, answer.next_offset) == (NO_NEW, 1)
    assert not store.node.store.queues.find("orders", 0).waiters


async def test_filter_skips_and_waits_for_its_tag(store: Running) -> None:
    await store.put(sent("A"), sent("B"))
    assert (await store.pull(tags="refunded")).status == NO_MATCH
    poll = asyncio.ensure_future(store.pull(tags="refunded || lost", wait_ms=30_000))
    await store.waiting("orders")
    await store.put(sent("C"))
    await store.waiting("orders")
    await store.put(sent("D").replace(b"TAGS\x01paid", b"TAGS\x01lost"))
    answer = await poll
    assert [message.id for message in answer.messages] == ["D"]
    assert answer.next_offset == 4


async def test_expression_skips_to_and_waits_for_matches(store: Running) -> None:
    await store.put(sent("A"), sent("B"))
    for encoding in (gateway_pb2.PULL_ENCODING_MESSAGES, gateway_pb2.PULL_ENCODING_RECORDS):
        answer = await store.pull(sql="UNIQ_KEY <> 'A'", encoding=encoding)
        assert (answer.status, answer.next_offset) == (FOUND, 2)
        records = answer.records or b"B" * len(answer.messages)
        assert (b"B" in records, b"\x01A\x02" in records) == (True, False)
    assert (await store.pull(sql="UNIQ_KEY = 'C'")).status == NO_MATCH
    poll = asyncio.ensure_future(store.pull(sql="UNIQ_KEY = 'D'", tags="paid", wait_ms=30_000))
    await store.waiting("orders")
    await store.put(sent("C"))
    await store.waiting("orders")
    await store.put(sent("D"))
    assert [message.id for message in (await poll).messages] == ["D"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await store.pull(sql="x >")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_tags_of_equal_hash_are_distinguished(store: Running) -> None:
    # "Aa" and "BB" have the same Java hash.
    await store.put(sent("A").replace(b"TAGS\x01paid", b"TAGS\x01AaAa"), sent("B").replace(b"\x01paid", b"\x01BBBB"))
    answer = await store.pull(tags="BBBB")
    assert [message.id for message in answer.messages] == ["B"]


@pytest.mark.parametrize(("offset", "nearest"), [(7, 1), (-1, 0)])
async def test_offset_out_of_range_names_the_nearest(store: Running, offset: int, nearest: int) -> None:
    await store.put(sent("A"))
    answer = await store.pull(offset)
    assert (answer.status, answer.next_offset, answer.max_offset) == (OUT_OF_RANGE, nearest, 1)


async def test_known_topic_may_be_read_before_it_is_written(store: Running) -> None:
    await store.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=2))
    assert (await store.pull(queue=1)).status == NO_NEW
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await store.pull(queue=2)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_due_entry_is_given_at_its_time_and_not_before(store: Running) -> None:
    await store.put(sent("A", level=1))
    poll = asyncio.ensure_future(store.pull_due(wait_ms=30_000))
    await store.asked(1)
    await store.clock.advance(999)
    assert (await store.pull_due()).sizes == []
    assert not poll.done()
    await store.clock.advance(1)
    due = await poll
    assert (due.first_entry, list(due.due_at_ms)) == (0, [store.clock.now_ms()])


async def test_scheduler_on_an_empty_lane_is_woken_for_the_first_entry(store: Running) -> None:
    poll = asyncio.ensure_future(store.pull_due(wait_ms=30_000))
    await store.waiting("SCHEDULE_TOPIC_XXXX")
    await store.put(sent("A", level=1))
    async with asyncio.timeout(60):
        while not poll.done():
            await store.clock.advance(500)
            await store.stub.Describe(store_pb2.DescribeRequest())
    assert len(poll.result().sizes) == 1


async def test_wall_clock_step_back_delays_and_never_hastens(store: Running) -> None:
    await store.put(sent("A", level=1))
    poll = asyncio.ensure_future(store.pull_due(wait_ms=30_000))
    await store.asked(1)
    store.clock.step_wall(-10_000)
    await store.clock.advance(5_000)
    await store.stub.Describe(store_pb2.DescribeRequest())
    assert not poll.done()
    await store.clock.advance(6_000)
    assert len((await poll).sizes) == 1


async def test_damaged_entry_is_reported_and_the_others_given(store: Running) -> None:
    await store.put(*(sent(f"{n}", level=1, body=b"some body") for n in range(3)))
    position, size = store.node.store.lanes[1].queue.read(1, 1)[["position", "size"]].tolist()[0]
    path = store.settings.data_dir / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(position + 90)
        file.write(b"\xff")
    await store.clock.advance(1_000)
    due = await store.pull_due()
    assert [bool(size) for size in due.sizes] == [True, False, True]
    assert "does not match its CRC" in due.damages[1]
    assert due.damaged_positions[1] == position
    assert size > 0


async def test_puts_during_a_flush_share_the_next(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes, release, flush = 0, threading.Event(), Segment.flush

    def held(segment: Segment) -> None:
        nonlocal flushes
        flushes += 1
        assert release.wait(60)
        flush(segment)

    monkeypatch.setattr(Segment, "is_plain", False)
    monkeypatch.setattr(Segment, "flush", held)
    puts = [asyncio.ensure_future(store.put(sent(f"{n:03}"))) for n in range(200)]
    async with asyncio.timeout(60):
        while store.node.store.queues.all()[-1].next_offset < 200:
            await store.stub.Describe(store_pb2.DescribeRequest())
    release.set()
    await asyncio.gather(*puts)
    assert flushes == 2
    assert (await store.pull()).max_offset == 200


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_failed_flush_stops_writes_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    async with Running(tmp_path / "store", flush_mode=mode) as store:
        await store.put(sent("A"))

        def broken(segment: Segment) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(Segment, "is_plain", False)
            patch.setattr(Segment, "flush", broken)
            if mode == "sync":
                with pytest.raises(grpc.aio.AioRpcError, match="Input/output error"):
                    await store.put(sent("B"))
            else:
                await store.put(sent("B"))
                await store.clock.advance(500)
                async with asyncio.timeout(60):
                    while not store.node.store.read_only_reason:
                        await store.stub.Describe(store_pb2.DescribeRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await store.put(sent("C"))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert (await store.pull()).messages[0].id == "A"
        health = health_pb2_grpc.HealthStub(store.channel)
        async with asyncio.timeout(60):
            while (
                await health.Check(health_pb2.HealthCheckRequest())
            ).status == health_pb2.HealthCheckResponse.SERVING:
                pass


async def test_clean_stop_leaves_nothing_to_recover(tmp_path: Path) -> None:
    async with Running(tmp_path / "store") as store:
        await store.put(sent("A"), sent("B", level=1))
        assert (tmp_path / "store/abort").exists()
    assert not (tmp_path / "store/abort").exists()
    assert (tmp_path / "store/config/delayOffset.json").read_text().startswith('{\n\t"offsetTable":{')
    async with Running(tmp_path / "store") as store:
        report = store.node.report
        assert (report.clean, report.whole_log, report.rebuilt_units) == (True, False, 0)


async def test_describe_and_lanes_name_the_shard(store: Running) -> None:
    await store.put(sent("A", level=2), sent("B", level=2))
    told = await store.stub.Describe(store_pb2.DescribeRequest())
    assert list(told.delay_levels_ms) == [1_000, 3_600_000]
    assert record.host_text(told.store_host) == f"127.0.0.1:{store.node.port}"
    lanes = (await store.stub.ListLanes(gateway_pb2.ListLanesRequest())).lanes
    assert [(lane.level, lane.pending_count) for lane in lanes] == [(1, 0), (2, 2), (1000, 0)]
    assert lanes[1].oldest_due_at_ms == lanes[1].next_due_at_ms == store.clock.now_ms() + 3_600_000
