"""Producers are asked about their open transactions, through streams."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import transactions_pb2 as pb

from tests.gateway.conftest import Gateway, TappedStore, WallClock, error_of, message, until
from tests.gateway.test_transactions import (
    COMMIT,
    COMMITTED,
    OPEN,
    ROLLBACK,
    ROLLED_BACK,
    UNKNOWN,
    flat,
    pages,
    prepare,
)
from tests.tap import WAIT_S

# When the first check of a transaction is due, and the next one after that.
FIRST_MS, NEXT_MS = 6_000, 30_000

Ends = tuple[str, pb.Decision.ValueType]


@pytest.fixture
async def one_shard(tmp_path: Path, tap: TappedStore) -> AsyncIterator[Gateway]:
    """With one store."""
    async with Gateway(tmp_path, {0: tap.port}) as gateway:
        yield gateway


class Stream:
    """A watcher as a client has it."""

    def __init__(self, gateway: Gateway, group: str = "billing") -> None:
        self.call = gateway.stub.WatchTransactions(timeout=WAIT_S)
        self.group = group

    async def open(self) -> "Stream":
        await self.call.write(pb.WatchTransactionsRequest(group=self.group))
        assert await self.read() == []
        return self

    async def read(self) -> list[pb.TransactionCheck]:
        answer = await self.call.read()
        if answer is grpc.aio.EOF:
            # Raises the stream's error.
            await self.call.initial_metadata()
            raise EOFError(await self.call.code())
        return list(answer.checks)

    async def answer(self, *ends: Ends) -> None:
        wanted = [pb.TransactionEnd(transaction_id=name, decision=decision) for name, decision in ends]
        await self.call.write(pb.WatchTransactionsRequest(ends=wanted))


@asynccontextmanager
async def watching(gateway: Gateway, group: str = "billing") -> AsyncIterator[Stream]:
    stream = Stream(gateway, group)
    try:
        yield await stream.open()
    finally:
        stream.call.cancel()


async def reported(tap: TappedStore, *, heard: int = 0, unheard: int = 0) -> None:
    """Waits until the store has `heard` checks reported as heard, and `unheard` as not heard."""

    def holds() -> bool:
        reports = tap.requests["ReportChecks"]
        counts = sum(len(one.heard) for one in reports), sum(len(one.unheard) for one in reports)
        return counts == (heard, unheard) and not tap.open["ReportChecks"]

    await tap.until(holds)


async def test_checks_are_asked_and_answered(tapped: Gateway, taps: list[TappedStore], clock: WallClock) -> None:
    prepared = await prepare(
        tapped, *(message(str(number).encode(), id=f"id{number}", tags="t") for number in range(8))
    )
    ids = {one.transaction_id: one for one in prepared}
    async with watching(tapped) as stream:
        clock.move(FIRST_MS)
        checks: list[pb.TransactionCheck] = []
        while len(checks) < 8:
            checks += await stream.read()
        assert {one.transaction_id for one in checks} == set(ids)
        for one in checks:
            asked = one.message
            assert asked.id == ids[one.transaction_id].message_id
            assert (asked.topic, asked.body, asked.tags, one.number) == ("orders", asked.id[2:].encode(), "t", 1)
        for tap in taps:
            await reported(tap, heard=sum(one.shard == tap.shard for one in prepared))
        decisions = (COMMIT, ROLLBACK, UNKNOWN, COMMIT)
        await stream.answer(*((one.transaction_id, decisions[int(one.message.id[2:]) % 4]) for one in checks))
        async with asyncio.timeout(WAIT_S):
            while len(flat(await pages(tapped))) > 2:
                continue
        states = (COMMITTED, ROLLED_BACK, OPEN, COMMITTED)
        for number, one in enumerate(prepared):
            found = await tapped.stub.GetTransaction(pb.GetTransactionRequest(id=one.transaction_id), timeout=WAIT_S)
            assert found.transaction.state == states[number % 4]
        await stream.call.done_writing()
        with pytest.raises(EOFError, match="OK"):
            await stream.read()
    assert tapped.metric("duetime_gateway_checks_total", outcome="heard") == 8


async def test_second_check_has_the_next_number(one_shard: Gateway, tap: TappedStore, clock: WallClock) -> None:
    await prepare(one_shard, message())
    async with watching(one_shard) as stream:
        for number, after_ms in ((1, FIRST_MS), (2, NEXT_MS), (3, NEXT_MS)):
            clock.move(after_ms)
            (check,) = await stream.read()
            assert check.number == number
            await reported(tap, heard=number)


async def test_checks_are_shared_among_the_watchers_of_a_group(
    one_shard: Gateway, tap: TappedStore, clock: WallClock
) -> None:
    prepared = await prepare(one_shard, *(message() for _ in range(30)))
    async with watching(one_shard) as first, watching(one_shard) as second, watching(one_shard) as third:
        clock.move(FIRST_MS)
        asked: list[list[str]] = [[], [], []]

        async def read(index: int, stream: Stream) -> None:
            while sum(map(len, asked)) < 30:
                asked[index] += [one.transaction_id for one in await stream.read()]

        reads = [asyncio.create_task(read(at, stream)) for at, stream in enumerate((first, second, third))]
        await reported(tap, heard=30)
        await until(one_shard, lambda: sum(map(len, asked)) == 30)
        for one in reads:
            one.cancel()
    assert sorted(name for names in asked for name in names) == sorted(one.transaction_id for one in prepared)
    assert all(asked)


async def test_groups_get_their_own_checks_only(one_shard: Gateway, tap: TappedStore, clock: WallClock) -> None:
    await prepare(one_shard, message(id="b"))
    await prepare(one_shard, message(id="s"), group="shipping")
    async with watching(one_shard) as billing, watching(one_shard, "shipping") as shipping:
        clock.move(FIRST_MS)
        (first,), (second,) = await billing.read(), await shipping.read()
        assert (first.message.id, second.message.id) == ("b", "s")
        assert all(set(one.groups) <= {"billing", "shipping"} for one in tap.requests["TakeChecks"])


async def test_nothing_is_taken_without_watchers(one_shard: Gateway, tap: TappedStore, clock: WallClock) -> None:
    await prepare(one_shard, *(message() for _ in range(3)))
    clock.move(FIRST_MS)
    assert not tap.requests["TakeChecks"]
    async with watching(one_shard) as stream:
        assert len(await stream.read()) == 3


async def test_checks_of_one_that_left_go_to_another(one_shard: Gateway, tap: TappedStore, clock: WallClock) -> None:
    """Checks of a watcher that is gone are due again, for the next one."""
    await prepare(one_shard, *(message() for _ in range(3)))
    async with watching(one_shard):
        await tap.until_requests("TakeChecks", 1)
    await until(one_shard, lambda: not one_shard.metric("duetime_gateway_watchers"))
    clock.move(FIRST_MS)
    await reported(tap, unheard=3)
    async with watching(one_shard) as stream:
        assert [one.number for one in await stream.read()] == [1, 1, 1]


async def test_watchers_end_when_the_gateway_stops(one_shard: Gateway) -> None:
    await prepare(one_shard, message())
    async with watching(one_shard) as stream:
        await one_shard.node.stop()
        with pytest.raises((grpc.aio.AioRpcError, EOFError), match=r"UNAVAILABLE|stopping"):
            await stream.read()
        assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
        assert "stopping" in (await stream.call.details() or "")


async def test_strange_streams_are_refused(gateway: Gateway) -> None:
    await prepare(gateway, message())
    invalid, not_found = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    for requests, code, words in (
        ([], invalid, "no first request"),
        ([pb.WatchTransactionsRequest()], invalid, "group"),
        ([pb.WatchTransactionsRequest(group="no blank")], invalid, "group"),
        ([pb.WatchTransactionsRequest(group="unknown")], not_found, "unknown"),
        (
            [pb.WatchTransactionsRequest(group=one) for one in ("billing", "shipping")],
            invalid,
            "'shipping' is not billing",
        ),
        (
            [pb.WatchTransactionsRequest(group="billing", ends=[pb.TransactionEnd()] * 4_097)],
            invalid,
            "4097 ends",
        ),
    ):
        call = gateway.stub.WatchTransactions(iter(requests), timeout=WAIT_S)

        async def drain(call: Any = call) -> None:
            async for _ in call:
                pass

        error = await error_of(drain())
        assert error.code() is code, words
        assert words in (error.details() or "")


async def test_wrong_answers_end_no_stream(one_shard: Gateway, clock: WallClock) -> None:
    await prepare(one_shard, message())
    async with watching(one_shard) as stream:
        await stream.answer(("rubbish", COMMIT), ("0.7.7.none", COMMIT))
        clock.move(FIRST_MS)
        assert len(await stream.read()) == 1


async def test_more_watchers_than_allowed_are_refused(tmp_path: Path, tap: TappedStore) -> None:
    async with Gateway(tmp_path, {0: tap.port}, watchers_max=4) as gateway:
        await prepare(gateway, message())
        async with watching(gateway), watching(gateway):
            error = await error_of(Stream(gateway).open())
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "2 belong to ipv4:127.0.0.1; its limit is 2" in (error.details() or "")
        await until(gateway, lambda: not gateway.metric("duetime_gateway_watchers"))
        async with watching(gateway):
            pass


async def test_group_of_half_messages_that_came_with_a_directory_may_watch(tmp_path: Path, tap: TappedStore) -> None:
    for name in "one", "two":
        (tmp_path / name).mkdir()
    async with Gateway(tmp_path / "one", {0: tap.port}) as gateway:
        await prepare(gateway, message())
    async with Gateway(tmp_path / "two", {0: tap.port}) as gateway, watching(gateway):
        pass


async def test_shard_that_does_not_answer_is_asked_again(
    one_shard: Gateway, tap: TappedStore, clock: WallClock
) -> None:
    await prepare(one_shard, message())
    async with watching(one_shard) as stream:
        await tap.stop()
        await tap.start()
        clock.move(FIRST_MS)
        reading = asyncio.ensure_future(stream.read())
        while not reading.done():
            # The pause after the error may begin after the clock was moved.
            clock.move(1_000)
            await asyncio.wait({reading}, timeout=0.05)
        assert len(await reading) == 1


async def test_group_that_comes_later_is_asked_for_at_once(
    one_shard: Gateway, tap: TappedStore, clock: WallClock
) -> None:
    """The call for the other groups continues, so that its checks are not lost."""
    await prepare(one_shard, message())
    await prepare(one_shard, message(), group="shipping")
    async with watching(one_shard) as billing:
        await tap.until_requests("TakeChecks", 1)
        async with watching(one_shard, "shipping") as shipping:
            await tap.until_requests("TakeChecks", 2)
            assert tap.open["TakeChecks"] == 2
            assert [list(one.groups) for one in tap.requests["TakeChecks"]] == [["billing"], ["shipping"]]
            clock.move(FIRST_MS)
            assert (len(await billing.read()), len(await shipping.read())) == (1, 1)
            with suppress(asyncio.CancelledError):
                shipping.call.cancel()
