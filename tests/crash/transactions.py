"""`make transactions`: transactions, while gateway, store, scheduler, retry service and producers are killed.

Producers are processes. Their database (SQLite, which a kill does not tear) records each decision: a producer writes it
there before it ends the transaction, ends some and forgets others, and dies at any time. Any living producer answers
checks from the database; a check of an undecided transaction decides it: rolled back.

The topic's final contents decide:

    COMMIT in the database       delivered once, and not before the delay that counts from the commit
    ROLLBACK, or nothing         never delivered
    any                          has ended: no transaction is left open, and the half topic has one message for each

TXS, KILLS and SEED are environment variables.
"""

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
from duetime import AsyncProducer, Decision, Message
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2, transactions_pb2
from duetime_core.rpc.serving import make_channel
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import HALF_TOPIC
from duetime_shard import shard as state

from bench.processes import NAMES, Processes
from tests.crash.contents import drain
from tests.crash.pulling import pulled

TOPIC, GROUP = "transacted", "billing"
QUEUES = 4
PRODUCERS = 3
BATCH = 50
DELAYS_MS = (0, 0, 0, 300, 1_000)
# Shares: immediate decisions, commits among these, and forgotten ends among these.
DECIDED, COMMITTED, FORGOTTEN = 0.85, 0.7, 0.1
# The first check of an undecided transaction often comes too soon.
UNKNOWN = 0.3
# Longer than any outage.
TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 10.0
SETTLED_S, DRAIN_S = 180.0, 120.0
SETTINGS = {
    "DUETIME_LOG_LEVEL": "WARNING",
    "DUETIME_TRANSACTION_TIMEOUT_MS": "1500",
    "DUETIME_STORE_TRANSACTION_CHECK_INTERVAL_MS": "1000",
    # Kills make checks that nobody answers.
    "DUETIME_STORE_TRANSACTION_CHECKS_MAX": "1000",
}
COMMIT, ROLLBACK = "COMMIT", "ROLLBACK"


class Decisions:
    """The producers' database: the first decision about an id counts."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.execute("CREATE TABLE IF NOT EXISTS begun (id TEXT PRIMARY KEY, delay_ms INT)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS decided (id TEXT PRIMARY KEY, decision TEXT, at_ms INT)")

    def begin(self, messages: Sequence[tuple[str, int]]) -> None:
        self._all("INSERT INTO begun VALUES (?, ?)", messages)

    def begun(self) -> dict[str, int]:
        """The delay of each id."""
        return dict(self._connection.execute("SELECT id, delay_ms FROM begun"))

    def begun_count(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM begun").fetchone()[0])

    def decide(self, decisions: dict[str, str]) -> dict[str, str]:
        """Records decisions; returns the valid one for each id."""
        now_ms = time.time_ns() // 1_000_000
        rows = [(message_id, decision, now_ms) for message_id, decision in decisions.items()]
        self._all("INSERT OR IGNORE INTO decided VALUES (?, ?, ?)", rows)
        return {message_id: found for message_id in decisions if (found := self.of(message_id)) is not None}

    def of(self, message_id: str) -> str | None:
        row = self._connection.execute("SELECT decision FROM decided WHERE id = ?", (message_id,)).fetchone()
        return None if row is None else str(row[0])

    def all(self) -> dict[str, tuple[str, int]]:
        """Decision and its time in Unix ms, by id."""
        return {row[0]: row[1:] for row in self._connection.execute("SELECT id, decision, at_ms FROM decided")}

    def _all(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(statement, rows)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


# --- a producer -----------------------------------------------------------------------------------------------------


async def produce(address: str, path: Path, name: str, count: int) -> None:
    """Begins transactions until there are `count` of all producers; then answers checks until it is killed."""
    dice = random.Random(name)
    with closing(Decisions(path)) as decisions:
        async with AsyncProducer(address, timeout=timedelta(seconds=TIMEOUT_S)) as producer:

            @producer.check(GROUP)
            async def resolve(message: object) -> Decision:
                message_id = message.message_id  # type: ignore[attr-defined]
                decision = decisions.of(message_id)
                if decision is None and dice.random() < UNKNOWN:
                    return Decision.UNKNOWN
                return Decision[decision or decisions.decide({message_id: ROLLBACK})[message_id]]

            number = 0
            while decisions.begun_count() < count:
                await _transact(producer, decisions, dice, [f"{name}-{number + at}" for at in range(BATCH)])
                number += BATCH
            await asyncio.Event().wait()


async def _transact(producer: AsyncProducer, decisions: Decisions, dice: random.Random, ids: Sequence[str]) -> None:
    delays_ms = {message_id: dice.choice(DELAYS_MS) for message_id in ids}
    decisions.begin(list(delays_ms.items()))
    messages = [Message(TOPIC, message_id.encode(), f"{delays_ms[message_id]}ms", id=message_id) for message_id in ids]
    outcomes = await producer.prepare_many(messages, group=GROUP, errors="return")
    prepared = {one.message_id: one for one in outcomes if not isinstance(one, Exception)}
    decided = {
        message_id: COMMIT if dice.random() < COMMITTED else ROLLBACK
        for message_id in prepared
        if dice.random() < DECIDED
    }
    counts = decisions.decide(decided)
    for decision in (COMMIT, ROLLBACK):
        ending = [prepared[one] for one, what in counts.items() if what == decision and dice.random() >= FORGOTTEN]
        if ending:
            await producer.end_many(ending, Decision[decision], errors="return")


@dataclass
class Producers:
    """Producer processes; a killed one is followed by another."""

    address: str
    path: Path
    count: int
    lives: int = 0

    def start(self) -> subprocess.Popen[bytes]:
        self.lives += 1
        command = [sys.executable, "-m", "tests.crash.transactions", "produce", self.address, str(self.path)]
        return subprocess.Popen([*command, f"p{self.lives}", str(self.count)])


# --- the truth ------------------------------------------------------------------------------------------------------


def faults(
    begun: dict[str, int], decided: dict[str, tuple[str, int]], messages: Sequence[message_pb2.StoredMessage]
) -> Iterator[str]:
    """All that was delivered and should not be, or the other way round."""
    delivered = Counter(one.id for one in messages)
    yield from (f"{message_id}: nobody prepared it" for message_id in delivered.keys() - begun.keys())
    for message_id in begun:
        decision, _ = decided.get(message_id, ("", 0))
        wanted = int(decision == COMMIT)
        if delivered[message_id] != wanted:
            yield f"{message_id}: {decision or 'undecided'}, delivered {delivered[message_id]} times"
    for one in messages:
        decision, at_ms = decided.get(one.id, ("", 0))
        if decision and one.stored_at_ms < at_ms + begun[one.id]:
            yield f"{one.id}: {at_ms + begun[one.id] - one.stored_at_ms} ms before its delay was over"


def half_count(folder: Path) -> int:
    """Half messages that were ever stored by a shard."""
    found = state.read(folder, DelayLevels.parse(DEFAULT_DELAY_LEVELS))
    queue = found.queues.get((HALF_TOPIC, 0))
    return queue.max_offset if queue else 0


# --- a run ----------------------------------------------------------------------------------------------------------


async def _prepare(address: str) -> None:
    async with make_channel(address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        request = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=QUEUES)
        await stub.CreateTopic(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)


async def _settled(address: str) -> None:
    """Returns once no transaction is open or given up."""
    async with make_channel(address) as channel, asyncio.timeout(SETTLED_S):
        stub = gateway_pb2_grpc.GatewayStub(channel)
        while True:
            try:
                request = transactions_pb2.ListTransactionsRequest(group=GROUP)
                if not (await stub.ListTransactions(request, timeout=CALL_TIMEOUT_S)).transactions:
                    return
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(0.2)


async def run(cluster: Processes, folder: Path, count: int, kills: int, dice: random.Random) -> Counter[str]:
    """Runs `count` transactions. Returns the decisions. Raises: AssertionError: one was not carried out."""
    await _prepare(cluster.address)
    path = folder / "decisions.db"
    producers = Producers(cluster.address, path, count)
    with closing(Decisions(path)) as decisions:
        running = [producers.start() for _ in range(PRODUCERS)]
        try:
            began_s, killed = time.monotonic(), Counter[str]()
            while decisions.begun_count() < count:
                await asyncio.sleep(dice.choice([0.1, dice.uniform(0.3, 1.0), dice.uniform(1.0, 2.0)]))
                if killed.total() < kills:
                    victim = dice.choice([*NAMES, "producer"])
                    if victim == "producer":
                        index = dice.randrange(PRODUCERS)
                        running[index].kill()
                        running[index].wait()
                        running[index] = producers.start()
                    else:
                        cluster.kill(victim)
                    killed[victim] += 1
                assert all(one.poll() is None for one in running), "a producer ended by itself"
            took_s = time.monotonic() - began_s
            await _settled(cluster.address)
        finally:
            for one in running:
                one.kill()
                one.wait()
        await drain(cluster.address, DRAIN_S)
        messages = await pulled(cluster.address, TOPIC)
        begun, decided = decisions.begun(), decisions.all()
    cluster.stop()
    halves = half_count(cluster.directory / "data" / "store-0")
    answers = Counter(decision for decision, _ in decided.values())
    print(
        f"{len(begun)} transactions in {took_s:.0f} s, kills: {dict(killed)}; {dict(answers)}, {halves} half messages"
    )
    found = list(faults(begun, decided, messages))
    assert not found, "\n".join([f"{len(found)} transactions were not carried out:", *found[:20]])
    assert halves <= len(begun), f"{halves} half messages of {len(begun)} transactions"
    return answers


def main() -> None:
    if sys.argv[1:2] == ["produce"]:
        asyncio.run(produce(sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
        return
    count, kills = int(os.environ.get("TXS") or "20000"), int(os.environ.get("KILLS") or "60")
    seed = int(os.environ.get("SEED") or time.time_ns() % 1_000_000_000)
    print(f"seed {seed}: {count} transactions, {kills} kills at most", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="duetime-transactions-") as folder,
        Processes(Path(folder) / "cluster", SETTINGS, impatient=True) as cluster,
    ):
        try:
            asyncio.run(run(cluster, Path(folder), count, kills, random.Random(seed)))
        except AssertionError as error:
            print(f"FAILED, seed {seed}: {error}", flush=True)
            sys.exit(1)


if __name__ == "__main__":
    main()
