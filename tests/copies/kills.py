"""Three store processes under load, whose copies are killed and stopped: nothing answered is lost, doubled or early.

    faults   leader killed | follower killed, then the leader | leader stopped, and continued later | two killed
             a byte of a follower's log changed | follower lost, and replaced

After each fault the writers' ledger is compared with the shard, as after kills of one store (tests/crash). Receivers
lease messages for longer than the run: each is leased once. In the end all logs are equal.
"""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from duetime.v1 import consumer_pb2
from duetime_core.access.credentials import NO_CREDENTIALS
from duetime_core.errors import DueTimeError
from duetime_core.node.settings import parse_stores
from duetime_format.levels import DelayLevels
from duetime_store.copies.entries import Entry
from duetime_store.copies.scanning import View, scan
from duetime_store.copies.statefile import StateFile
from duetime_store.files.disk import Disk
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.segment import file_name
from duetime_store.offline.members import Operator
from duetime_store.offline.verify import verify

from tests.copies.processes import DEADLINE_S, LEVELS, MIB, QUICK, Trio
from tests.crash.test_store_kills import TOPIC, WRITERS, Ledger, check, restore, write

GROUP = "auditors"
INVISIBLE_MS = 3_600_000
DISTURBED_MAX = 20


class Disturbed(Exception):
    """The leader has changed for want of processor time, and the round's fault did not happen."""


@dataclass
class Run:
    """The load and its truth. `takeovers_s`: from a leader's fault to the first answer of the next one."""

    trio: Trio
    dice: random.Random
    ledger: Ledger = field(default_factory=Ledger)
    leased: set[tuple[int, int]] = field(default_factory=set)
    takeovers_s: list[float] = field(default_factory=list)
    faults: int = 0
    disturbed: int = 0
    entries: int = 0
    # Whether the load ends: one of its calls has failed, or the fault is over.
    is_over: bool = False

    async def round(self, fault: "Callable[[Run], Awaitable[None]]") -> None:
        """Compares the shard with the ledger; then load, and the fault in the middle of it."""
        await self.steadily(lambda: check(self.trio.stub, self.ledger))
        before, self.is_over = list(self.ledger.acknowledged), False
        async with asyncio.TaskGroup() as group:
            for load in self.loads():
                group.create_task(self._until_over(load))
            try:
                await self.progress(before)
                await asyncio.sleep(self.dice.uniform(0.0, 0.3))
                await fault(self)
                self.faults += 1
            except Disturbed:
                self.disturbed += 1
            # A call that waits for the next leader ends no load.
            self.is_over = True
            await self.trio.revive()

    async def steadily(self, act: Callable[[], Awaitable[None]]) -> None:
        """Runs an act that may be repeated, until the leader has stayed for all of it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await self.trio.describe()
                    await act()
                except grpc.aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        raise
                    await self.trio.revive()
                else:
                    return

    def loads(self) -> list[Awaitable[None]]:
        """The calls of a round; each ends when the store is gone, or when the load is over."""
        stub, ledger = self.trio.stub, self.ledger
        writers = [write(stub, writer, ledger, self.dice, self._is_wanted) for writer in range(WRITERS + 1)]
        return [*writers, restore(stub, ledger, self._is_wanted), self._lease()]

    def _is_wanted(self) -> bool:
        return not self.is_over

    async def _until_over(self, load: Awaitable[None]) -> None:
        await load
        self.is_over = True

    async def progress(self, before: list[int]) -> None:
        """Returns once each writer has more acknowledged than before."""
        async with asyncio.timeout(DEADLINE_S):
            while not all(now > old for now, old in zip(self.ledger.acknowledged, before, strict=True)):
                if self.is_over:
                    raise Disturbed
                await asyncio.sleep(0.01)

    async def joined(self, leader: int, number: int) -> None:
        """Returns once the leader hears the copy, which has nearly all entries."""
        async with asyncio.timeout(DEADLINE_S):
            while not await asyncio.to_thread(self.trio.is_heard, leader, number):
                if self.is_over:
                    raise Disturbed
                await asyncio.sleep(0.05)

    async def _lease(self) -> None:
        """Receives until the load is over, and acknowledges a part."""
        numbers = [consumer_pb2.QueueNumber(queue=number, shard_queue=number) for number in range(WRITERS)]
        request = consumer_pb2.ReceiveRequest(
            group=GROUP, topic=TOPIC, max_count=100, invisible_ms=INVISIBLE_MS, queues=numbers, wait_ms=100
        )
        while not self.is_over:
            try:
                messages = (await self.trio.stub.Receive(request, timeout=DEADLINE_S)).messages
                for one in messages:
                    place = one.message.queue, one.message.offset
                    assert place not in self.leased, f"{place} was leased twice"
                    self.leased.add(place)
                receipts = [one.receipt for one in messages[::2]]
                if receipts:
                    ack = consumer_pb2.AckRequest(group=GROUP, receipts=receipts)
                    assert not (await self.trio.stub.Ack(ack, timeout=DEADLINE_S)).statuses
            except grpc.aio.AioRpcError:
                return

    async def takeover(self, since: float) -> None:
        """Waits for the answer of the next leader."""
        while True:
            try:
                await self.trio.describe()
            except grpc.aio.AioRpcError:
                continue
            self.takeovers_s.append(time.monotonic() - since)
            return


async def leader_killed(run: Run) -> None:
    since = time.monotonic()
    await run.trio.kill(await run.trio.leader())
    await run.takeover(since)


async def follower_killed(run: Run) -> None:
    """Two of three continue without an error; the third catches up, and the leader goes."""
    trio, leader = run.trio, await run.trio.leader()
    follower = run.dice.choice([number for number in trio.processes if number != leader])
    await trio.kill(follower)
    await run.progress(list(run.ledger.acknowledged))
    await trio.start(follower)
    await run.joined(leader, follower)
    await leader_killed(run)


async def leader_stopped(run: Run) -> None:
    """The others elect; the old leader drops its tail and ends when it continues."""
    trio, leader = run.trio, await run.trio.leader()
    old, since = trio.processes.pop(leader), time.monotonic()
    old.send_signal(signal.SIGSTOP)
    try:
        await run.takeover(since)
    finally:
        old.send_signal(signal.SIGCONT)
    async with asyncio.timeout(DEADLINE_S):
        assert await old.wait() == 1, "a deposed leader went on"


async def two_killed(run: Run) -> None:
    """Nothing is accepted until one returns; the leader ends, too."""
    trio, leader = run.trio, await run.trio.leader()
    first, second = run.dice.sample([number for number in trio.processes if number != leader], 2)
    last = trio.processes[leader]
    await trio.kill(first)
    await trio.kill(second)
    async with asyncio.timeout(DEADLINE_S):
        assert await last.wait() == 1, "a leader without a majority went on"
    since = time.monotonic()
    await asyncio.gather(trio.revive(), run.takeover(since))


async def follower_damaged(run: Run) -> None:
    """A byte of an old entry changes on a follower's disk: it fetches the range, and follows again."""
    trio, leader = run.trio, await run.trio.leader()
    follower = run.dice.choice([number for number in trio.processes if number != leader])
    await trio.kill(follower)
    flip(trio.data(follower), run.dice)
    await trio.start(follower)
    other = next(number for number in trio.processes if number not in (leader, follower))
    await run.joined(leader, follower)
    # Without the repaired copy there is no majority.
    await trio.kill(other)
    await run.progress(list(run.ledger.acknowledged))
    await trio.start(other)
    await run.joined(leader, other)
    await leader_killed(run)


async def follower_replaced(run: Run) -> None:
    """A follower's machine is lost: a new copy takes the directory of another one, and its place."""
    trio, leader = run.trio, await run.trio.leader()
    old = run.dice.choice([number for number in trio.processes if number != leader])
    await trio.kill(old)
    new = await trio.prepare(old)
    operator = Operator(parse_stores(trio.copies), NO_CREDENTIALS)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await operator.add(new, trio.address_of(new), old, print)
    except DueTimeError:
        # The leader has changed meanwhile; the repeated command continues.
        async with asyncio.timeout(DEADLINE_S):
            await trio.revive()
            await operator.add(new, trio.address_of(new), old, print)
        raise Disturbed from None
    other = next(number for number in trio.processes if number not in (leader, new))
    # Without the new copy there is no majority.
    await trio.kill(other)
    await run.progress(list(run.ledger.acknowledged))
    await trio.start(other)
    await run.joined(leader, other)
    await leader_killed(run)


def flip(root: Path, dice: random.Random) -> None:
    """Changes a byte of an entry before the last two."""
    log, entries = entries_of(root)
    log.close()
    entry = dice.choice(entries[:-2])
    position = dice.randrange(entry.position, entry.end)
    with (root / "commitlog" / file_name(position - position % MIB)).open("r+b") as file:
        file.seek(position % MIB)
        (byte,) = file.read(1)
        file.seek(position % MIB)
        file.write(bytes([byte ^ 1 << dice.randrange(8)]))


FAULTS = (leader_killed, follower_killed, leader_stopped, two_killed, follower_damaged, follower_replaced)


def entries_of(root: Path) -> tuple[CommitLog, list[Entry]]:
    """The log of a copy that does not run, and its entries."""
    disk = Disk()
    file = StateFile(disk, root)
    log = CommitLog(disk, root / "commitlog", MIB)
    found = scan(View(log), file.state.group, file.state.base)
    assert found.damage is None
    file.close()
    return log, found.entries


def kept(entries: Sequence[Entry], known: Sequence[Mapping[int, int]]) -> Sequence[Entry]:
    """The entries without the tail of a copy that was killed before it dropped it. A majority does not have such an
    entry, and another copy has one of a later term at its index. `known`: terms by index, of all copies."""
    for place, entry in enumerate(entries):
        terms = [terms.get(entry.index, 0) for terms in known]
        if 2 * terms.count(entry.term) <= len(terms) and max(terms) > entry.term:
            return entries[:place]
    return entries


def compare(trio: Trio) -> int:
    """The directories are sound, and the logs equal up to the end of the shortest one; entries that were overruled do
    not count. Returns its entries."""
    for number in trio.numbers:
        report = verify(trio.data(number), DelayLevels.parse(LEVELS))
        assert report.is_sound, f"copy {number}: {report.damages[:3]}"
    opened = {number: entries_of(trio.data(number)) for number in trio.numbers}
    assert all(entries for _, entries in opened.values()), "a copy has no entry"
    known = [{entry.index: entry.term for entry in entries} for _, entries in opened.values()]
    count = min(kept(entries, known)[-1].index for _, entries in opened.values())
    ends = {entry.end for _, entries in opened.values() for entry in entries if entry.index == count}
    assert len(ends) == 1, f"the copies end entry {count} at {ends}"
    (end,) = ends
    for position in range(0, end, MIB):
        parts = {log.read(position, min(MIB, end - position)) for log, _ in opened.values()}
        assert len(parts) == 1, f"the logs differ behind {position}"
    for log, _ in opened.values():
        log.close()
    return count


async def run_faults(root: Path, dice: random.Random, faults: int) -> Run:
    """Runs the faults in turn, each kind at least once if there are enough."""
    kinds = [*FAULTS, *dice.choices(FAULTS, k=max(faults - len(FAULTS), 0))][:faults]
    dice.shuffle(kinds)
    async with Trio(root, **QUICK) as trio:
        run = await run_kinds(trio, dice, kinds)
    run.entries = compare(trio)
    return run


async def run_kinds(trio: Trio, dice: random.Random, kinds: Sequence[Callable[[Run], Awaitable[None]]]) -> Run:
    """Runs these faults in turn; the copies are to be compared afterwards."""
    faults, kinds = len(kinds), [*kinds]
    run = Run(trio, dice)
    while kinds:
        await run.round(kinds[0])
        if run.faults + len(kinds) > faults:
            kinds.pop(0)
        assert run.disturbed <= DISTURBED_MAX, "faults do not happen: one failure ends the shard"
    run.ledger.forget_compared()
    await run.steadily(lambda: check(trio.stub, run.ledger))
    await trio.caught_up()
    return run
