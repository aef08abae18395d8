"""Producers are asked about their open transactions, through streams."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import transactions_pb2 as pb

from tests.gateway.conftest import Gateway, error_of, message
from tests.gateway.fake_store import FakeStore
from tests.gateway.fake_transactions import COMMITTED, OPEN, ROLLED_BACK
from tests.gateway.test_leases import until
from tests.gateway.test_transactions import COMMIT, ROLLBACK, UNKNOWN, prepare

Ends = tuple[str, pb.Decision.ValueType]


class Stream:
    """A watcher as a client has it."""

    def __init__(self, gateway: Gateway, group: str = "billing") -> None:
        self.call = gateway.stub.WatchTransactions(timeout=20)
        self.group = group

    async def open(self) -> "Stream":
        await self.call.write(pb.WatchTransactionsRequest(group=self.group))
        assert await self.read() == []
        return self

    async def read(self) -> list[pb.TransactionCheck]:
        answer = await self.call.read()
        if answer is grpc.aio.EOF:
            # Raises what the stream ended with.
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


async def on_first(faked: Gateway, fakes: list[FakeStore], count: int, **options: Any) -> list[pb.PrepareResult]:
    """Transactions of shard 0, with offsets 0 to count - 1."""
    found: list[pb.PrepareResult] = []
    while len(found) < count:
        wanted = (message(id=f"{options.get('group', '')}{len(found)}x{turn}") for turn in range(64))
        ids = [one.id for one in wanted if await goes_to_first(faked, one.id)]
        found += await prepare(faked, *(message(id=one) for one in ids[: count - len(found)]), **options)
    return found


async def goes_to_first(faked: Gateway, message_id: str) -> bool:
    route = (await faked.node.parts.topics.routes_to_write(["orders"], 5_000))["orders"]
    return route.shards[route.choose("", message_id)] == 0  # type: ignore[union-attr]


async def test_checks_are_asked_and_answered(faked: Gateway, fakes: list[FakeStore]) -> None:
    prepared = await prepare(faked, *(message(str(number).encode(), id=f"id{number}", tags="t") for number in range(8)))
    ids = {one.transaction_id: one for one in prepared}
    async with watching(faked) as stream:
        for fake in fakes:
            await fake.transactions.make_due(*range(len(fake.transactions.halves)))
        checks: list[pb.TransactionCheck] = []
        while len(checks) < 8:
            checks += await stream.read()
        assert {one.transaction_id for one in checks} == set(ids)
        for one in checks:
            asked = one.message
            assert asked.id == ids[one.transaction_id].message_id
            assert (asked.topic, asked.body, asked.tags, one.number) == ("orders", asked.id[2:].encode(), "t", 1)
        for fake in fakes:
            shard = fake.transactions
            await shard.until(lambda shard=shard: len(shard.heard) == len(shard.halves))  # type: ignore[misc]
            assert not shard.unheard
        decisions = (COMMIT, ROLLBACK, UNKNOWN, COMMIT)
        await stream.answer(*((one.transaction_id, decisions[int(one.message.id[2:]) % 4]) for one in checks))
        await until(faked, lambda: ended(fakes) == 6)
        states = {half.message_id: half.state for fake in fakes for half in fake.transactions.halves}
        wanted = (COMMITTED, ROLLED_BACK, OPEN, COMMITTED)
        assert states == {f"id{number}": wanted[number % 4] for number in range(8)}
        await stream.call.done_writing()
        with pytest.raises(EOFError, match="OK"):
            await stream.read()
    assert faked.metric("duetime_gateway_checks_total", outcome="heard") == 8


def ended(fakes: list[FakeStore]) -> int:
    return sum(half.state != OPEN for fake in fakes for half in fake.transactions.halves)


async def test_second_check_has_the_next_number(faked: Gateway, fakes: list[FakeStore]) -> None:
    await on_first(faked, fakes, 1)
    async with watching(faked) as stream:
        for number in (1, 2, 3):
            await fakes[0].transactions.make_due(0)
            (check,) = await stream.read()
            assert check.number == number
            await fakes[0].transactions.until(lambda number=number: len(fakes[0].transactions.heard) == number)  # type: ignore[misc]


async def test_checks_are_shared_among_the_watchers_of_a_group(faked: Gateway, fakes: list[FakeStore]) -> None:
    prepared = await on_first(faked, fakes, 30)
    async with watching(faked) as first, watching(faked) as second, watching(faked) as third:
        await fakes[0].transactions.until(lambda: fakes[0].transactions.waiting > 0)
        await fakes[0].transactions.make_due(*range(30))
        asked: list[list[str]] = [[], [], []]

        async def read(index: int, stream: Stream) -> None:
            while sum(map(len, asked)) < 30:
                asked[index] += [one.transaction_id for one in await stream.read()]

        reads = [asyncio.create_task(read(at, stream)) for at, stream in enumerate((first, second, third))]
        await fakes[0].transactions.until(lambda: len(fakes[0].transactions.heard) == 30)
        await until(faked, lambda: sum(map(len, asked)) == 30)
        for one in reads:
            one.cancel()
    assert sorted(name for names in asked for name in names) == sorted(one.transaction_id for one in prepared)
    assert all(asked)


async def test_groups_get_their_own_checks_only(faked: Gateway, fakes: list[FakeStore]) -> None:
    await on_first(faked, fakes, 1)
    await on_first(faked, fakes, 1, group="shipping")
    async with watching(faked) as billing, watching(faked, "shipping") as shipping:
        await fakes[0].transactions.make_due(0, 1)
        (first,), (second,) = await billing.read(), await shipping.read()
        assert first.message.id.startswith("0x")
        assert second.message.id.startswith("shipping")
        assert all(set(one.groups) <= {"billing", "shipping"} for one in fakes[0].transactions.takes)


async def test_nothing_is_taken_while_nobody_watches(faked: Gateway, fakes: list[FakeStore]) -> None:
    await on_first(faked, fakes, 3)
    await fakes[0].transactions.make_due(0, 1, 2)
    assert not fakes[0].transactions.takes
    async with watching(faked) as stream:
        assert len(await stream.read()) == 3


async def test_checks_of_one_that_left_go_to_another(faked: Gateway, fakes: list[FakeStore]) -> None:
    """Taken for a watcher that is gone by then: unheard, so that they are due again, for whoever comes."""
    await on_first(faked, fakes, 3)
    async with watching(faked):
        await fakes[0].transactions.until(lambda: fakes[0].transactions.waiting > 0)
    await until(faked, lambda: not faked.metric("duetime_gateway_watchers"))
    await fakes[0].transactions.make_due(0, 1, 2)
    await fakes[0].transactions.until(lambda: len(fakes[0].transactions.unheard) == 3)
    assert not fakes[0].transactions.heard
    async with watching(faked) as stream:
        assert [one.number for one in await stream.read()] == [1, 1, 1]


async def test_watchers_end_when_the_gateway_stops(faked: Gateway, fakes: list[FakeStore]) -> None:
    await on_first(faked, fakes, 1)
    async with watching(faked) as stream:
        await faked.node.stop()
        with pytest.raises((grpc.aio.AioRpcError, EOFError), match=r"UNAVAILABLE|stopping"):
            await stream.read()
        assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
        assert "stopping" in (await stream.call.details() or "")


async def test_strange_streams_are_refused(faked: Gateway, fakes: list[FakeStore]) -> None:
    await prepare(faked, message())
    invalid, not_found = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    for requests, code, words in (
        ([], invalid, "no first request"),
        ([pb.WatchTransactionsRequest()], invalid, "group"),
        ([pb.WatchTransactionsRequest(group="no blank")], invalid, "group"),
        ([pb.WatchTransactionsRequest(group="unknown")], not_found, "unknown"),
        ([pb.WatchTransactionsRequest(group=one) for one in ("billing", "shipping")], invalid, "another than billing"),
        (
            [pb.WatchTransactionsRequest(group="billing", ends=[pb.TransactionEnd()] * 4_097)],
            invalid,
            "4097 ends",
        ),
    ):
        call = faked.stub.WatchTransactions(iter(requests), timeout=10)

        async def drain(call: Any = call) -> None:
            async for _ in call:
                pass

        error = await error_of(drain())
        assert error.code() is code, words
        assert words in (error.details() or "")


async def test_wrong_answers_end_no_stream(faked: Gateway, fakes: list[FakeStore]) -> None:
    await on_first(faked, fakes, 1)
    async with watching(faked) as stream:
        await stream.answer(("rubbish", COMMIT), ("0.7.7.none", COMMIT))
        await fakes[0].transactions.make_due(0)
        assert len(await stream.read()) == 1


async def test_more_watchers_than_allowed_are_refused(tmp_path: Path, fakes: list[FakeStore]) -> None:
    async with Gateway(tmp_path, {fake.shard: fake.port for fake in fakes}, watchers_max=2) as gateway:
        await prepare(gateway, message())
        async with watching(gateway), watching(gateway):
            error = await error_of(Stream(gateway).open())
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "the most is 2" in (error.details() or "")
        await until(gateway, lambda: not gateway.metric("duetime_gateway_watchers"))
        async with watching(gateway):
            pass


async def test_group_of_half_messages_that_came_with_a_directory_may_watch(
    tmp_path: Path, fakes: list[FakeStore]
) -> None:
    stores = {fake.shard: fake.port for fake in fakes}
    for name in "one", "two":
        (tmp_path / name).mkdir()
    async with Gateway(tmp_path / "one", stores) as gateway:
        await prepare(gateway, message())
    async with Gateway(tmp_path / "two", stores) as gateway, watching(gateway):
        pass


async def test_shard_that_does_not_answer_is_asked_again(faked: Gateway, fakes: list[FakeStore]) -> None:
    await on_first(faked, fakes, 1)
    port = fakes[0].port
    async with watching(faked) as stream:
        await fakes[0].stop()
        await fakes[0].start(port)
        await fakes[0].transactions.make_due(0)
        assert len(await stream.read()) == 1


async def test_group_that_comes_later_is_asked_for_at_once(faked: Gateway, fakes: list[FakeStore]) -> None:
    """The call that waits for the others goes on: what it would have taken is not lost."""
    await on_first(faked, fakes, 1)
    await on_first(faked, fakes, 1, group="shipping")
    async with watching(faked) as billing:
        await fakes[0].transactions.until(lambda: fakes[0].transactions.waiting == 1)
        async with watching(faked, "shipping") as shipping:
            await fakes[0].transactions.until(lambda: fakes[0].transactions.waiting == 2)
            assert [list(one.groups) for one in fakes[0].transactions.takes] == [["billing"], ["shipping"]]
            await fakes[0].transactions.make_due(0, 1)
            assert (len(await billing.read()), len(await shipping.read())) == (1, 1)
            with suppress(asyncio.CancelledError):
                shipping.call.cancel()
