"""The life of a cluster, by dice: sends and outcomes are recorded as they happen."""

import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duetime import AsyncDeadLetters, AsyncProducer, Message
from duetime.v1 import consumer_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster, FakeClock
from duetime_format.levels import DelayLevels

from tests.spark.reading import Log, log_of

TOPICS = ("orders", "mail")
GROUP = "billing"
RETRY_TOPIC = f"%RETRY%{GROUP}"
# Retries wait for 5 s and 30 s, which are levels 2 and 3 of both.
TABLES = ("1s 5s 30s 2m 10m 1h", "2s 5s 30s 3m 10m 1h 2h")
SHORT_MS, LONG_MS = 2_000, 12 * 3_600_000
MIB = 1024 * 1024
ERRORS = (("TimeoutError", "no answer from 10.0.0.{n} in {n} ms"), ("ValueError", "'card {n}' is refused"))
SIGNATURES = {"TimeoutError": "TimeoutError: no answer from # in # ms", "ValueError": "ValueError: '?' is refused"}


@dataclass
class Waiting:
    """A message in a lane: its topic is where it goes to."""

    shard: int
    level: int
    topic: str
    due_at_ms: int


@dataclass
class Account:
    waiting: dict[str, Waiting] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    # (topic, end) of deliveries, and (topic, attempt) of those that succeeded.
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    succeeded: Counter[tuple[str, int]] = field(default_factory=Counter)
    # (topic, signature, attempts) by id, of existing dead letters.
    letters: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    # Deliveries that had failed before a redrive, by id.
    before: Counter[str] = field(default_factory=Counter)
    # (shard, level, offset) of lane records that were damaged on the disk.
    damaged: list[tuple[int, int, int]] = field(default_factory=list)

    def pending(self, now_ms: int) -> list[Waiting]:
        return [one for one in self.waiting.values() if one.due_at_ms > now_ms]


class Story:
    """Steps of a cluster's life; `account` is right after each of them."""

    def __init__(self, directory: Path, seed: int, *, shards: int, consumes: bool, settings: dict[str, Any]) -> None:
        self.directory = directory
        self.dice = random.Random(seed)
        self.clock = FakeClock()
        self.account = Account()
        self.shards = shards
        self._consumes = consumes
        self._settings = {"segment_bytes": MIB, "accept_delay_levels": True, "checkpoint_bytes": MIB, **settings}
        # The export limit waits on the clock, which is stopped.
        self._settings["export_bytes_per_s"] = 0
        self._count = 0
        self.table = TABLES[0]
        self.cluster: Cluster
        self._producer: AsyncProducer
        self._stub: Any

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    @property
    def roots(self) -> dict[int, Path]:
        return {shard: self.directory / f"store-{shard}" for shard in range(self.shards)}

    @asynccontextmanager
    async def life(self, table: str) -> AsyncIterator[None]:
        self.table = table
        cluster = Cluster(
            self.directory,
            shards=self.shards,
            delay_levels=table,
            clock=self.clock,
            store_settings=self._settings,
            gateway_settings={"queue_count_default": 2},
        )
        async with cluster, AsyncProducer(cluster.address) as producer:
            self.cluster, self._producer = cluster, producer
            channel = make_channel(cluster.address)
            self._stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
            try:
                await cluster.settle()
                yield
            finally:
                await channel.close()

    async def live(self, steps: int) -> None:
        for _ in range(steps):
            chosen = self.dice.choices([self.send, self.pass_time, self.leap], [5, 3, 1])
            if self._consumes and self.dice.random() < 0.4:
                chosen = [self.dice.choice([self.consume, self.consume, self.bring_back])]
            await chosen[0]()

    # --- steps ------------------------------------------------------------------------------------------------------

    async def send(self) -> None:
        dice, levels = self.dice, DelayLevels.parse(self.table)
        sizes = (0, 20, 300, 3_000) if self._consumes else (0, 300, 3_000, 20_000)
        messages = []
        for _ in range(dice.randrange(1, 60)):
            self._count += 1
            body, level = dice.randbytes(dice.choice(sizes)), dice.choice((0, *range(levels.highest + 1)))
            messages.append(
                Message(dice.choice(TOPICS), body, level=level, id=f"m{self._count}", tags=dice.choice("ab"))
            )
        for message, receipt in zip(messages, await self._producer.send_many(messages, errors="return"), strict=True):
            assert not isinstance(receipt, Exception), receipt
            self.account.sent[message.topic] += 1
            if receipt.lane:
                due_at_ms = self.now_ms + levels.delay_ms(receipt.lane)
                waiting = Waiting(receipt.shard, receipt.lane, message.topic, due_at_ms)
                self.account.waiting[receipt.message_id] = waiting

    async def pass_time(self) -> None:
        await self.cluster.advance(f"{self.dice.choice((1, 400, 3_000, 20_000, 60_000))}ms")

    async def leap(self) -> None:
        """The schedulers are held up: messages due in that time are late."""
        self.clock.move(self.dice.choice((50, 300, 2_500)))
        await self.cluster.settle()

    async def consume(self) -> None:
        """Leases that end in all ways; those of one step end alike."""
        topic, act = (
            self.dice.choice(TOPICS),
            self.dice.choice(("ack", "ack", "nack", "reject", "return", "keep", "expire")),
        )
        invisible_ms = {"keep": LONG_MS, "expire": SHORT_MS}.get(act, 60_000)
        count = self.dice.randrange(1, 40)
        request = consumer_pb2.ReceiveRequest(
            group=GROUP, topic=topic, max_count=count, invisible_ms=invisible_ms, max_attempts=100
        )
        leased = (await self._stub.Receive(request, timeout=60)).messages
        if not leased:
            return
        receipts = [one.receipt for one in leased]
        end = {"ack": "acked", "return": "returned", "keep": "open", "expire": "expired"}.get(act)
        if end:
            self.account.ends[topic, end] += len(leased)
        if act == "ack":
            for one in leased:
                self.account.succeeded[topic, one.attempt] += 1
            answer = await self._stub.Ack(consumer_pb2.AckRequest(group=GROUP, receipts=receipts), timeout=60)
            assert not any(answer.statuses)
        elif act == "return":
            request = consumer_pb2.ChangeInvisibleRequest(group=GROUP, receipts=receipts, not_attempted=True)
            assert not any((await self._stub.ChangeInvisible(request, timeout=60)).statuses)
        elif act == "expire":
            await self.cluster.advance(f"{SHORT_MS + 1}ms")
        elif act in ("nack", "reject"):
            await self._fail(topic, list(leased), reject=act == "reject")

    async def _fail(self, topic: str, leased: list[Any], *, reject: bool) -> None:
        kind, words = self.dice.choice(ERRORS)
        nacks = []
        for one in leased:
            error = consumer_pb2.HandlerError(type=kind, message=words.format(n=self.dice.randrange(1, 999)))
            nacks.append(consumer_pb2.Nack(receipt=one.receipt, error=error, reject=reject))
        request = consumer_pb2.NackRequest(group=GROUP, nacks=nacks)
        request.policy.intervals.delays_ms.extend((5_000, 30_000))
        request.policy.max_attempts = 100
        for one, result in zip(leased, (await self._stub.Nack(request, timeout=60)).results, strict=True):
            assert (result.status, result.attempt) == (consumer_pb2.RECEIPT_STATUS_OK, one.attempt)
            self.account.ends[topic, "dead" if result.dead else "failed"] += 1
            if result.dead:
                attempts = self.account.before[one.message.id] + one.attempt
                self.account.letters[one.message.id] = (topic, SIGNATURES[kind], attempts)
            else:
                delay_ms = result.deliver_at_ms - self.now_ms
                level = {5_000: 2, 30_000: 3}[delay_ms]
                key = f"{one.message.id} again {one.attempt} {self.now_ms}"
                self.account.waiting[key] = Waiting(-1, level, RETRY_TOPIC, result.deliver_at_ms)

    async def bring_back(self) -> None:
        """Some dead letters are redriven or discarded."""
        letters = self.account.letters
        chosen = self.dice.sample(sorted(letters), len(letters) // 3)
        if not chosen:
            return
        async with AsyncDeadLetters(self.cluster.address, GROUP) as client:
            act = self.dice.choice((client.redrive, client.discard))
            async for result in act(ids=chosen):
                assert result.error is None
                self.account.before[result.id] = letters.pop(result.id)[2]
        assert not letters.keys() & set(chosen)

    # --- between lives ----------------------------------------------------------------------------------------------

    def copy(self, to: Path) -> dict[int, Path]:
        """Copies the directories as a crash would leave them. The loop is blocked during the copy; a running checkpoint
        is allowed to end, for a copy takes its files one after the other.
        """
        for shard, root in self.roots.items():
            target, before = to / f"store-{shard}", None
            while before != (now := _stamps(root)):
                before = now
                shutil.rmtree(target, ignore_errors=True)
                with suppress(shutil.Error):
                    shutil.copytree(root, target, ignore=shutil.ignore_patterns("lock"))
        return {shard: to / f"store-{shard}" for shard in self.roots}

    def crash_to(self, copied: dict[int, Path]) -> None:
        """Puts copies in the place of directories that were closed in good order."""
        for shard, root in self.roots.items():
            shutil.rmtree(root)
            shutil.move(copied[shard], root)

    def damage(self, count: int) -> None:
        """Flips a bit in the bodies of some lane records that still wait."""
        log = log_of(self.roots)
        places = [
            (lane, offset, found.position, len(found.body))
            for lane, entries in sorted(log.entries.items())
            for offset, found in sorted(entries.items())
            if found.body and offset not in log.restored[lane] and offset not in log.dead[lane]
        ]
        for (shard, level), offset, position, size in self.dice.sample(places, min(count, len(places))):
            base = position // MIB * MIB
            with (self.roots[shard] / "commitlog" / f"{base:020d}").open("r+b") as file:
                file.seek(position - base + 88 + self.dice.randrange(size))
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 1 << self.dice.randrange(8)]))
            self.account.damaged.append((shard, level, offset))


def _stamps(root: Path) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in root.rglob("*"):
        with suppress(FileNotFoundError):
            found[path] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found


@dataclass
class Moment:
    """A stage of a story: copies of its directories at one time, and the stores' reports then."""

    story: Story
    roots: dict[int, Path]
    account: Account
    now_ms: int
    # (watermark, lowest and next offset, pending) by shard and level.
    lanes: dict[tuple[int, int], tuple[int, int, int, int]]

    @property
    def log(self) -> Log:
        return log_of(self.roots)


def lanes_of(cluster: Cluster) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    return {
        (shard, lane.number): (lane.watermark, lane.queue.min_offset, lane.queue.max_offset, lane.pending_count)
        for shard, node in enumerate(cluster.stores)
        for lane in node.store.lanes
        # A lane for any time that never had an entry has no files.
        if lane.number < 1_000 or lane.queue.max_offset
    }


async def begun(directory: Path, seed: int, *, shards: int, consumes: bool, **settings: Any) -> Story:
    """Two lives: a changed level table and damage between them, and a crash at the end."""
    story = Story(directory, seed, shards=shards, consumes=consumes, settings=settings)
    async with story.life(TABLES[0]):
        await story.send()
        story.clock.move(2_500)
        await story.cluster.settle()
        await story.live(25)
    story.damage(5)
    async with story.life(TABLES[1]):
        await story.live(25)
        copied = story.copy(directory / "crashed")
    story.crash_to(copied)
    return story


async def told(directory: Path, seed: int, *, shards: int = 2, consumes: bool = True, **settings: Any) -> Moment:
    """A third life, at the end of which a copy is taken, of stores that run."""
    story = await begun(directory, seed, shards=shards, consumes=consumes, **settings)
    async with story.life(TABLES[1]):
        await story.cluster.advance("4m")
        await story.live(25)
        await story.send()
        story.clock.move(2_500)
        await story.cluster.settle()
        roots = story.copy(directory / "end")
        return Moment(story, roots, story.account, story.now_ms, lanes_of(story.cluster))
