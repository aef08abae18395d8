"""Producers' transactions: ends of blocks, lost answers, rejections, batch forms."""

import asyncio
import logging
import re
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

from tests.sdk.gateway import Gateway

OPEN, COMMITTED, ROLLED_BACK = "open", "committed", "rolled back"
COMMIT, ROLLBACK, UNKNOWN = Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN


@pytest.fixture
async def patient(tap: Gateway, quick: None) -> AsyncIterator[AsyncProducer]:
    """With the usual timeout: for tests whose requests are large."""
    async with AsyncProducer(tap.address) as producer:
        yield producer


@pytest.fixture
async def producer(tap: Gateway, quick: None) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(tap.address, timeout="60s") as producer:
        yield producer


@pytest.fixture
async def hasty(tap: Gateway, quick: None) -> AsyncIterator[AsyncProducer]:
    """A producer with a timeout short for tests, yet long enough for a busy machine."""
    async with AsyncProducer(tap.address, timeout="2s") as producer:
        yield producer


def lose(tap: Gateway, method: str, count: int = 1) -> None:
    tap.lose(method, codes=[grpc.StatusCode.UNAVAILABLE] * count)


async def states(tap: Gateway) -> list[str]:
    """Of the transactions, in the order of their prepare."""
    messages = [message for request in tap.requests["Prepare"] for message in request.messages]
    names = dict.fromkeys((message.topic, message.id) for message in messages)
    async with AsyncFinder(tap.node) as finder:
        return [(await finder.transaction(one, topic=topic)).state for topic, one in names]


async def decide(tap: Gateway, tx: AsyncTransaction, decision: Decision) -> None:
    """Another producer of the group ends it."""
    one = Prepared(pb.PrepareResult(transaction_id=tx.id, message_id=tx.message_id), tx.topic, tx.group)
    async with AsyncProducer(tap.node) as other:
        (ended,) = await other.end_many([one], decision)
    assert isinstance(ended, Ended)


async def give_up(tap: Gateway) -> None:
    """The nodes end open transactions."""
    await asyncio.to_thread(tap.nodes.advance, "11m")


def unknown(transaction_id: str) -> str:
    """Of no transaction."""
    shard, _, rest = transaction_id.split(".", 2)
    return f"{shard}.99999999.{rest}"


class Broken(Exception):
    """An exception raised by a block."""


async def broken_block(
    producer: AsyncProducer, topic: str, work: Callable[[AsyncTransaction], Awaitable[object]]
) -> None:
    """A block that does something and then raises."""
    async with producer.transaction(topic, b"x", group=f"{topic}-broken") as tx:
        await work(tx)
        raise Broken


async def test_the_end_of_the_block_commits(tap: Gateway, topic: str, group: str, producer: AsyncProducer) -> None:
    async with producer.transaction(
        topic, b"cancel 42", delay="15m", group=group, tags="timeout", key="42", keys=["43"],
        properties={"a": "b"}, sharding_key="42", queue=1, flag=7, id="m42", retry="1s,max=3", check_after="1m",
    ) as tx:  # fmt: skip
        assert (tx.message_id, tx.topic, tx.group, tx.duplicate) == ("m42", topic, group, False)
        assert tx.check_at == moment(tap.nodes.now_ms() + 60_000)
        assert await states(tap) == [OPEN]
        assert tx.result is None
    assert await states(tap) == [COMMITTED]
    (request,), (message,) = tap.requests["Prepare"], tap.requests["Prepare"][0].messages
    assert (request.group, request.check_immunity_s) == (group, 60)
    assert (message.topic, message.body, message.delay_ms, message.id) == (topic, b"cancel 42", 900_000, "m42")
    assert (message.tags, list(message.keys), dict(message.properties)) == ("timeout", ["42", "43"], {"a": "b"})
    assert (message.sharding_key, message.queue, message.flag, message.retry.max_attempts) == ("42", 1, 7, 3)
    assert tx.result is not None
    assert (tx.result.topic, tx.result.message_id, tx.result.lane) == (topic, "m42", 1_000)
    assert tx.result.deliver_at == moment(tap.nodes.now_ms() + 900_000)
    # The receipt of a delayed one names its place in the lane.
    assert (tx.result._ref().lane, tx.result._ref().entry) == (1_000, tx.result.offset)
    assert await tx.commit() is tx.result
    assert len(tap.requests["EndTransaction"]) == 1


async def test_an_exception_rolls_back(tap: Gateway, topic: str, group: str, producer: AsyncProducer) -> None:
    with pytest.raises(Broken) as raised:
        async with producer.transaction(topic, b"x", group=group) as tx:
            raise Broken
    assert await states(tap) == [ROLLED_BACK]
    assert not hasattr(raised.value, "__notes__")
    assert tx.result is None


async def test_decision_within_the_block_is_final(
    tap: Gateway, topic: str, group: str, producer: AsyncProducer
) -> None:
    async with producer.transaction(topic, b"0", group=group) as tx:
        receipt = await tx.commit()
        assert receipt is tx.result
    async with producer.transaction(topic, b"1", group=group) as tx:
        await tx.rollback()
    async with producer.transaction(topic, b"2", group=group) as tx:
        tx.leave_open()
    with pytest.raises(Broken):
        await broken_block(producer, topic, AsyncTransaction.commit)

    async def leave_open(tx: AsyncTransaction) -> None:
        tx.leave_open()

    with pytest.raises(Broken):
        await broken_block(producer, topic, leave_open)
    assert await states(tap) == [COMMITTED, ROLLED_BACK, OPEN, COMMITTED, OPEN]
    assert len(tap.requests["EndTransaction"]) == 3


async def test_lost_answers_are_asked_for_again(tap: Gateway, topic: str, group: str, producer: AsyncProducer) -> None:
    lose(tap, "Prepare")
    lose(tap, "EndTransaction", 2)
    async with producer.transaction(topic, b"x", group=group) as tx:
        pass
    assert [request.group for request in tap.requests["Prepare"]] == [group, group]
    assert [request.group for request in tap.requests["EndTransaction"]] == [group] * 3
    assert [list(request.ends) for request in tap.requests["EndTransaction"]] == [
        list(tap.requests["EndTransaction"][0].ends)
    ] * 3
    assert (tx.duplicate, await states(tap)) == (True, [COMMITTED])


async def test_an_undelivered_end_announces_a_check(tap: Gateway, topic: str, group: str, hasty: AsyncProducer) -> None:
    lose(tap, "EndTransaction", 1_000)
    with pytest.raises((Unavailable, Timeout)) as raised:
        async with hasty.transaction(topic, b"x", group=group, id="m0") as tx:
            pass
    text = f"it is unknown whether this commit ended transaction {tx.id}: if it is open, group {group} will be"
    assert text in str(raised.value)
    assert raised.value.message_id == "m0"
    with pytest.raises(Broken) as broken:
        async with hasty.transaction(topic, b"x", group=group) as tx:
            raise Broken
    (note,) = broken.value.__notes__
    assert note.startswith("duetime: not rolled back: ")
    assert f"it is unknown whether this rollback ended transaction {tx.id}" in note


async def test_after_a_commit_of_unknown_outcome_nothing_is_rolled_back(
    tap: Gateway, topic: str, hasty: AsyncProducer
) -> None:
    async def commit(tx: AsyncTransaction) -> None:
        lose(tap, "EndTransaction", 1_000)
        try:
            await tx.commit()
        finally:
            tap.after.clear()

    with pytest.raises((Unavailable, Timeout)):
        await broken_block(hasty, topic, commit)
    assert {end.decision for request in tap.requests["EndTransaction"] for end in request.ends} == {pb.DECISION_COMMIT}


async def test_a_decision_that_comes_too_late_is_a_conflict(
    tap: Gateway, topic: str, group: str, producer: AsyncProducer
) -> None:
    with pytest.raises(Conflict, match="is rolled back: it was decided before") as raised:
        async with producer.transaction(topic, b"x", group=group) as tx:
            await decide(tap, tx, ROLLBACK)
    assert raised.value.reason == "TRANSACTION_ROLLED_BACK"

    decided: list[str] = []

    async def commit(tx: AsyncTransaction) -> None:
        decided.append(tx.id)
        await decide(tap, tx, COMMIT)

    with pytest.raises(Broken) as broken:
        await broken_block(producer, topic, commit)
    assert broken.value.__notes__ == [
        f"duetime: not rolled back: transaction {decided[0]} is committed: it was decided before"
    ]
    with pytest.raises(Conflict, match="was given up") as raised:
        async with producer.transaction(topic, b"x", group=group):
            await give_up(tap)
    assert raised.value.reason == "TRANSACTION_GIVEN_UP"


async def test_a_message_that_is_refused_begins_no_block(
    tap: Gateway, topic: str, group: str, producer: AsyncProducer
) -> None:
    for arguments in (
        {"delay": "1x"},
        {"delay": "1s", "level": 3},
        {"group": ""},
        {"check_after": 0},
        {"check_after": timedelta(hours=73)},
    ):
        with pytest.raises(InvalidArgument):
            async with producer.transaction(topic, b"x", **({"group": group} | arguments)):
                pytest.fail("the block begins")
    assert tap.requests["Prepare"] == []
    with pytest.raises(TypeError, match="body is int"):
        producer.transaction(topic, 42, group=group)  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="starts at its with block"):
        await producer.transaction(topic, b"x", group=group).commit()
    async with producer.transaction(topic, b"x", group=group) as tx:
        pass
    with pytest.raises(Conflict, match="only one with block"):
        await tx.__aenter__()


async def interrupted(producer: AsyncProducer, topic: str, group: str) -> asyncio.CancelledError:
    inside = asyncio.Event()

    async def work() -> None:
        async with producer.transaction(topic, b"x", group=group):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    return raised.value


async def test_a_cancelled_block_is_rolled_back_without_a_watcher(
    tap: Gateway, group: str, topic: str, producer: AsyncProducer
) -> None:
    await interrupted(producer, topic, group)
    assert await states(tap) == [ROLLED_BACK]


async def test_a_cancelled_block_is_left_to_the_check_handler(
    tap: Gateway, topic: str, group: str, producer: AsyncProducer
) -> None:
    @producer.check(group)
    def resolve(message: object) -> Decision:
        return UNKNOWN

    await interrupted(producer, topic, group)
    assert await states(tap) == [OPEN]
    assert tap.requests["EndTransaction"] == []


async def test_a_cancelled_block_does_not_wait_for_a_rollback_that_hangs(
    tap: Gateway, group: str, topic: str, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_module, "INTERRUPTED_S", 0.05)
    tap.hold("EndTransaction")
    error = await interrupted(producer, topic, group)
    assert re.search(r"no answer to the rollback within 0\.05 s; if transaction \S+ is open", error.__notes__[0])
    tap.release()


async def test_a_generator_that_is_closed_leaves_its_transaction_open(
    tap: Gateway, topic: str, group: str, producer: AsyncProducer
) -> None:
    async def one() -> AsyncIterator[AsyncTransaction]:
        async with producer.transaction(topic, b"x", group=group) as tx:
            yield tx

    generator = one()
    await anext(generator)
    await generator.aclose()  # type: ignore[attr-defined]
    assert await states(tap) == [OPEN]


async def test_many_are_prepared_and_ended(tap: Gateway, topic: str, group: str, patient: AsyncProducer) -> None:
    messages = [Message(topic, b"%d" % n, id=f"m{n}") for n in range(2_500)]
    messages[7].delay = "1x"
    messages[8].replace = True
    prepared = await patient.prepare_many((one for one in messages), group=group, check_after="90s", errors="return")
    assert [one.message_id for one in prepared] == [message.id for message in messages]
    assert [n for n, one in enumerate(prepared) if not isinstance(one, Prepared)] == [7, 8]
    assert isinstance(prepared[8], InvalidMessage)
    assert max(len(request.messages) for request in tap.requests["Prepare"]) == 512
    assert {request.check_immunity_s for request in tap.requests["Prepare"]} == {90}
    good = [one for one in prepared if isinstance(one, Prepared)]
    assert (good[0].group, good[0].topic, good[0].check_at) == (
        group,
        topic,
        moment(tap.nodes.now_ms() + 90_000),
    )
    lose(tap, "EndTransaction")
    ended = await patient.end_many(good[:2_000], COMMIT) + await patient.end_many(iter(good[2_000:]), ROLLBACK)
    assert [one.state for one in ended if isinstance(one, Ended)] == ["committed"] * 2_000 + ["rolled back"] * 498
    first = ended[0]
    assert isinstance(first, Ended)
    assert first.receipt is not None
    assert (first.receipt.message_id, first.receipt.topic) == ("m0", topic)
    # Those whose first answer was lost.
    assert any(one.duplicate for one in ended if isinstance(one, Ended))
    assert sorted(len(request.ends) for request in tap.requests["EndTransaction"]) in (
        [498, 976, 976, 1_024],
        [498, 976, 1_024, 1_024],
    )
    (again,) = await patient.end_many(good[:1], ROLLBACK)
    assert isinstance(again, Ended)
    assert (again.state, again.duplicate) == ("committed", True)
    assert await patient.prepare_many([], group=group) == []
    assert await patient.end_many([], COMMIT) == []
    with pytest.raises(InvalidArgument, match="is not an end"):
        await patient.end_many(good[:1], UNKNOWN)
    block = patient.transaction(topic, b"x", group=group)
    with pytest.raises(TypeError, match="is not a transaction from `prepare_many` or a finder"):
        await patient.end_many([good[0], block], COMMIT)  # type: ignore[list-item]


async def test_ends_of_messages_with_an_order_follow_each_other(
    tap: Gateway, topic: str, group: str, patient: AsyncProducer
) -> None:
    messages = [Message(topic, b"x", sharding_key="42") for _ in range(3_000)]
    prepared = [one for one in await patient.prepare_many(messages, group=group) if isinstance(one, Prepared)]
    lose(tap, "EndTransaction")
    await patient.end_many(prepared, COMMIT)
    asked = [[end.transaction_id for end in request.ends] for request in tap.requests["EndTransaction"]]
    assert asked[0] == asked[1], "the first one was not repeated"
    # A busy machine repeats others, too, and each before the next.
    assert list(chain.from_iterable(ids for ids, _ in groupby(asked))) == [one.id for one in prepared]


async def test_ends_that_are_refused_are_errors_of_their_own(
    tap: Gateway, topic: str, group: str, producer: AsyncProducer
) -> None:
    (given_up,) = await producer.prepare_many([Message(topic, b"x")], group=group)
    assert isinstance(given_up, Prepared)
    await give_up(tap)
    prepared = await producer.prepare_many([Message(topic, b"x") for _ in range(2)], group=group)
    good = [one for one in prepared if isinstance(one, Prepared)]
    strange = Prepared(pb.PrepareResult(transaction_id=unknown(good[0].id), message_id="m99"), topic, group)
    others = Prepared(pb.PrepareResult(transaction_id=good[0].id, message_id="m0"), topic, f"{group}-others")
    outcomes = await producer.end_many([strange, good[1], others, given_up], COMMIT, errors="return")
    assert [type(one) for one in outcomes] == [NotFound, Ended, PermissionDenied, Conflict]
    assert [one.reason for one in outcomes if isinstance(one, DueTimeError)] == [
        "TRANSACTION_NOT_FOUND",
        "TRANSACTION_OF_ANOTHER_GROUP",
        "TRANSACTION_GIVEN_UP",
    ]
    (by_operator,) = await producer.end_many([given_up], ROLLBACK, given_up=True)
    assert isinstance(by_operator, Ended)
    assert by_operator.state == "rolled back"


async def test_concurrent_transactions_share_requests(
    tap: Gateway, topic: str, group: str, patient: AsyncProducer
) -> None:
    async def one(n: int) -> None:
        async with patient.transaction(topic, b"%d" % n, group=group):
            pass

    await asyncio.gather(*(one(n) for n in range(200)))
    assert await states(tap) == [COMMITTED] * 200
    assert len(tap.requests["Prepare"]) < 20
    assert len(tap.requests["EndTransaction"]) < 40


async def test_a_closed_producer_decides_nothing_more(
    tap: Gateway, topic: str, group: str, producer: AsyncProducer
) -> None:
    with pytest.raises(
        Closed, match=r"the producer is closed; it is unknown whether this commit ended transaction \S+"
    ):
        async with producer.transaction(topic, b"x", group=group):
            await producer.close()
    with pytest.raises(Closed):
        await producer.prepare_many([Message(topic, b"x")], group=group)


async def test_a_group_without_a_check_handler_is_logged_once(
    tap: Gateway, topic: str, group: str, producer: AsyncProducer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "duetime.producer"):
        for _ in range(3):
            async with producer.transaction(topic, b"x", group=group):
                pass
    assert [record.getMessage() for record in caplog.records] == [
        f"producer group {group}: this producer has no check handler for it; without one in another producer, open "
        "transactions are given up eventually"
    ]


async def test_transactions_are_listed_and_found(tap: Gateway, topic: str, group: str, producer: AsyncProducer) -> None:
    await producer.prepare_many([Message(topic, b"x", id=f"{group}-given-up")], group=group)
    sent_at = moment(tap.nodes.now_ms())
    await give_up(tap)
    for name, count in ((group, 4), (f"{group}-shipping", 2)):
        await producer.prepare_many([Message(name, b"x", id=f"{name}-{n}") for n in range(count)], group=name)
    prepared_at = moment(tap.nodes.now_ms())
    async with AsyncFinder(tap.address) as finder:
        every = [one async for one in finder.transactions(group)]
        assert [one.message_id for one in every] == [*(f"{group}-{n}" for n in range(4)), f"{group}-given-up"]
        assert [one.id async for one in finder.transactions(group, state="given up")] == [every[-1].id]
        before = [one async for one in finder.transactions(topic=f"{group}-shipping", prepared_before=prepared_at)]
        assert before == []
        shipping = [one.message_id async for one in finder.transactions(topic=f"{group}-shipping")]
        assert shipping == [f"{group}-shipping-{n}" for n in range(2)]
        first, *_, given_up = every
        assert (first.message_id, first.group, first.topic) == (f"{group}-0", group, group)
        assert (first.state, first.checks, first.ended_at) == ("open", 0, None)
        assert first.next_check_at == prepared_at + timedelta(seconds=6)
        assert (given_up.state, given_up.next_check_at) == ("given up", None)
        assert sent_at < given_up.ended_at <= prepared_at
        assert (first.message, first.receipt) == (None, None)
        await producer.end_many([first], COMMIT)
        for key in (first.id, first.message_id):
            found = await finder.transaction(key)
            assert (found.id, found.state) == (first.id, "committed")
            assert found.message is not None
            assert found.message.body == b"x"
            assert found.receipt is not None
        with pytest.raises(NotFound):
            await finder.transaction("none")
        with pytest.raises(InvalidArgument, match="neither 'open' nor 'given up'"):
            await anext(finder.transactions(state="committed"))  # type: ignore[arg-type]
