"""Checks of open transactions over gRPC: their recipients, their counting, and when they stop."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import store_pb2
from duetime_core.clock import turn
from duetime_format import checks, halves, record
from duetime_format.names import CHECKS_TOPIC, GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from duetime_format.properties import decode_properties
from duetime_store.transactions.giving_up import RETRY_MS
from duetime_store.transactions.table import UNHEARD_MS
from grpc.aio import AioRpcError

from tests.store.conftest import MIB
from tests.store.running import Running
from tests.store.transacting import (
    COMMIT,
    COMMITTED,
    GIVEN_UP,
    OPEN,
    UNKNOWN,
    end,
    end_of,
    get,
    half,
    ids,
    listed,
    prepare,
    prepared,
)

TIMEOUT_MS, INTERVAL_MS = 6_000, 30_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Running]:
    async with Running(tmp_path / "store", transaction_checks_max=3) as running:
        yield running


async def take(
    store: Running, *groups: str, max_count: int = 100, wait_ms: int = 0, gateway: str = "a"
) -> list[store_pb2.TakenCheck]:
    request = store_pb2.TakeChecksRequest(
        gateway=gateway, groups=groups or ("g",), max_count=max_count, wait_ms=wait_ms
    )
    return list((await store.stub.TakeChecks(request, timeout=60)).checks)


def taking(store: Running, *groups: str, **options: Any) -> "asyncio.Task[list[store_pb2.TakenCheck]]":
    return asyncio.create_task(take(store, *groups, wait_ms=30_000, **options))


async def lined_up(store: Running, count: int, group: str = "g") -> None:
    """Waits until `count` calls wait for checks of the group."""
    async with asyncio.timeout(60):
        while len(store.node.parts.checks.lines.get(group, ())) < count:
            await store.stub.Describe(store_pb2.DescribeRequest())


async def report(store: Running, heard: Sequence[int] = (), unheard: Sequence[int] = ()) -> None:
    await store.stub.ReportChecks(store_pb2.ReportChecksRequest(heard=heard, unheard=unheard), timeout=60)


async def passes(store: Running, ms: int) -> None:
    """Advances time in one step, and waits until the store has done the work due by then."""
    store.clock.move(ms)
    await turn()
    await store.stub.Describe(store_pb2.DescribeRequest())


def offsets(taken: Sequence[store_pb2.TakenCheck]) -> list[int]:
    return [one.half.offset for one in taken]


def records_of(store: Running, topic: str) -> list[record.Record]:
    queue = store.node.store.queues.known(topic.encode(), 0)
    if queue is None:
        return []
    units = queue.read(queue.min_offset, 10_000)
    return [record.decode(store.node.store.read_record(position, size)) for position, size, _ in units.tolist()]


async def test_a_check_is_due_after_the_timeout(store: Running) -> None:
    (one,) = await prepared(store, "m0")
    await passes(store, TIMEOUT_MS - 1)
    assert not await take(store)
    await passes(store, 1)
    assert not await take(store, "another")
    (check,) = await take(store)
    assert (check.half, check.group, check.checks) == (one, "g", 0)
    found = record.decode(check.record)
    assert (found.topic, found.queue_offset, halves.message_id_of(found.properties)) == (HALF_TOPIC, 0, "m0")
    assert not await take(store)


async def test_immunity_puts_the_first_check_off(store: Running) -> None:
    await prepared(store, "m0", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    await passes(store, 59_999)
    assert not await take(store)
    await passes(store, 1)
    assert offsets(await take(store)) == [0]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_short_immunity_holds(store: Running, is_restarted: bool) -> None:
    await prepared(store, "m0", CHECK_IMMUNITY_TIME_IN_SECONDS="2")
    await prepared(store, "m1")
    if is_restarted:
        await store.__aexit__()
        await store.__aenter__()
    await passes(store, 1_999)
    assert not await take(store)
    await passes(store, 1)
    assert offsets(await take(store)) == [0]
    await passes(store, TIMEOUT_MS - 2_000)
    assert offsets(await take(store)) == [1]


async def test_waiting_producer_gets_a_check_at_its_time(store: Running) -> None:
    waiting = taking(store, "other", "g")
    await lined_up(store, 1)
    await prepared(store, "m0")
    await store.clock.advance(TIMEOUT_MS - 1)
    assert not waiting.done()
    await store.clock.advance(1)
    assert offsets(await waiting) == [0]
    await passes(store, INTERVAL_MS - 1_000)
    waiting = taking(store)
    await lined_up(store, 1)
    await store.clock.advance(999)
    assert not waiting.done()
    await store.clock.advance(1)
    assert offsets(await waiting) == [0]


async def test_waiting_ends_in_time(store: Running) -> None:
    waiting = asyncio.create_task(take(store, wait_ms=2_000))
    await lined_up(store, 1)
    await store.clock.advance(2_000)
    assert await waiting == []
    assert not store.node.parts.checks.lines


async def test_each_check_goes_to_one_waiting_producer(store: Running) -> None:
    first = taking(store, max_count=2)
    await lined_up(store, 1)
    others = [taking(store, max_count=2) for _ in range(2)]
    await lined_up(store, 3)
    await prepared(store, "m0", "m1", "m2")
    await store.clock.advance(TIMEOUT_MS)
    assert offsets(await first) == [0, 1]
    done, (left,) = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
    assert [offsets(one.result()) for one in done] == [[2]]
    await prepared(store, "m3")
    await store.clock.advance(TIMEOUT_MS)
    assert offsets(await left) == [3]


async def test_ended_calls_get_nothing(store: Running) -> None:
    gone = taking(store)
    await lined_up(store, 1)
    await prepared(store, "m0")
    gone.cancel()
    await asyncio.wait([gone])
    async with asyncio.timeout(60):
        while store.node.parts.checks.lines:
            await store.stub.Describe(store_pb2.DescribeRequest())
    waiting = taking(store)
    await lined_up(store, 1)
    await store.clock.advance(TIMEOUT_MS)
    assert offsets(await waiting) == [0]


async def test_wakeup_of_an_ended_call_goes_to_the_next(store: Running) -> None:
    checks_, task = store.node.parts.checks, asyncio.create_task
    request = store_pb2.TakeChecksRequest(groups=["g"], max_count=1, wait_ms=30_000)
    first, second = task(checks_.take(request)), task(checks_.take(request))
    await turn()
    assert len(checks_.lines["g"]) == 2
    await prepared(store, "m0")
    store.clock.move(TIMEOUT_MS)
    while not next(iter(checks_.lines["g"])).future.done():
        await turn()
    first.cancel()
    await asyncio.wait([first])
    assert offsets((await second).checks) == [0]


async def test_groups_share_a_take_fairly(store: Running) -> None:
    for group, count in (("a", 9), ("b", 2), ("c", 9)):
        await prepared(store, *(f"{group}{n}" for n in range(count)), group=group)
    await passes(store, TIMEOUT_MS)
    taken = await take(store, "a", "b", "c", max_count=6)
    assert sorted(one.group for one in taken) == ["a", "a", "b", "b", "c", "c"]
    assert sorted(one.group for one in await take(store, "a", "b", "c", max_count=6)) == ["a"] * 3 + ["c"] * 3


async def test_a_check_counts_once_it_is_heard(store: Running) -> None:
    await prepared(store, "m0")
    for heard in (0, 1, 2):
        await passes(store, TIMEOUT_MS if not heard else INTERVAL_MS)
        (check,) = await take(store)
        assert check.checks == heard
        await report(store, heard=[0])
        # A repeated report counts no more.
        await report(store, heard=[0])
        assert (await get(store, check.half)).half.transaction.checks == heard + 1
    assert len(records_of(store, CHECKS_TOPIC)) == 3


async def test_unheard_check_is_not_counted_and_due_at_once(store: Running) -> None:
    (one,) = await prepared(store, "m0")
    await passes(store, TIMEOUT_MS)
    assert offsets(await take(store)) == [0]
    waiting = taking(store, gateway="b")
    await lined_up(store, 1)
    await report(store, unheard=[0])
    await passes(store, 0)
    (check,) = await waiting
    assert check.checks == 0
    # That producer does not hear it either: the check is repeated with growing delays.
    for pause_ms in (UNHEARD_MS, 2 * UNHEARD_MS, 4 * UNHEARD_MS):
        await report(store, unheard=[0])
        await passes(store, pause_ms - 1)
        assert not await take(store)
        await passes(store, 1)
        assert offsets(await take(store)) == [0]
    assert (await get(store, one)).half.transaction.checks == 0
    assert not records_of(store, CHECKS_TOPIC)


async def test_one_that_ends_is_asked_no_more(store: Running) -> None:
    halves_ = await prepared(store, "m0", "m1")
    await passes(store, TIMEOUT_MS)
    await end(store, end_of(halves_[0], "m0"))
    assert offsets(await take(store)) == [1]
    await end(store, end_of(halves_[1], "m1"))
    await report(store, heard=[1])
    await passes(store, INTERVAL_MS)
    assert not await take(store)
    assert not records_of(store, CHECKS_TOPIC)


async def test_an_answer_that_knows_nothing_leaves_it_to_the_next_check(store: Running) -> None:
    (one,) = await prepared(store, "m0")
    await passes(store, TIMEOUT_MS)
    await take(store)
    (result,) = await end(store, end_of(one, "m0", UNKNOWN))
    assert result.state == OPEN
    await passes(store, INTERVAL_MS - 1)
    assert not await take(store)
    await passes(store, 1)
    assert offsets(await take(store)) == [0]


async def asked_to_the_end(store: Running) -> None:
    await passes(store, TIMEOUT_MS)
    for _ in range(store.settings.transaction_checks_max):
        taken = await take(store)
        await report(store, heard=offsets(taken))
        await passes(store, INTERVAL_MS)


async def given_up(store: Running, count: int) -> list[record.Record]:
    async with asyncio.timeout(60):
        while len(found := records_of(store, GIVEN_UP_TOPIC)) < count:
            await store.stub.Describe(store_pb2.DescribeRequest())
    return found


async def test_transaction_is_abandoned_after_its_last_check(store: Running) -> None:
    (one,) = await prepared(store, "m0", KEYS="k")
    await asked_to_the_end(store)
    (copy,) = await given_up(store, 1)
    named = decode_properties(copy.properties)
    assert (named["UNIQ_KEY"], named["KEYS"], named["REAL_TOPIC"]) == ("m0", "k", "orders")
    assert (named["TRANSACTION_CHECK_TIMES"], named["DT_HALF"]) == ("3", "0")
    (op,) = records_of(store, OP_TOPIC)
    assert (op.body, halves.decision_of(op.properties)) == (b"0,", halves.GIVEN_UP)
    assert (await get(store, one)).half.transaction.state == GIVEN_UP
    assert not await take(store)
    (result,) = await end(store, end_of(one, "m0", COMMIT))
    assert result.fault.reason == "TRANSACTION_GIVEN_UP"
    (result,) = await end(store, end_of(one, "m0", COMMIT), given_up=True)
    assert result.state == COMMITTED


async def test_an_old_transaction_ends_without_watchers(tmp_path: Path) -> None:
    async with Running(tmp_path, transaction_keep_ms=60_000) as store:
        (old,) = await prepared(store, "m0")
        await passes(store, 30_000)
        await prepared(store, "m1")
        await store.clock.advance(31_000)
        (copy,) = await given_up(store, 1)
        assert decode_properties(copy.properties)["TRANSACTION_CHECK_TIMES"] == "0"
        assert (await get(store, old)).half.transaction.state == GIVEN_UP
        assert ids(await listed(store, state=OPEN)) == ["m1"]


async def test_giving_up_waits_for_room(store: Running) -> None:
    (one,) = await prepared(store, "m0")
    gate = store.node.store.gate
    gate.fail("a test")
    await asked_to_the_end_without_room(store)
    assert not records_of(store, GIVEN_UP_TOPIC)
    gate.failed = ""
    await passes(store, RETRY_MS)
    await given_up(store, 1)
    assert (await get(store, one)).half.transaction.state == GIVEN_UP


async def asked_to_the_end_without_room(store: Running) -> None:
    table = store.node.parts.transactions
    for _ in range(store.settings.transaction_checks_max):
        await passes(store, INTERVAL_MS)
        rows = table.take(["g"], 1, store.clock.now_ms(), store.clock.now_ms() + INTERVAL_MS)
        heard = table.heard(rows.offsets)
        table.count(heard.offsets, heard.checks, are_stored=True)
    await passes(store, INTERVAL_MS)


async def test_the_half_topic_does_not_grow_by_checks(store: Running) -> None:
    await prepared(store, *(f"m{n}" for n in range(20)))
    await passes(store, TIMEOUT_MS)
    for _ in range(2):
        await report(store, heard=offsets(await take(store)))
        await passes(store, INTERVAL_MS)
    queue = store.node.store.queues.find(HALF_TOPIC, 0)
    assert queue.max_offset == 20
    # One record for all checks of a report.
    rows = [len(checks.decode(found.body)) for found in records_of(store, CHECKS_TOPIC)]
    assert rows == [20, 20]


@pytest.mark.parametrize("clean", [True, False])
async def test_heard_checks_survive_a_restart(tmp_path: Path, clean: bool) -> None:
    async with Running(tmp_path / "store") as store:
        await prepared(store, "m0", "m1")
        await passes(store, TIMEOUT_MS)
        assert offsets(await take(store)) == [0, 1]
        await report(store, heard=[0])
        await store.node.parts.checkpointer.write()
        await passes(store, INTERVAL_MS)
        # Taken and never reported; and heard after the checkpoint.
        assert offsets(await take(store)) == [0, 1]
        await report(store, heard=[0])
        now_ms = store.clock.now_ms()
        if not clean:
            copy = tmp_path / "copy"
            await asyncio.to_thread(shutil.copytree, tmp_path / "store", copy)
    async with Running(tmp_path / ("store" if clean else "copy")) as again:
        again.clock.step_wall(now_ms - again.clock.now_ms())
        (first, second) = [one.transaction for one in await listed(again)]
        assert (first.checks, second.checks) == (2, 0)
        assert first.next_check_at_ms == now_ms + INTERVAL_MS
        await passes(again, INTERVAL_MS)
        assert [(one.half.offset, one.checks) for one in await take(again)] == [(0, 2), (1, 0)]
        await report(again, heard=[0, 1])
        assert [one.transaction.checks for one in await listed(again)] == [3, 1]


def remove_tables(root: Path) -> None:
    for path in root.glob("duetimeTransactions*"):
        path.unlink()


async def test_checks_are_counted_by_the_log_where_the_table_is_lost(tmp_path: Path) -> None:
    async with Running(tmp_path) as store:
        await prepared(store, "m0")
        await passes(store, TIMEOUT_MS)
        await take(store)
        await report(store, heard=[0])
    await asyncio.to_thread(remove_tables, tmp_path)
    async with Running(tmp_path) as again:
        (one,) = await listed(again)
        assert one.transaction.checks == 1


async def test_a_report_of_a_check_that_was_taken_before_a_restart_counts_once(tmp_path: Path) -> None:
    async with Running(tmp_path) as store:
        await prepared(store, "m0")
        await passes(store, TIMEOUT_MS)
        await take(store)
    async with Running(tmp_path) as again:
        await report(again, heard=[0])
        await report(again, heard=[0])
        (one,) = await listed(again)
        assert one.transaction.checks == 1


async def test_nothing_falls_due_while_the_clock_is_set_back(store: Running) -> None:
    await prepared(store, "m0")
    store.clock.step_wall(-3_600_000)
    await store.clock.advance(TIMEOUT_MS)
    assert not await take(store)
    store.clock.step_wall(3_600_000)
    waiting = taking(store)
    await lined_up(store, 1)
    # The wall clock is read again within a second.
    await store.clock.advance(1_000)
    assert offsets(await waiting) == [0]


async def test_an_answer_has_4_mib_at_most_and_one_of_any_size(tmp_path: Path) -> None:
    async with Running(tmp_path, segment_bytes=16 * MIB) as store:
        await prepared(store, "m0", "m1", body=bytes(3 * MIB))
        await passes(store, TIMEOUT_MS)
        assert offsets(await take(store)) == [0]
        await passes(store, 0)
        assert offsets(await take(store)) == [1]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"groups": [], "max_count": 1}, "groups"),
        ({"groups": ["g"] * 1_025, "max_count": 1}, "groups"),
        ({"groups": ["g", ""], "max_count": 1}, "groups"),
        ({"groups": ["g" * 121], "max_count": 1}, "groups"),
        ({"groups": ["g"]}, "max_count"),
        ({"groups": ["g"], "max_count": 1_025}, "max_count"),
        ({"groups": ["g"], "max_count": 1, "wait_ms": 30_001}, "wait_ms"),
        ({"groups": ["g"], "max_count": 1, "wait_ms": -1}, "wait_ms"),
        ({"groups": ["g"], "max_count": 1, "gateway": "x" * 256}, "gateway"),
    ],
)
async def test_bad_requests_are_refused(store: Running, request_: dict[str, Any], field: str) -> None:
    with pytest.raises(AioRpcError) as caught:
        await store.stub.TakeChecks(store_pb2.TakeChecksRequest(**request_), timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert field in str(caught.value.details())


async def test_a_report_of_too_many_checks_is_refused(store: Running) -> None:
    with pytest.raises(AioRpcError) as caught:
        await report(store, heard=range(4_000), unheard=range(97))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    # Unknown ones change nothing.
    await report(store, heard=[5, -1], unheard=[7])
    assert not records_of(store, CHECKS_TOPIC)


async def test_metrics_count_open_transactions_and_outcomes(tmp_path: Path) -> None:
    async with Running(tmp_path, transaction_keep_ms=3_600_000, transactions_max=50) as store:
        value = store.node.registry.get_sample_value
        assert value("duetime_store_transactions_oldest_seconds") == 0
        halves_ = await prepared(store, "m0", "m1", "m2")
        await prepare(store, half("m0"))
        await passes(store, 90_000)
        await take(store)
        await report(store, heard=[0, 1], unheard=[2])
        await end(store, end_of(halves_[0], "m0"), end_of(halves_[1], "m1", UNKNOWN))
        await end(store, end_of(halves_[0], "m0"), end_of(halves_[1], "another"))
        assert value("duetime_store_transactions_open") == 2
        assert value("duetime_store_transactions_open_max") == 50
        assert value("duetime_store_transactions_oldest_seconds") == 90
        for result, count in (("PREPARED", 3), ("REPEATED", 1)):
            assert value("duetime_store_prepares_total", {"result": result}) == count
        for result, count in (("taken", 3), ("heard", 2), ("unheard", 1)):
            assert value("duetime_store_transaction_checks_total", {"result": result}) == count
        for labels in ("COMMIT COMMITTED", "COMMIT REPEATED", "COMMIT FAULT", "UNKNOWN OPEN"):
            named = dict(zip(("decision", "result"), labels.split(), strict=True))
            assert value("duetime_store_transaction_ends_total", named) == 1
        await passes(store, 3_600_000)
        await given_up(store, 2)
        async with asyncio.timeout(60):  # they are counted when they are durable, not when they can be read
            while value("duetime_store_transactions_given_up_total") < 2:
                await store.stub.Describe(store_pb2.DescribeRequest())
        assert value("duetime_store_transactions_given_up_total") == 2
        assert value("duetime_store_transactions_open") == 0
