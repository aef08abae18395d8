"""Due occurrences of schedules that are staged together, on a fake clock."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from duetime.v1 import store_pb2
from duetime_format import record
from duetime_format.names import PLANS_TOPIC
from duetime_format.plans import decode
from duetime_store.log.intake import Intake
from duetime_store.writing.holding import GATHER_MS

from tests.store.conftest import sent, timer
from tests.store.running import Running
from tests.store.scheduling import LANE, MINUTE_MS, asked

# How long before the first is due the entries are put.
HELD_MS = 40
DEADLINE_S = 60


class Shard(Running):
    """Counts the records of each step, with the time since the first due time."""

    async def fill(self, occurrences_ms: Sequence[int], timers_ms: Sequence[int] = ()) -> None:
        """Pending entries by due time: ms after the first occurrence's."""
        self.first_ms = self.clock.now_ms() + MINUTE_MS
        await self.put(sent("before"), *(timer(f"t{at_ms}", MINUTE_MS + at_ms) for at_ms in timers_ms))
        for at_ms in occurrences_ms:
            self.clock.move(self.first_ms + at_ms - MINUTE_MS - self.clock.now_ms())
            await self.stub.PutSchedule(asked(f"s{at_ms}"), timeout=60)
        self.clock.move(self.first_ms - HELD_MS - self.clock.now_ms())

    async def hold(self) -> "asyncio.Task[store_pb2.RestoreResponse]":
        """Puts all entries ahead, as a scheduler does."""
        store, self.steps = self.node.store, list[tuple[int, int]]()
        restore = store.restore

        def noting(intake: Intake, *args: object, **own: object) -> object:
            self.steps.append((self.clock.now_ms() - self.first_ms, intake.count))
            return restore(intake, *args, **own)  # type: ignore[arg-type]

        store.restore = noting  # type: ignore[method-assign, assignment]
        due = await self.pull_due(LANE, may_keep=True, ahead_ms=100)
        request = store_pb2.RestoreRequest(lane=LANE, first_entry=due.first_entry, kept_count=due.kept_count)
        put = asyncio.ensure_future(self.stub.Restore(request, timeout=60))
        async with asyncio.timeout(DEADLINE_S):
            while not self.node.parts.holding._bytes:
                await self.stub.Describe(store_pb2.DescribeRequest())
        return put  # type: ignore[return-value]

    async def pass_ms(self, count: int) -> None:
        """Lets time pass by single ms, in each of which all that happens ends."""
        for _ in range(count):
            self.clock.move(1)
            await self.node.parts.flusher.durable()
            await self.stub.Describe(store_pb2.DescribeRequest())

    def planned_entries(self) -> list[int]:
        """Entries of all plans in the log."""
        store = self.node.store
        queue = store.queues.known(PLANS_TOPIC.encode(), 0)
        units = queue.read(0, 100).tolist() if queue is not None else []
        plans = [decode(record.decode(store.read_record(*unit[:2])).body) for unit in units]
        return [entry for plan in plans for entry in plan.rows["entry"].tolist()]


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    async with Shard(tmp_path / "store") as shard:
        yield shard


async def test_occurrences_soon_after_a_step_wait_for_one_more(shard: Shard) -> None:
    await shard.fill([0, 3, 6, 12, 40])
    put = await shard.hold()
    await shard.pass_ms(HELD_MS + 50)
    assert list((await put).statuses) == []
    assert shard.steps == [(0, 1), (GATHER_MS, 2), (2 * GATHER_MS, 1), (40, 1)]
    # A plan would be of no use: the next occurrence in the same flush has no promised place.
    assert shard.planned_entries() == []


async def test_messages_for_any_time_do_not_wait_with_occurrences_after_them(shard: Shard) -> None:
    await shard.fill([0, 4], [2, 6])
    put = await shard.hold()
    await shard.pass_ms(HELD_MS + 20)
    assert list((await put).statuses) == []
    assert shard.steps == [(0, 1), (2, 1), (GATHER_MS, 2)]
    # The second message is staged with an occurrence.
    assert shard.planned_entries() == [0]


async def test_a_clock_that_is_set_back_does_not_prolong_the_wait(shard: Shard) -> None:
    await shard.fill([0, 3])
    put = await shard.hold()
    await shard.pass_ms(HELD_MS + 4)
    assert shard.steps == [(0, 1)]
    shard.clock.step_wall(-MINUTE_MS)
    await shard.pass_ms(GATHER_MS)
    assert list((await put).statuses) == []
