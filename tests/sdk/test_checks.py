"""Check handlers against a fake gateway: answers, streams that break, bounds, the end; the synchronous face."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from duetime import AsyncProducer, Closed, Decision, InvalidArgument, Message, Prepared, Producer, UndecidedMessage
from duetime.client.message import moment
from duetime.client.sending import checking
from duetime.v1 import transactions_pb2 as pb

from tests.sdk.fake_transactions import COMMITTED, NOW_MS, OPEN, ROLLED_BACK, FakeTransactions
from tests.sdk.threaded import served

COMMIT, ROLLBACK, UNKNOWN = Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN


@pytest.fixture
async def gateway() -> AsyncIterator[FakeTransactions]:
    gateway = FakeTransactions()
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest.fixture
async def producer(gateway: FakeTransactions, quick: None) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(gateway.address, timeout=10) as producer:
        yield producer


async def prepare(producer: AsyncProducer, count: int = 1, group: str = "billing") -> list[str]:
    """Ids of transactions that are open."""
    messages = [Message("orders", b"%d" % n, tags="paid", key="42", properties={"a": "b"}) for n in range(count)]
    prepared = await producer.prepare_many(messages, group=group)
    return [one.id for one in prepared if isinstance(one, Prepared)]


async def watched(gateway: FakeTransactions, group: str = "billing") -> None:
    await gateway.until(lambda: group in gateway.watchers)


async def test_a_handler_answers_checks(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    seen: list[UndecidedMessage] = []

    @producer.check("billing")
    async def resolve(message: UndecidedMessage) -> Decision:
        seen.append(message)
        return {b"0": COMMIT, b"1": ROLLBACK, b"2": UNKNOWN}[message.body]

    ids = await prepare(producer, 3)
    await watched(gateway)
    gateway.ask("billing", *ids)
    await gateway.until(lambda: len(gateway.answers) == 3)
    assert dict(gateway.answers) == {"t0": pb.DECISION_COMMIT, "t1": pb.DECISION_ROLLBACK, "t2": pb.DECISION_UNKNOWN}
    assert [half.state for half in gateway.halves.values()] == [COMMITTED, ROLLED_BACK, OPEN]
    (first, *_) = seen
    assert (first.id, first.group, first.topic, first.number) == ("t0", "billing", "orders", 1)
    assert (first.tags, first.keys, first.properties) == ("paid", ["42"], {"a": "b"})
    assert (first.prepared_at, first.message_id) == (moment(NOW_MS), gateway.halves["t0"].message.id)


async def test_a_plain_function_runs_in_a_thread(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    threads: list[threading.Thread] = []

    @producer.check("billing")
    def resolve(message: UndecidedMessage) -> Decision:
        threads.append(threading.current_thread())
        return COMMIT

    ids = await prepare(producer, 2)
    await watched(gateway)
    gateway.ask("billing", *ids)
    await gateway.until(lambda: len(gateway.answers) == 2)
    assert {decision for _, decision in gateway.answers} == {pb.DECISION_COMMIT}
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_that_fails_says_unknown_and_is_asked_again(
    gateway: FakeTransactions, producer: AsyncProducer, caplog: pytest.LogCaptureFixture, plain: bool
) -> None:
    def fail(message: UndecidedMessage) -> Decision:
        if message.number == 1:
            raise SystemExit if message.body == b"1" else ValueError("the database is away")
        return COMMIT if message.number > 2 else None  # type: ignore[return-value]

    async def fail_too(message: UndecidedMessage) -> Decision:
        return fail(message)

    producer.check("billing")(fail if plain else fail_too)  # type: ignore[arg-type]
    ids = await prepare(producer, 2)
    await watched(gateway)
    for number in (1, 2, 3):
        gateway.ask("billing", *ids)
        await gateway.until(lambda many=2 * number: len(gateway.answers) == many)
    assert [decision for _, decision in gateway.answers] == [pb.DECISION_UNKNOWN] * 4 + [pb.DECISION_COMMIT] * 2
    texts = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert sorted(texts) == ["", *["the check handler returned None, no Decision"] * 2, "the database is away"]


async def test_a_stream_that_breaks_is_opened_again(
    gateway: FakeTransactions, producer: AsyncProducer, caplog: pytest.LogCaptureFixture
) -> None:
    @producer.check("billing")
    async def resolve(message: UndecidedMessage) -> Decision:
        return COMMIT

    (transaction,) = await prepare(producer)
    await watched(gateway)
    count = gateway.watch_count
    gateway.statuses["WatchTransactions"] = deque([grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED])
    gateway.watchers["billing"].put_nowait(None)
    await gateway.until(lambda: gateway.watch_count == count + 3)
    await watched(gateway)
    await gateway.stop()
    await gateway.start()
    await gateway.until(lambda: gateway.watch_count > count + 3)
    await watched(gateway)
    gateway.ask("billing", transaction)
    await gateway.until(lambda: bool(gateway.answers))
    assert gateway.halves[transaction].state == COMMITTED
    assert "checks of producer group billing: the server ended the stream; trying again" in caplog.text


async def test_an_answer_waits_for_the_next_stream(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    decide, seen = asyncio.Event(), list[str]()

    @producer.check("billing")
    async def resolve(message: UndecidedMessage) -> Decision:
        seen.append(message.id)
        await decide.wait()
        return COMMIT

    (transaction,) = await prepare(producer)
    await watched(gateway)
    gateway.ask("billing", transaction)
    # The same check, given again while the handler thinks, starts no second one.
    gateway.ask("billing", transaction)
    count = gateway.watch_count
    gateway.watchers["billing"].put_nowait(None)
    await gateway.until(lambda: gateway.watch_count > count)
    decide.set()
    await gateway.until(lambda: bool(gateway.answers))
    # An answer that the first stream took may be given again.
    assert set(gateway.answers) == {(transaction, pb.DECISION_COMMIT)}
    assert seen == [transaction]


async def test_a_group_that_is_not_known_yet_is_watched_after_its_first_transaction(
    gateway: FakeTransactions, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "GROUP_WAIT_S", 60.0)

    @producer.check("billing")
    async def resolve(message: UndecidedMessage) -> Decision:
        return COMMIT

    await gateway.until(lambda: gateway.watch_count == 1)
    async with producer.transaction("orders", b"x", group="billing"):
        await watched(gateway)


async def test_a_group_that_another_producer_makes_known_is_found(
    gateway: FakeTransactions, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "GROUP_WAIT_S", 0.01)

    @producer.check("billing")
    async def resolve(message: UndecidedMessage) -> Decision:
        return COMMIT

    await gateway.until(lambda: gateway.watch_count == 3)
    async with AsyncProducer(gateway.address) as other:
        await prepare(other)
    await watched(gateway)


async def test_a_name_that_the_server_refuses_ends_the_watching(
    gateway: FakeTransactions, producer: AsyncProducer, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.statuses["WatchTransactions"] = deque([grpc.StatusCode.INVALID_ARGUMENT])
    producer.check("x y")(lambda _: COMMIT)
    await asyncio.gather(*producer._transacting.checks._tasks.values())
    assert "checks of producer group x y are not answered" in caplog.text
    assert gateway.watch_count == 1


async def test_handlers_are_bounded(gateway: FakeTransactions, producer: AsyncProducer) -> None:
    running: list[str] = []
    most, step = 0, asyncio.Semaphore(0)

    @producer.check("billing", concurrency=3)
    async def resolve(message: UndecidedMessage) -> Decision:
        nonlocal most
        running.append(message.id)
        most = max(most, len(running))
        gateway.note()
        await step.acquire()
        running.remove(message.id)
        return COMMIT

    ids = await prepare(producer, 20)
    await watched(gateway)
    gateway.ask("billing", *ids[:10])
    gateway.ask("billing", *ids[10:])
    await gateway.until(lambda: len(running) == 3)
    for _ in ids:
        step.release()
    await gateway.until(lambda: len(gateway.answers) == 20)
    assert most == 3


async def test_the_end_of_the_producer_delivers_what_is_decided(gateway: FakeTransactions, quick: None) -> None:
    decide, begun = asyncio.Event(), asyncio.Event()
    async with AsyncProducer(gateway.address) as producer:

        @producer.check("billing")
        async def resolve(message: UndecidedMessage) -> Decision:
            begun.set()
            await decide.wait()
            return COMMIT

        (transaction,) = await prepare(producer)
        await watched(gateway)
        gateway.ask("billing", transaction)
        await begun.wait()
        closing = asyncio.create_task(producer.close())
        await gateway.until(lambda: not gateway.watchers)
        decide.set()
        await closing
    assert gateway.halves[transaction].state == COMMITTED
    assert [request.group for request in gateway.ends] == ["billing"]
    with pytest.raises(Closed):
        producer.check("others")


async def test_a_handler_that_hangs_does_not_hold_up_the_end(
    gateway: FakeTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "DRAIN_S", 0.01)
    begun = asyncio.Event()
    async with AsyncProducer(gateway.address) as producer:

        @producer.check("billing")
        async def resolve(message: UndecidedMessage) -> Decision:
            begun.set()
            await asyncio.Event().wait()
            return COMMIT

        (transaction,) = await prepare(producer)
        await watched(gateway)
        gateway.ask("billing", transaction)
        await begun.wait()
    assert gateway.halves[transaction].state == OPEN


async def test_a_group_has_one_handler(producer: AsyncProducer) -> None:
    producer.check("billing")(lambda _: COMMIT)
    with pytest.raises(InvalidArgument, match="billing already has a check handler"):
        producer.check("billing")
    for arguments in ({"group": ""}, {"group": "x", "concurrency": 0}, {"group": "x", "concurrency": 1_001}):
        with pytest.raises(InvalidArgument):
            producer.check(**arguments)  # type: ignore[arg-type]


@pytest.fixture
def threaded(quick: None) -> Iterator[tuple[FakeTransactions, asyncio.AbstractEventLoop]]:
    """A gateway on an event loop in a thread of its own."""
    gateway = FakeTransactions()
    with served(gateway) as loop:
        yield gateway, loop


def test_plain_code_has_transactions_and_checks(
    threaded: tuple[FakeTransactions, asyncio.AbstractEventLoop],
) -> None:
    gateway, loop = threaded
    with Producer(gateway.address) as producer:

        @producer.check("billing")
        def resolve(message: UndecidedMessage) -> Decision:
            return COMMIT if message.body == b"yes" else ROLLBACK

        with producer.transaction("orders", b"x", delay="15m", group="billing") as tx:
            assert (tx.id, tx.group, gateway.halves["t0"].state) == ("t0", "billing", OPEN)
        assert tx.result is not None
        assert tx.result.lane == 1_000
        with pytest.raises(KeyError), producer.transaction("orders", b"x", group="billing") as tx:
            raise KeyError
        with pytest.raises(KeyboardInterrupt), producer.transaction("orders", b"yes", group="billing") as tx:
            raise KeyboardInterrupt
        assert [half.state for half in gateway.halves.values()] == [COMMITTED, ROLLED_BACK, OPEN]

        async def ask() -> None:
            await watched(gateway)
            gateway.ask("billing", "t2")
            await gateway.until(lambda: bool(gateway.answers))

        asyncio.run_coroutine_threadsafe(ask(), loop).result(10)
        assert gateway.answers == [("t2", pb.DECISION_COMMIT)]
        with producer.transaction("orders", b"x", group="others") as tx:
            tx.leave_open()
            assert repr(tx).startswith("Transaction(Prepared(t3, ")
        with pytest.raises(KeyboardInterrupt), producer.transaction("orders", b"x", group="others"):
            raise KeyboardInterrupt
        assert [half.state for half in gateway.halves.values()][3:] == [OPEN, ROLLED_BACK]
