"""Records that retention deletes, and records that stay."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duetime.v1 import gateway_pb2
from duetime_core.testing import FakeClock
from duetime_format import record
from duetime_format.restore import PulledEntry, restore
from duetime_format.units import FILLER_SIZE, UNIT
from duetime_store.recovery.checkpointer import Checkpointer
from duetime_store.recovery.moving import MOVE_COUNT, MOVE_PAUSE_MS, _steps
from duetime_store.recovery.retention import Policy

from tests.rounds import one_by_one
from tests.store.conftest import MIB, ids, sent
from tests.store.running import Running
from tests.store.test_recovery import flip

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
BODY = b"x" * 1000


@pytest.mark.parametrize(
    ("policy", "state", "reason"),
    [
        (Policy(1_000), {}, ""),
        (Policy(1_000), {"age_ms": 999}, ""),
        (Policy(1_000), {"age_ms": 1_000}, "age"),
        (Policy(1_000, hours=frozenset((4,))), {"age_ms": 1_000, "hour": 3}, ""),
        (Policy(1_000, hours=frozenset((4,))), {"age_ms": 1_000, "hour": 4}, "age"),
        (Policy(1_000, hours=frozenset((4,))), {"age_ms": 1_000, "hour": 3, "disk_used": 0.74}, ""),
        (Policy(1_000, hours=frozenset((4,))), {"age_ms": 1_000, "hour": 3, "disk_used": 0.75}, "room"),
        (Policy(1_000, hours=frozenset((4,))), {"age_ms": 1_000, "hour": 4, "disk_used": 0.75}, "age"),
        (Policy(1_000, hours=frozenset((4,))), {"age_ms": 999, "hour": 3, "disk_used": 1.0}, ""),
        (Policy(1_000), {"age_ms": 999, "disk_used": 1.0}, ""),
        (Policy(1_000, disk_force=0.85), {"disk_used": 0.84}, ""),
        (Policy(1_000, disk_force=0.85), {"disk_used": 0.85}, "disk"),
        (Policy(1_000, 500), {"log_bytes": 500}, ""),
        (Policy(1_000, 500), {"log_bytes": 501}, "size"),
        (Policy(1_000), {"log_bytes": 1 << 60}, ""),
    ],
)
def test_policy(policy: Policy, state: dict[str, float], reason: str) -> None:
    values = {"age_ms": 0, "log_bytes": 0, "hour": 0, "disk_used": 0.1, **state}
    assert policy.reason(**values) == reason  # type: ignore[arg-type]


def test_steps_are_bounded_and_whole() -> None:
    sizes = np.array([100] * 1_000 + [1 << 20, 1 << 20, 100])
    steps = list(_steps(sizes))
    assert [first for first, _ in steps] == [0, *(behind for _, behind in steps[:-1])]
    assert steps[-1][1] == len(sizes)
    assert max(behind - first for first, behind in steps) == MOVE_COUNT
    assert (1_000, 1_001) in steps


class Shard(Running):
    """Lanes of 1 s and 1 h, segments of 1 MiB that stay two minutes."""

    def __init__(self, root: Path, **settings: object) -> None:
        # No round but those of the tests.
        values = {"retention_ms": 2 * MINUTE_MS, "retention_check_ms": 1 << 30, **settings}
        super().__init__(root, **values)
        # Ids so far: a second send of one would be stored once.
        self.filled = 0

    async def fill(self, count: int, topic: str = "noise") -> None:
        """About a segment for each thousand."""
        for first in range(self.filled, self.filled + count, 100):
            await self.put(*(sent(f"N{first + n}", topic=topic, body=BODY) for n in range(100)))
        self.filled += count

    async def clean(self) -> None:
        """A round, on a clock that moves as fast as it asks."""
        await run(self.clock, self.node.parts.cleaner.clean())

    async def expire(self) -> None:
        """All that is full by now leaves."""
        await self.clean()
        self.clock.move(2 * MINUTE_MS)
        await self.clean()

    @property
    def segments(self) -> list[int]:
        files = (self.settings.data_dir / "commitlog").iterdir()
        return sorted(int(path.name) // MIB for path in files)

    async def crash(self) -> None:
        """The process dies without a shutdown."""
        await self.channel.close()
        self.node.loops.cancel()
        await self.node._serving.server.stop(0)
        self.node._directory.close()

    async def restart(self, without: str = "") -> None:
        await self.crash()
        path = self.settings.data_dir / without
        if without == "checkpoint":
            path.unlink()
        elif without:
            shutil.rmtree(path)
        await self.__aenter__()

    async def drain(self, level: int = 2) -> list[str]:
        """Restores every due entry of a lane; returns the ids."""
        due = await self.pull_due(level)
        position, found = 0, []
        restored = b""
        for index, size in enumerate(due.sizes):
            lane_record = record.decode(due.records[position : position + size])
            position += size
            data = due.records[position - size : position]
            restored += restore(PulledEntry(level, due.first_entry + index, due.due_at_ms[index], data))
            found.append(lane_record)
        if found:
            answer = await self.put_entries(restored, lane=level, first_entry=due.first_entry)
            assert not any(answer.statuses)
        return ids(found)


async def run(clock: FakeClock, work: Any) -> Any:
    """The result. The clock moves through pauses between moves alone, however long the work takes."""
    task = asyncio.ensure_future(work)
    while not task.done():
        ahead_ms = clock.next_timer_ms()
        if ahead_ms is not None and ahead_ms <= MOVE_PAUSE_MS:
            clock.move(ahead_ms)
        await asyncio.wait({task}, timeout=0.001)
    return await task


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    async with Shard(tmp_path / "store") as shard:
        yield shard


async def test_old_segments_leave_with_their_queues(shard: Shard) -> None:
    await shard.fill(3_500)
    await shard.clean()
    shard.clock.move(2 * MINUTE_MS - 1_000)
    await shard.clean()
    assert shard.segments[0] == 0
    shard.clock.move(1_000)
    await shard.clean()
    assert shard.segments[0] == 3
    queue = shard.node.store.queues.find("noise", 0)
    assert queue.read(queue.min_offset, 1)["position"][0] == shard.node.store.log.min_position
    first = await shard.pull(topic="noise", offset=queue.min_offset, max_count=1)
    assert first.messages[0].id == f"N{queue.min_offset}"


async def test_a_pending_message_outlives_retention_many_times(shard: Shard) -> None:
    sent_at_ms = shard.clock.now_ms()
    await shard.put(*(sent(f"P{n}", level=2) for n in range(300)))
    for _ in range(20):
        await shard.fill(1_500)
        await shard.expire()
    assert shard.segments[0] > 20
    assert shard.node.store.lanes[2].pending_count == 300
    shard.clock.move(sent_at_ms + HOUR_MS - 1 - shard.clock.now_ms())
    assert await shard.drain() == []
    shard.clock.move(1)
    assert sorted([*await shard.drain(), *await shard.drain(), *await shard.drain()]) == sorted(
        f"P{n}" for n in range(300)
    )
    assert await shard.drain() == []


async def test_a_moved_message_is_in_no_topic_before_it_is_due(shard: Shard) -> None:
    await shard.put(sent("P", level=2))
    await shard.fill(1_500)
    await shard.expire()
    assert shard.segments[0] == 1
    assert "orders" not in {queue.topic for queue in shard.node.store.queues.all()}
    entries = shard.node.store.lanes[2].queue
    assert (entries.min_offset, entries.max_offset) == (0, 1)


@pytest.mark.parametrize("gone", ["", "checkpoint", "consumequeue"])
@pytest.mark.parametrize("restored", [0, 2])
async def test_crash_after_a_move_keeps_every_pending_message(shard: Shard, gone: str, restored: int) -> None:
    sent_at_ms = shard.clock.now_ms()
    await shard.put(*(sent(f"S{n}", level=1) for n in range(3)))
    await shard.put(*(sent(f"P{n}", level=2) for n in range(5)))
    shard.clock.move(1_000)
    assert await shard.drain(1) == ["S0", "S1", "S2"]
    await shard.fill(1_500)
    await shard.expire()
    await shard.put(sent("L", level=2), sent("M", level=1))
    if restored:
        shard.clock.move(sent_at_ms + HOUR_MS - shard.clock.now_ms())
        assert await shard.drain() == [f"P{n}" for n in range(5)]
    await shard.restart(without=gone)
    shard.clock.move(sent_at_ms + 2 * HOUR_MS - shard.clock.now_ms())
    assert await shard.drain(1) == ["M"]
    assert await shard.drain(2) == ["L"] if restored else [*(f"P{n}" for n in range(5)), "L"]
    assert shard.node.store.quarantined_count == 0


@pytest.mark.parametrize("gone", ["", "checkpoint", "consumequeue"])
async def test_copies_behind_newer_entries_are_found_again(shard: Shard, gone: str) -> None:
    await shard.put(*(sent(f"P{n}", level=2) for n in range(5)))
    await shard.fill(1_500)
    shard.clock.move(1)
    await shard.put(*(sent(f"Q{n}", level=2) for n in range(5)))
    await shard.expire()
    assert shard.segments[0] == 1
    await shard.restart(without=gone)
    assert shard.node.store.lanes[2].pending_count == 10
    shard.clock.move(HOUR_MS)
    assert await shard.drain() == [*(f"P{n}" for n in range(5)), *(f"Q{n}" for n in range(5))]


@pytest.mark.parametrize("gone", ["", "checkpoint", "consumequeue"])
@pytest.mark.parametrize(("restored", "pending"), one_by_one([(0, 1), (0, 5), (3, 1), (3, 5)]))
async def test_lane_of_which_only_copies_are_left_is_made_again(
    shard: Shard, gone: str, restored: int, pending: int
) -> None:
    sent_at_ms = shard.clock.now_ms()
    if restored:
        await shard.put(*(sent(f"R{n}", level=2) for n in range(restored)))
        shard.clock.move(HOUR_MS)
        await shard.drain()
    await shard.put(*(sent(f"P{n}", level=2) for n in range(pending)))
    # A copy is identified by its store time, which is before that of others.
    shard.clock.move(1)
    await shard.fill(1_500)
    await shard.expire()
    assert shard.segments[0] == 1
    await shard.restart(without=gone)
    assert shard.node.store.lanes[2].pending_count == pending
    shard.clock.move(sent_at_ms + 2 * HOUR_MS - shard.clock.now_ms())
    assert await shard.drain() == [f"P{n}" for n in range(pending)]
    assert shard.node.store.quarantined_count == 0


@pytest.mark.parametrize("gone", ["", "checkpoint", "consumequeue"])
async def test_copies_are_found_again_where_all_store_times_are_equal(shard: Shard, gone: str) -> None:
    """As those of a whole hour are, after a wall clock was set back by one."""
    await shard.put(*(sent(f"P{n}", level=2) for n in range(5)))
    await shard.fill(1_500)
    await shard.put(*(sent(f"Q{n}", level=2) for n in range(5)))
    await shard.expire()
    assert shard.segments[0] == 1
    await shard.restart(without=gone)
    assert shard.node.store.lanes[2].pending_count == 10
    shard.clock.move(HOUR_MS)
    assert await shard.drain() == [*(f"P{n}" for n in range(5)), *(f"Q{n}" for n in range(5))]


@pytest.mark.parametrize("lost", [False, True])
async def test_start_beside_new_copies_reads_the_old_log_only_if_one_is_lost(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    await shard.put(*(sent(f"P{n}", level=2) for n in range(5)))
    await shard.fill(1_500)
    await shard.clean()
    await shard.node.parts.checkpointer.write()
    # The crash comes after the copies and before the next checkpoint.
    monkeypatch.setattr(Checkpointer, "write", never)
    shard.clock.move(2 * MINUTE_MS)
    await shard.clean()
    monkeypatch.undo()
    lane = shard.node.store.lanes[2].queue
    position, size, _ = lane.read(0, 5)[2].tolist()
    checkpoint = shard.node.parts.checkpointer.position
    assert position > checkpoint
    if lost:
        base = position - position % MIB
        flip(shard.settings.data_dir / "commitlog" / f"{base:020}", position - base + size - 1)
    await shard.restart()
    assert (shard.node.report.from_position < checkpoint) == lost
    assert shard.segments[0] == 0
    shard.clock.move(HOUR_MS)
    assert await shard.drain() == [f"P{n}" for n in range(5)]


async def never(_: Checkpointer) -> bool:
    return False


async def test_offsets_of_a_lane_continue_after_all_its_records(shard: Shard) -> None:
    await shard.put(*(sent(f"S{n}", level=1) for n in range(3)))
    shard.clock.move(1_000)
    await shard.drain(1)
    await shard.fill(2_500)
    await shard.expire()
    assert shard.segments[0] == 2
    await shard.restart()
    answer = await shard.put(sent("S3", level=1))
    assert list(answer.queue_offsets) == [3]
    shard.clock.move(1_000)
    assert await shard.drain(1) == ["S3"]


async def test_a_message_that_was_appended_again_is_found_once(shard: Shard) -> None:
    await shard.put(sent("P", level=2))
    await shard.fill(1_500)
    store = shard.node.store
    await run(shard.clock, shard.node.parts.cleaner._mover._move(store.lanes[2].queue, np.array([0]), 0))
    assert shard.segments[0] == 0
    request = gateway_pb2.QueryMessagesRequest(topic="orders", key="P")
    answers = await run(shard.clock, shard.stub.QueryMessages(request, timeout=60))
    assert [found.state for found in answers.messages] == [gateway_pb2.MESSAGE_STATE_PENDING]


async def test_the_size_budget_takes_the_oldest(tmp_path: Path) -> None:
    async with Shard(tmp_path / "store", retention_bytes=2 * MIB) as shard:
        await shard.fill(4_500)
        await shard.clean()
        assert shard.node.store.log.end - shard.node.store.log.min_position <= 2 * MIB


async def test_a_segment_of_pending_messages_is_not_moved_for_room(tmp_path: Path) -> None:
    async with Shard(tmp_path / "store", retention_bytes=2 * MIB) as shard:
        for first in range(0, 3_000, 100):
            await shard.put(*(sent(f"P{first + n}", level=2, body=BODY) for n in range(100)))
        end = shard.node.store.log.end
        await shard.clean()
        assert shard.segments[0] == 0
        assert shard.node.store.log.end == end
        assert shard.node.registry.get_sample_value("duetime_store_retention_blocked") == 1


async def test_a_damaged_pending_record_keeps_its_place_and_is_put_aside(shard: Shard) -> None:
    await shard.put(sent("A", level=2), sent("BBBBBBBB", level=2), sent("C", level=2))
    second = shard.node.store.lanes[2].queue.read(1, 1)
    flip(shard.settings.data_dir / "commitlog" / ("0" * 20), int(second["position"][0]) + 90)
    await shard.fill(1_500)
    await shard.expire()
    assert shard.segments[0] == 1
    assert shard.node.store.lanes[2].queue.read(1, 1)["size"][0] == FILLER_SIZE
    shard.clock.move(HOUR_MS)
    due = await shard.pull_due(2)
    assert [bool(size) for size in due.sizes] == [True, False, True]


async def test_a_damaged_unit_does_not_cost_its_pending_message(shard: Shard) -> None:
    await shard.put(*(sent(f"P{n}", level=2) for n in range(5)))
    await shard.fill(1_500)
    path = shard.settings.data_dir / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "1" / ("0" * 20)
    with path.open("r+b") as file:
        # The unit of P3 points behind the end of the log.
        file.seek(3 * UNIT.size)
        file.write((1 << 30).to_bytes(8, "big"))
    await shard.expire()
    assert shard.segments[0] == 1
    shard.clock.move(HOUR_MS)
    assert await shard.drain() == [f"P{n}" for n in range(5)]


async def test_readers_at_the_front_move_to_the_first_record_left(shard: Shard) -> None:
    await shard.fill(2_500)
    await shard.expire()
    answer = await shard.pull(topic="noise", offset=0)
    assert answer.next_offset == shard.node.store.queues.find("noise", 0).min_offset > 0
