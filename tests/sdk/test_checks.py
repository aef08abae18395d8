"""Check handlers: answers, streams that break, bounds, the end; clients that block."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from duetime import (
    AsyncFinder,
    AsyncProducer,
    Closed,
    Decision,
    Finder,
    InvalidArgument,
    Message,
    Prepared,
    Producer,
    UndecidedMessage,
)
from duetime.client.message import moment
from duetime.client.sending import checking
from duetime.v1 import transactions_pb2 as pb
from duetime_core.errors import DueTimeError, Overloaded, Unsupported, Violation
from duetime_core.testing import LocalCluster

from tests.sdk.consuming import until
from tests.sdk.gateway import Gateway
from tests.tap import WAIT_S

COMMIT, ROLLBACK, UNKNOWN = Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN


class Checks(Gateway):
    """Streams of checks as they pass."""

    def __init__(self, nodes: LocalCluster) -> None:
        super().__init__(nodes)
        self.watch = self._watch
        # Groups that the node has begun to watch for, in the order of its first answers.
        self.watched: list[str] = []
        # Transactions by the checks that the node has sent.
        self.asked: list[str] = []

    @property
    def watch_count(self) -> int:
        return len(self.remaining["WatchTransactions"])

    @property
    def answers(self) -> list[tuple[str, int]]:
        """Transactions and decisions."""
        requests = self.requests["WatchTransactions"]
        return [(end.transaction_id, end.decision) for request in requests for end in request.ends]

    def _watch(self, method: str, sent: list[Any], answer: Any) -> None:
        if method == "WatchTransactions" and answer is not None:
            self.asked += [check.transaction_id for check in answer.checks]
            self.watched += [] if answer.checks else [sent[0].group]

    async def ask(self, *ids: str, number: int = 1) -> None:
        """Open transactions get their check of this number; the one before was heard."""
        await self.until(lambda: self.watched)
        async with asyncio.timeout(WAIT_S), AsyncFinder(self.node) as finder:
            while any([(await finder.transaction(one)).checks != number - 1 for one in ids]):
                continue
        await asyncio.to_thread(self.nodes.advance, "30s")

    async def until_states(self, ids: list[str], *states: str) -> None:
        """Answers in a stream are not answered: the node is asked until it has them."""
        async with asyncio.timeout(WAIT_S), AsyncFinder(self.node) as finder:
            while [(await finder.transaction(one)).state for one in ids] != list(states):
                continue


@pytest.fixture
async def tap(nodes: LocalCluster) -> AsyncIterator[Checks]:
    async with Checks(nodes) as tap:
        yield tap


@pytest.fixture
async def producer(tap: Checks, quick: None) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(tap.address, timeout="60s") as producer:
        yield producer


async def prepare(producer: AsyncProducer, topic: str, group: str, count: int = 1) -> list[str]:
    """Ids of transactions that are open."""
    messages = [Message(topic, b"%d" % n, tags="paid", key="42", properties={"a": "b"}) for n in range(count)]
    prepared = await producer.prepare_many(messages, group=group)
    return [one.id for one in prepared if isinstance(one, Prepared)]


async def test_a_handler_answers_checks(tap: Checks, topic: str, group: str, producer: AsyncProducer) -> None:
    seen: list[UndecidedMessage] = []

    @producer.check(group)
    async def resolve(message: UndecidedMessage) -> Decision:
        seen.append(message)
        return {b"0": COMMIT, b"1": ROLLBACK, b"2": UNKNOWN}[message.body]

    ids = await prepare(producer, topic, group, 3)
    prepared_at = moment(tap.nodes.now_ms())
    await tap.ask(*ids)
    await tap.until(lambda: len(tap.answers) == 3)
    decisions = [pb.DECISION_COMMIT, pb.DECISION_ROLLBACK, pb.DECISION_UNKNOWN]
    assert dict(tap.answers) == dict(zip(ids, decisions, strict=True))
    await tap.until_states(ids, "committed", "rolled back", "open")
    first = min(seen, key=lambda message: message.body)
    assert (first.id, first.group, first.topic, first.number) == (ids[0], group, topic, 1)
    assert (first.tags, first.keys, first.properties) == ("paid", ["42"], {"a": "b"})
    assert (first.prepared_at, first.message_id) == (prepared_at, tap.requests["Prepare"][0].messages[0].id)


async def test_a_plain_function_runs_in_a_thread(tap: Checks, topic: str, group: str, producer: AsyncProducer) -> None:
    threads: list[threading.Thread] = []

    @producer.check(group)
    def resolve(message: UndecidedMessage) -> Decision:
        threads.append(threading.current_thread())
        return COMMIT

    await tap.ask(*await prepare(producer, topic, group, 2))
    await tap.until(lambda: len(tap.answers) == 2)
    assert {decision for _, decision in tap.answers} == {pb.DECISION_COMMIT}
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("plain", [False, True])
async def test_a_failed_handler_answers_unknown_and_is_asked_again(
    tap: Checks, topic: str, group: str, producer: AsyncProducer, caplog: pytest.LogCaptureFixture, plain: bool
) -> None:
    def fail(message: UndecidedMessage) -> Decision:
        if message.number == 1:
            raise SystemExit if message.body == b"1" else ValueError("the database is away")
        return COMMIT if message.number > 2 else None  # type: ignore[return-value]

    async def fail_too(message: UndecidedMessage) -> Decision:
        return fail(message)

    producer.check(group)(fail if plain else fail_too)
    ids = await prepare(producer, topic, group, 2)
    for number in (1, 2, 3):
        await tap.ask(*ids, number=number)
        await tap.until(lambda count=2 * number: len(tap.answers) == count)  # type: ignore[misc]
    for one in ids:
        decisions = [decision for transaction, decision in tap.answers if transaction == one]
        assert decisions == [pb.DECISION_UNKNOWN] * 2 + [pb.DECISION_COMMIT]
    texts = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert sorted(texts) == ["", *["the check handler returned None, not a Decision"] * 2, "the database is away"]


@pytest.mark.parametrize(
    "fault",
    [Overloaded("as the test wants it", reason="WATCHERS_EXHAUSTED"), Unsupported([Violation("", "as a proxy says")])],
    ids=["full", "proxy"],
)
async def test_a_stream_that_breaks_is_opened_again(
    tap: Checks,
    topic: str,
    group: str,
    producer: AsyncProducer,
    caplog: pytest.LogCaptureFixture,
    fault: DueTimeError,
) -> None:
    @producer.check(group)
    async def resolve(message: UndecidedMessage) -> Decision:
        return COMMIT

    (transaction,) = await prepare(producer, topic, group)
    await tap.until(lambda: tap.watched)
    tap.closed["WatchTransactions"] = fault
    tap.end("WatchTransactions")
    await until(lambda: tap.refused["WatchTransactions"])
    tap.closed.clear()
    await tap.until(lambda: len(tap.watched) >= 2)
    await tap.stop()
    await tap.start()
    await tap.until(lambda: len(tap.watched) >= 3)
    await tap.ask(transaction)
    await tap.until_states([transaction], "committed")
    assert f"checks of producer group {group}: the server ended the stream; trying again" in caplog.text


async def test_an_answer_waits_for_the_next_stream(
    tap: Checks, topic: str, group: str, producer: AsyncProducer
) -> None:
    decide, seen = asyncio.Event(), list[str]()

    @producer.check(group)
    async def resolve(message: UndecidedMessage) -> Decision:
        seen.append(message.id)
        await decide.wait()
        return COMMIT

    (first,) = await prepare(producer, topic, group)
    await tap.ask(first)
    await until(lambda: seen == [first])
    tap.end("WatchTransactions")
    await tap.until(lambda: len(tap.watched) >= 2)
    # The second check of the first transaction comes together with the first check of another.
    (second,) = await prepare(producer, topic, group)
    await tap.ask(first, number=2)
    await until(lambda: len(seen) == 2)
    assert tap.asked == [first, first, second]
    decide.set()
    await tap.until(lambda: len(set(tap.answers)) == 2)
    # An answer accepted by the first stream may be sent again.
    assert set(tap.answers) == {(first, pb.DECISION_COMMIT), (second, pb.DECISION_COMMIT)}
    assert seen == [first, second]


async def test_a_group_that_is_not_known_yet_is_watched_after_its_first_transaction(
    tap: Checks, topic: str, group: str, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "GROUP_WAIT_S", 60.0)

    @producer.check(group)
    async def resolve(message: UndecidedMessage) -> Decision:
        return COMMIT

    await tap.until(lambda: tap.watch_count == 1)
    async with producer.transaction(topic, b"x", group=group):
        await tap.until(lambda: tap.watched)


async def test_a_group_that_another_producer_makes_known_is_found(
    tap: Checks, topic: str, group: str, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "GROUP_WAIT_S", 0.01)

    @producer.check(group)
    async def resolve(message: UndecidedMessage) -> Decision:
        return COMMIT

    await tap.until(lambda: tap.watch_count == 3)
    async with AsyncProducer(tap.address) as other:
        await prepare(other, topic, group)
    await tap.until(lambda: tap.watched)


async def test_a_name_that_the_server_refuses_ends_the_watching(
    tap: Checks, group: str, producer: AsyncProducer, caplog: pytest.LogCaptureFixture
) -> None:
    producer.check("x y")(lambda _: COMMIT)
    await asyncio.gather(*producer._transacting.checks._tasks.values())
    assert "checks of producer group x y are not answered" in caplog.text
    assert tap.watch_count == 1


async def test_handlers_are_bounded(tap: Checks, topic: str, group: str, producer: AsyncProducer) -> None:
    running: list[str] = []
    most, step = 0, asyncio.Semaphore(0)

    @producer.check(group, concurrency=3)
    async def resolve(message: UndecidedMessage) -> Decision:
        nonlocal most
        running.append(message.id)
        most = max(most, len(running))
        await step.acquire()
        running.remove(message.id)
        return COMMIT

    ids = await prepare(producer, topic, group, 20)
    await tap.ask(*ids)
    await until(lambda: len(running) == 3)
    for _ in ids:
        step.release()
    await tap.until(lambda: len(tap.answers) == 20)
    assert most == 3


async def test_closing_producer_delivers_its_decisions(tap: Checks, topic: str, group: str, quick: None) -> None:
    decide, begun = asyncio.Event(), asyncio.Event()
    async with AsyncProducer(tap.address) as producer:

        @producer.check(group)
        async def resolve(message: UndecidedMessage) -> Decision:
            begun.set()
            await decide.wait()
            return COMMIT

        (transaction,) = await prepare(producer, topic, group)
        await tap.ask(transaction)
        await begun.wait()
        closing = asyncio.create_task(producer.close())
        await tap.until(lambda: not tap.open["WatchTransactions"])
        decide.set()
        await closing
    await tap.until_states([transaction], "committed")
    assert [request.group for request in tap.requests["EndTransaction"]] == [group]
    with pytest.raises(Closed):
        producer.check("others")


async def test_a_handler_that_hangs_does_not_hold_up_the_end(
    tap: Checks, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "DRAIN_S", 0.01)
    begun = asyncio.Event()
    async with AsyncProducer(tap.address) as producer:

        @producer.check(group)
        async def resolve(message: UndecidedMessage) -> Decision:
            begun.set()
            await asyncio.Event().wait()
            return COMMIT

        (transaction,) = await prepare(producer, topic, group)
        await tap.ask(transaction)
        await begun.wait()
    await tap.until_states([transaction], "open")


async def test_a_group_has_one_handler(producer: AsyncProducer) -> None:
    producer.check("billing")(lambda _: COMMIT)
    with pytest.raises(InvalidArgument, match="billing already has a check handler"):
        producer.check("billing")
    for arguments in ({"group": ""}, {"group": "x", "concurrency": 0}, {"group": "x", "concurrency": 1_001}):
        with pytest.raises(InvalidArgument):
            producer.check(**arguments)


@pytest.fixture
def threaded(nodes: LocalCluster, quick: None) -> Iterator[Checks]:
    """On the event loop of its nodes."""
    tap = Checks(nodes)
    nodes.run(tap.start())
    yield tap
    nodes.run(tap.stop())


def test_plain_code_has_transactions_and_checks(threaded: Checks, topic: str, group: str, nodes: LocalCluster) -> None:
    with Producer(threaded.address) as producer, Finder(threaded.node) as finder:

        @producer.check(group)
        def resolve(message: UndecidedMessage) -> Decision:
            return COMMIT if message.body == b"yes" else ROLLBACK

        with producer.transaction(topic, b"x", delay="15m", group=group) as tx:
            assert (tx.group, finder.transaction(tx.id).state) == (group, "open")
        assert tx.result is not None
        assert tx.result.lane == 1_000
        with pytest.raises(KeyError), producer.transaction(topic, b"x", group=group) as broken:
            raise KeyError
        with pytest.raises(KeyboardInterrupt), producer.transaction(topic, b"yes", group=group) as undecided:
            raise KeyboardInterrupt
        ends = [finder.transaction(one.id).state for one in (tx, broken, undecided)]
        assert ends == ["committed", "rolled back", "open"]
        nodes.advance("6s")
        nodes.run(threaded.until(lambda: threaded.answers))
        assert threaded.answers == [(undecided.id, pb.DECISION_COMMIT)]
        others = f"{group}-others"
        with producer.transaction(topic, b"x", group=others) as left:
            left.leave_open()
            assert repr(left).startswith(f"Transaction(Prepared({left.id}, ")
        with pytest.raises(KeyboardInterrupt), producer.transaction(topic, b"x", group=others) as interrupted:
            raise KeyboardInterrupt
        assert [finder.transaction(one.id).state for one in (left, interrupted)] == ["open", "rolled back"]
