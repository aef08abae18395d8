"""Three store processes under load, whose network is cut: between two, around one, and in one direction alone.

Beside the load of kills.py, messages are cancelled, some when they fall due, and a group commits offsets. In the
end no answer was retracted:

    CANCELLED ─▶ never delivered      ALREADY_FIRED ─▶ delivered       an unanswered cancel is repeated
    CommitOffsets answered ─▶ a later read is not below it, nor above the last one that was tried
    restored ─▶ its due time was past by this machine's clock, also if the clock of one copy is wrong by an hour

Answers of one writer in one order need no search for an order, which a checker such as porcupine would do.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import grpc
from duetime.v1 import gateway_pb2, pending_pb2, store_pb2
from duetime_format import record
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record
from duetime_format.restore import PulledEntry
from duetime_format.restore import restore as restored_record

from tests.copies.kills import DISTURBED_MAX, Run, compare, leader_killed
from tests.copies.processes import DEADLINE_S, MIB, QUICK
from tests.copies.relays import RelayedTrio, Way
from tests.crash.test_store_kills import RESTORED_QUEUE, TOPIC, check, read_queue

CANCELLERS = 4
LANE, DELAY_MS = 2, 2_000
QUEUE = RESTORED_QUEUE + 1
READER = "reader"
HOUR_MS = 3_600_000
# A due time follows from the shard's clock, which may be late while machines are busy, but not by an hour.
CLOCK_OFF_MS_MAX = 120_000
CANCELLED, FIRED = pending_pb2.CANCEL_STATUS_CANCELLED, pending_pb2.CANCEL_STATUS_ALREADY_FIRED
RESTORED, GONE = store_pb2.PUT_STATUS_OK, (store_pb2.PUT_STATUS_CANCELLED, store_pb2.PUT_STATUS_DUPLICATE)


@dataclass
class CutRun(Run):
    """The load and its truth. Ids of messages that may be cancelled are numbers."""

    trio: RelayedTrio
    stored: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
    ended: dict[str, int] = field(default_factory=dict)
    numbers: int = 0
    # The group that commits: the last offset tried, and the last one answered.
    tried_offset: int = 0
    committed_offset: int = 0
    compared_cancels: int = 0

    def loads(self) -> list[Awaitable[None]]:
        cancellers = [self._cancel() for _ in range(CANCELLERS)]
        return [*super().loads(), *cancellers, self._commit(), self._restore()]

    async def _cancel(self) -> None:
        """Sends messages and cancels them, some when they fall due; first repeats a cancel without an answer."""
        try:
            while not self.is_over:
                if unanswered := sorted(self.tried - self.ended.keys()):
                    await self._end(self.dice.choice(unanswered))
                message_id, self.numbers = f"{self.numbers}", self.numbers + 1
                sent_at_ms = time.time() * 1000
                put = store_pb2.PutRequest(records=cancellable(message_id))
                answer = await self.trio.stub.Put(put, timeout=DEADLINE_S)
                assert not answer.statuses
                self.stored.add(message_id)
                # Half of them are pending, the others fall due.
                due_in_ms = max(sent_at_ms + DELAY_MS - time.time() * 1000, 0)
                await asyncio.sleep(self.dice.choice((0.0, 100.0, due_in_ms, due_in_ms + 20)) / 1000)
                await self._end(message_id)
        except grpc.aio.AioRpcError:
            return

    async def _end(self, message_id: str) -> None:
        self.tried.add(message_id)
        ref = pending_pb2.PendingRef(message_id=message_id, topic=TOPIC)
        request = pending_pb2.CancelRequest(messages=[ref])
        status = (await self.trio.stub.Cancel(request, timeout=DEADLINE_S)).results[0].status
        assert status in (CANCELLED, FIRED), f"{message_id}: {status}"
        assert self.ended.setdefault(message_id, status) == status, f"{message_id}: the answer changed"

    async def _commit(self) -> None:
        """Commits the offset after the last answered message of writer 0."""
        try:
            while not self.is_over:
                self.tried_offset = self.ledger.acknowledged[0]
                position = gateway_pb2.QueuePosition(queue=0, offset=self.tried_offset)
                request = gateway_pb2.CommitOffsetsRequest(group=READER, topic=TOPIC, queues=[position])
                await self.trio.stub.CommitOffsets(request, timeout=DEADLINE_S)
                self.committed_offset = self.tried_offset
                await asyncio.sleep(0.01)
        except grpc.aio.AioRpcError:
            return

    async def _restore(self) -> None:
        """Restores messages that nobody has cancelled, until the store is gone."""
        following = b""
        try:
            while not self.is_over:
                following = await self._restore_next(following)
        except grpc.aio.AioRpcError:
            return

    async def _restore_next(self, following: bytes) -> bytes:
        pull = store_pb2.PullDueRequest(lane=LANE, next=following, max_count=100, max_bytes=MIB, wait_ms=200)
        due = await self.trio.stub.PullDue(pull, timeout=DEADLINE_S)
        if not due.sizes:
            return due.next
        entries = list(due.entries) or [due.first_entry + index for index in range(len(due.sizes))]
        records, at = b"", 0
        for entry, size, due_at_ms in zip(entries, due.sizes, due.due_at_ms, strict=True):
            records += restored_record(PulledEntry(LANE, entry, due_at_ms, due.records[at : at + size]))
            at += size
        put = store_pb2.RestoreRequest(records=records, lane=LANE, first_entry=due.first_entry, entries=due.entries)
        answer = await self.trio.stub.Restore(put, timeout=DEADLINE_S)
        now_ms = time.time() * 1000
        for status, due_at_ms in zip(answer.statuses or [RESTORED] * len(entries), due.due_at_ms, strict=True):
            assert status == RESTORED or status in GONE, status
            assert abs(now_ms - due_at_ms) < CLOCK_OFF_MS_MAX
            assert status != RESTORED or now_ms >= due_at_ms, f"restored {due_at_ms - now_ms:.0f} ms early"
        return due.next

    async def check_offset(self) -> None:
        request = gateway_pb2.GetOffsetsRequest(group=READER, topic=TOPIC)
        queues = (await self.trio.stub.GetOffsets(request, timeout=DEADLINE_S)).queues
        found = next((one.offset for one in queues if one.queue == 0), 0)
        assert self.committed_offset <= found <= self.tried_offset, (self.committed_offset, found, self.tried_offset)
        self.committed_offset = found

    async def check_cancels(self) -> None:
        """Restores the rest of the lane, and compares the queue with all answers."""
        async with asyncio.timeout(DEADLINE_S):
            while await self._pending_count():
                await self._restore_next(b"")
        found = await read_queue(self.trio.stub, TOPIC, QUEUE, 0)
        came = Counter(decode_properties(one.properties)["UNIQ_KEY"] for one in found)
        assert set(came.values()) <= {1}, "a message was delivered twice"
        for message_id in self.stored - self.tried:
            assert message_id in came, f"{message_id} is lost"
        for message_id, status in self.ended.items():
            assert (message_id in came) == (status == FIRED), f"{message_id}: {status}, and it came {came[message_id]}"
        self.compared_cancels = len(self.ended)

    async def _pending_count(self) -> int:
        lanes = (await self.trio.stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=DEADLINE_S)).lanes
        return next((lane.pending_count for lane in lanes if lane.level == LANE), 0)

    async def cut(self, ways: list[Way], *, ends_leader: bool) -> None:
        """Cuts until the load has gone on or, if the leader has to end, another copy leads; then all is whole again."""
        trio, leader, before = self.trio, await self.trio.leader(), list(self.ledger.acknowledged)
        since = time.monotonic()
        trio.cut(ways)
        try:
            if ends_leader:
                async with asyncio.timeout(DEADLINE_S):
                    assert await trio.processes[leader].wait() == 1, "a leader that was cut off went on"
                await self.takeover(since)
            else:
                await self.progress(before)
        finally:
            trio.heal()
        if not ends_leader:
            await leader_killed(self)


def cancellable(message_id: str) -> bytes:
    """A record of the second level."""
    host = record.host_bytes("127.0.0.1", 1)
    kept = {"UNIQ_KEY": message_id} | record.deferral(LANE, TOPIC, QUEUE)
    made = Record(SCHEDULE_TOPIC, LANE - 1, message_id.encode(), b"", born_host=host, store_host=host)
    return record.encode(replace(made, properties=encode_properties(kept)))


async def leader_cut_off(way: str, run: Run) -> None:
    """`way`: both, out (nobody hears the leader), in (the leader hears nobody)."""
    assert isinstance(run, CutRun)
    leader = await run.trio.leader()
    others = [number for number in run.trio.numbers if number != leader]
    ways = {"out": [(leader, other) for other in others], "in": [(other, leader) for other in others]}
    await run.cut(ways.get(way) or [*ways["out"], *ways["in"]], ends_leader=True)


async def follower_cut_off(run: Run) -> None:
    assert isinstance(run, CutRun)
    leader = await run.trio.leader()
    alone = run.dice.choice([number for number in run.trio.numbers if number != leader])
    await run.cut([way for way in run.trio.relays if alone in way], ends_leader=False)


async def pair_cut(place: int, way: str, run: Run) -> None:
    """The leader and its follower at `place` (0, 1), or both followers (2)."""
    assert isinstance(run, CutRun)
    leader = await run.trio.leader()
    one, other = sorted(number for number in run.trio.numbers if number != leader)
    pair = ((leader, one), (leader, other), (one, other))[place]
    ways = {"out": [pair], "in": [pair[::-1]], "both": [pair, pair[::-1]]}
    await run.cut(ways[way], ends_leader=False)


WAYS = ("both", "out", "in")
Fault = Callable[[Run], Awaitable[None]]
CUTS: tuple[Fault, ...] = (
    *(partial(leader_cut_off, way) for way in WAYS),
    follower_cut_off,
    *(partial(pair_cut, place, way) for place in range(3) for way in WAYS),
)
SKEWS_MS = (0, HOUR_MS, -HOUR_MS)


async def run_cuts(root: Path, dice: random.Random, count: int, skew_ms: int) -> CutRun:
    """Runs cuts in turn, each kind once before any comes again. One copy's clock is ahead by `skew_ms`."""
    kinds: list[Fault] = []
    while len(kinds) < count:
        kinds += dice.sample(CUTS, len(CUTS))
    async with RelayedTrio(root, {dice.randint(1, 3): skew_ms}, **QUICK) as trio:
        run = CutRun(trio, dice)
        for kind in kinds[:count]:
            wanted = run.faults + 1
            while run.faults < wanted:
                await run.round(kind)
                await run.steadily(run.check_offset)
                assert run.disturbed <= DISTURBED_MAX, "cuts do not happen: one failure ends the shard"
        run.ledger.forget_compared()
        await run.steadily(lambda: check(trio.stub, run.ledger))
        await run.steadily(run.check_cancels)
        await trio.caught_up()
    run.entries = compare(trio)
    return run
