"""Producers' transactions against a fake gateway: how a block ends, lost answers, refusals, batch forms."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from itertools import chain, groupby

import grpc
import pytest
from duetime import (
    AsyncFinder,
    AsyncProducer,
    AsyncTransaction,
    Closed,
    Conflict,
    Decision,
    DueTimeError,
    Ended,
    InvalidArgument,
    InvalidMessage,
    Message,
    NotFound,
    PermissionDenied,
    Prepared,
    Timeout,
    Unavailable,
)
from duetime.client.message import moment
from duetime.client.sending import transaction as transaction_module
from duetime.v1 import transactions_pb2 as pb

from tests.sdk.fake_transactions import COMMITTED, GIVEN_UP, NOW_MS, OPEN, ROLLED_BACK, FakeTransactions

COMMIT, ROLLBACK, UNKNOWN = Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN


@pytest.fixture
async def gateway() -> AsyncIterator[FakeTransactions]:
    gateway = FakeTransactions()
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest.fixture
async def patient(gateway: FakeTransactions, quick: None) -> AsyncIterator[AsyncProducer]:
    """With the usual timeout: for tests whose requests are large."""
    async with AsyncProducer(gateway.address) as producer:
        yield producer


@pytest.fixture
async def producer(gateway: FakeTransactions, quick: None) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(gateway.address, timeout=10) as producer:
        yield producer


@pytest.fixture
async def hasty(gateway: FakeTransactions, quick: None) -> AsyncIterator[AsyncProducer]:
    """A producer that gives up soon, but not while a busy machine thinks."""
    async with AsyncProducer(gateway.address, timeout=2) as producer:
        yield producer


def lose(gateway: FakeTransactions, method: str, count: int = 1) -> None:
    gateway.statuses[method] = deque([grpc.StatusCode.UNAVAILABLE] * count)


def states(gateway: FakeTransactions) -> list[int]:
    return [half.state for half in gateway.halves.values()]


class Broken(Exception):
    """What a block raises."""


async def broken_block(producer: AsyncProducer, work: Callable[[AsyncTransaction], Awaitable[object]]) -> None:
    """A block that does something and then raises."""
    async with producer.transaction("orders", b"x", group="billing") as tx:
        await work(tx)
        raise Broken


async def test_the_end_of_the_block_commits(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    async with producer.transaction(
        "orders", b"cancel 42", delay="15m", group="billing", tags="timeout", key="42", keys=["43"],
        properties={"a": "b"}, sharding_key="42", queue=1, flag=7, id="m42", retry="1s,max=3", check_after="1m",
    ) as tx:  # fmt: skip
        assert (tx.id, tx.message_id, tx.topic, tx.group, tx.duplicate) == ("t0", "m42", "orders", "billing", False)
        assert tx.check_at == moment(NOW_MS + 60_000)
        assert states(gateway) == [OPEN]
        assert tx.result is None
    assert states(gateway) == [COMMITTED]
    (request,), (message,) = gateway.prepares, gateway.prepares[0].messages
    assert (request.group, request.check_immunity_s) == ("billing", 60)
    assert (message.topic, message.body, message.delay_ms, message.id) == ("orders", b"cancel 42", 900_000, "m42")
    assert (message.tags, list(message.keys), dict(message.properties)) == ("timeout", ["42", "43"], {"a": "b"})
    assert (message.sharding_key, message.queue, message.flag, message.retry.max_attempts) == ("42", 1, 7, 3)
    assert tx.result is not None
    assert (tx.result.topic, tx.result.message_id, tx.result.lane, tx.result.offset) == ("orders", "m42", 1_000, 7)
    assert tx.result.deliver_at == moment(NOW_MS + 900_000)
    # The receipt of a delayed one names its place in the lane.
    assert (tx.result._ref().lane, tx.result._ref().entry) == (1_000, 7)
    assert await tx.commit() is tx.result
    assert len(gateway.ends) == 1


async def test_an_exception_rolls_back(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    with pytest.raises(Broken) as raised:
        async with producer.transaction("orders", b"x", group="billing") as tx:
            raise Broken
    assert states(gateway) == [ROLLED_BACK]
    assert not hasattr(raised.value, "__notes__")
    assert tx.result is None


async def test_what_the_block_decides_counts(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    async with producer.transaction("orders", b"0", group="billing") as tx:
        receipt = await tx.commit()
        assert receipt is tx.result
    async with producer.transaction("orders", b"1", group="billing") as tx:
        await tx.rollback()
    async with producer.transaction("orders", b"2", group="billing") as tx:
        tx.leave_open()
    with pytest.raises(Broken):
        await broken_block(producer, AsyncTransaction.commit)

    async def leave_open(tx: AsyncTransaction) -> None:
        tx.leave_open()

    with pytest.raises(Broken):
        await broken_block(producer, leave_open)
    assert states(gateway) == [COMMITTED, ROLLED_BACK, OPEN, COMMITTED, OPEN]
    assert len(gateway.ends) == 3


async def test_lost_answers_are_asked_for_again(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    lose(gateway, "Prepare")
    lose(gateway, "EndTransaction", 2)
    async with producer.transaction("orders", b"x", group="billing") as tx:
        pass
    assert [request.group for request in gateway.prepares] == ["billing", "billing"]
    assert [request.group for request in gateway.ends] == ["billing"] * 3
    assert [list(request.ends) for request in gateway.ends] == [list(gateway.ends[0].ends)] * 3
    assert (tx.duplicate, states(gateway)) == (True, [COMMITTED])


async def test_an_end_that_can_not_be_delivered_says_that_the_group_is_asked(
    gateway: FakeTransactions, hasty: AsyncProducer
) -> None:
    lose(gateway, "EndTransaction", 1_000)
    text = "whether transaction t0 was ended by this commit is not known: if it is open, group billing will be asked"
    with pytest.raises((Unavailable, Timeout), match=text) as raised:
        async with hasty.transaction("orders", b"x", group="billing", id="m0"):
            pass
    assert raised.value.message_id == "m0"
    with pytest.raises(Broken) as broken:
        async with hasty.transaction("orders", b"x", group="billing"):
            raise Broken
    (note,) = broken.value.__notes__
    assert note.startswith("duetime: not rolled back: ")
    assert "transaction t1 was ended by this rollback is not known" in note


async def test_after_a_commit_of_unknown_outcome_nothing_is_rolled_back(
    gateway: FakeTransactions, hasty: AsyncProducer
) -> None:
    async def commit(tx: AsyncTransaction) -> None:
        lose(gateway, "EndTransaction", 1_000)
        try:
            await tx.commit()
        finally:
            gateway.statuses.clear()

    with pytest.raises((Unavailable, Timeout)):
        await broken_block(hasty, commit)
    assert {end.decision for request in gateway.ends for end in request.ends} == {pb.DECISION_COMMIT}


async def test_a_decision_that_comes_too_late_is_a_conflict(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    with pytest.raises(Conflict, match="transaction t0 is rolled back: that was decided before") as raised:
        async with producer.transaction("orders", b"x", group="billing"):
            gateway.halves["t0"].state = ROLLED_BACK
    assert raised.value.reason == "TRANSACTION_ROLLED_BACK"

    async def decided(tx: AsyncTransaction) -> None:
        gateway.halves[tx.id].state = COMMITTED

    with pytest.raises(Broken) as broken:
        await broken_block(producer, decided)
    assert broken.value.__notes__ == ["duetime: not rolled back: transaction t1 is committed: that was decided before"]
    with pytest.raises(Conflict, match="t2 was given up") as raised:
        async with producer.transaction("orders", b"x", group="billing"):
            gateway.halves["t2"].state = GIVEN_UP
    assert raised.value.reason == "TRANSACTION_GIVEN_UP"


async def test_a_message_that_is_refused_begins_no_block(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    for arguments in (
        {"delay": "1x"},
        {"delay": "1s", "level": 3},
        {"group": ""},
        {"check_after": 0},
        {"check_after": timedelta(hours=73)},
    ):
        with pytest.raises(InvalidArgument):
            async with producer.transaction("orders", b"x", **({"group": "billing"} | arguments)):  # type: ignore[arg-type]
                pytest.fail("the block begins")
    assert gateway.prepares == []
    with pytest.raises(TypeError, match="body is int"):
        producer.transaction("orders", 42, group="billing")  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="begins with its with block"):
        await producer.transaction("orders", b"x", group="billing").commit()
    async with producer.transaction("orders", b"x", group="billing") as tx:
        pass
    with pytest.raises(Conflict, match="one with block"):
        await tx.__aenter__()


async def interrupted(gateway: FakeTransactions, producer: AsyncProducer) -> asyncio.CancelledError:
    inside = asyncio.Event()

    async def work() -> None:
        async with producer.transaction("orders", b"x", group="billing"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    return raised.value


async def test_a_cancelled_block_is_rolled_back_if_nobody_can_be_asked(
    gateway: FakeTransactions, producer: AsyncProducer
) -> None:
    await interrupted(gateway, producer)
    assert states(gateway) == [ROLLED_BACK]


async def test_a_cancelled_block_is_left_to_the_check_handler(
    gateway: FakeTransactions, producer: AsyncProducer
) -> None:
    @producer.check("billing")
    def resolve(message: object) -> Decision:
        return UNKNOWN

    await interrupted(gateway, producer)
    assert states(gateway) == [OPEN]
    assert gateway.ends == []


async def test_a_cancelled_block_does_not_wait_for_a_rollback_that_hangs(
    gateway: FakeTransactions, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_module, "INTERRUPTED_S", 0.05)
    gateway.end_gate = asyncio.Event()
    error = await interrupted(gateway, producer)
    assert "no answer to the rollback within 0.05 s; if transaction t0 is open" in error.__notes__[0]
    gateway.end_gate.set()


async def test_a_generator_that_is_closed_leaves_its_transaction_open(
    gateway: FakeTransactions, producer: AsyncProducer
) -> None:
    async def one() -> AsyncIterator[AsyncTransaction]:
        async with producer.transaction("orders", b"x", group="billing") as tx:
            yield tx

    generator = one()
    await anext(generator)
    await generator.aclose()  # type: ignore[attr-defined]
    assert states(gateway) == [OPEN]


async def test_many_are_prepared_and_ended(gateway: FakeTransactions, patient: AsyncProducer) -> None:
    messages = [Message("orders", b"%d" % n, id=f"m{n}") for n in range(2_500)]
    messages[7].delay = "1x"
    messages[8].replace = True
    prepared = await patient.prepare_many((one for one in messages), group="billing", check_after=90)
    assert [one.message_id for one in prepared] == [message.id for message in messages]
    assert [n for n, one in enumerate(prepared) if not isinstance(one, Prepared)] == [7, 8]
    assert isinstance(prepared[8], InvalidMessage)
    assert max(len(request.messages) for request in gateway.prepares) == 512
    assert {request.check_immunity_s for request in gateway.prepares} == {90}
    good = [one for one in prepared if isinstance(one, Prepared)]
    assert (good[0].group, good[0].topic, good[0].check_at) == ("billing", "orders", moment(NOW_MS + 90_000))
    lose(gateway, "EndTransaction")
    ended = await patient.end_many(good[:2_000], COMMIT) + await patient.end_many(iter(good[2_000:]), ROLLBACK)
    assert [one.state for one in ended if isinstance(one, Ended)] == ["committed"] * 2_000 + ["rolled back"] * 498
    first = ended[0]
    assert isinstance(first, Ended)
    assert first.receipt is not None
    assert (first.receipt.message_id, first.receipt.topic) == ("m0", "orders")
    # Those whose first answer was lost.
    assert any(one.duplicate for one in ended if isinstance(one, Ended))
    assert sorted(len(request.ends) for request in gateway.ends) in ([498, 976, 976, 1_024], [498, 976, 1_024, 1_024])
    (again,) = await patient.end_many(good[:1], ROLLBACK)
    assert isinstance(again, Ended)
    assert (again.state, again.duplicate) == ("committed", True)
    assert await patient.prepare_many([], group="billing") == []
    assert await patient.end_many([], COMMIT) == []
    with pytest.raises(InvalidArgument, match="ends nothing"):
        await patient.end_many(good[:1], UNKNOWN)


async def test_ends_of_messages_with_an_order_follow_each_other(
    gateway: FakeTransactions, patient: AsyncProducer
) -> None:
    messages = [Message("orders", b"x", sharding_key="42") for _ in range(3_000)]
    prepared = [one for one in await patient.prepare_many(messages, group="billing") if isinstance(one, Prepared)]
    lose(gateway, "EndTransaction")
    await patient.end_many(prepared, COMMIT)
    asked = [[end.transaction_id for end in request.ends] for request in gateway.ends]
    assert asked[0] == asked[1], "the first one was not repeated"
    # A busy machine repeats others, too, and each before the next.
    assert list(chain.from_iterable(ids for ids, _ in groupby(asked))) == [one.id for one in prepared]


async def test_ends_that_are_refused_are_errors_of_their_own(
    gateway: FakeTransactions, producer: AsyncProducer
) -> None:
    prepared = await producer.prepare_many([Message("orders", b"x") for _ in range(3)], group="billing")
    good = [one for one in prepared if isinstance(one, Prepared)]
    strange = Prepared(pb.PrepareResult(transaction_id="t99", message_id="m99"), "orders", "billing")
    others = Prepared(pb.PrepareResult(transaction_id=good[0].id, message_id="m0"), "orders", "others")
    gateway.halves[good[2].id].state = GIVEN_UP
    outcomes = await producer.end_many([strange, good[1], others, good[2]], COMMIT)
    assert [type(one) for one in outcomes] == [NotFound, Ended, PermissionDenied, Conflict]
    assert [one.reason for one in outcomes if isinstance(one, DueTimeError)] == [
        "TRANSACTION_NOT_FOUND",
        "TRANSACTION_OF_ANOTHER_GROUP",
        "TRANSACTION_GIVEN_UP",
    ]
    (by_operator,) = await producer.end_many([good[2]], ROLLBACK, given_up=True)
    assert isinstance(by_operator, Ended)
    assert by_operator.state == "rolled back"


async def test_concurrent_transactions_share_requests(gateway: FakeTransactions, patient: AsyncProducer) -> None:
    async def one(n: int) -> None:
        async with patient.transaction("orders", b"%d" % n, group="billing"):
            pass

    await asyncio.gather(*(one(n) for n in range(200)))
    assert states(gateway) == [COMMITTED] * 200
    assert len(gateway.prepares) < 20
    assert len(gateway.ends) < 40


async def test_a_closed_producer_decides_nothing_more(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    with pytest.raises(Closed, match=r"the producer is closed; whether transaction t0 was ended by this commit"):
        async with producer.transaction("orders", b"x", group="billing"):
            await producer.close()
    with pytest.raises(Closed):
        await producer.prepare_many([Message("orders", b"x")], group="billing")


async def test_a_group_without_a_check_handler_is_logged_once(
    gateway: FakeTransactions, producer: AsyncProducer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "duetime.producer"):
        for _ in range(3):
            async with producer.transaction("orders", b"x", group="billing"):
                pass
    assert [record.getMessage() for record in caplog.records] == [
        "producer group billing: this producer answers no checks of it; without another that does, transactions that "
        "are not ended are given up in the end"
    ]


async def test_transactions_are_listed_and_found(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    for group, count in (("billing", 5), ("shipping", 2)):
        await producer.prepare_many([Message(group, b"x", id=f"{group}-{n}") for n in range(count)], group=group)
    gateway.halves["t1"].state = GIVEN_UP
    async with AsyncFinder(gateway.address) as finder:
        every = [one async for one in finder.transactions()]
        assert [one.id for one in every] == [f"t{n}" for n in range(7)]
        assert [one.id async for one in finder.transactions("billing", state="given up")] == ["t1"]
        assert [one.id async for one in finder.transactions(topic="shipping", prepared_before=moment(5))] == [
            "t5",
            "t6",
        ]
        assert gateway.lists[-1].prepared_before_ms == 5
        first, second = every[:2]
        assert (first.message_id, first.group, first.topic, first.queue) == ("billing-0", "billing", "billing", 1)
        assert (first.state, first.checks, first.next_check_at) == ("open", 0, moment(NOW_MS + 6_000))
        assert (first.ended_at, second.ended_at, second.next_check_at) == (None, moment(NOW_MS + 9_000), None)
        assert (first.message, first.receipt) == (None, None)
        await producer.end_many([first], COMMIT)
        for key in ("t0", "billing-0"):
            found = await finder.transaction(key)
            assert (found.id, found.state) == ("t0", "committed")
            assert found.message is not None
            assert found.message.body == b"x"
            assert found.receipt is not None
        with pytest.raises(NotFound):
            await finder.transaction("none")
        with pytest.raises(InvalidArgument, match="neither 'open' nor 'given up'"):
            await anext(finder.transactions(state="committed"))  # type: ignore[arg-type]
