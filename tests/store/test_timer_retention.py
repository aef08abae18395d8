"""Messages for any time outlive their log files, and come once, at their time, also after crashes."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from duetime.v1 import store_pb2
from duetime_format import record
from duetime_format.properties import value_of
from duetime_format.restore import PulledEntry, restore
from duetime_store.writing.ends import cancel

from tests.store.conftest import timer
from tests.store.test_retention import HOUR_MS, MINUTE_MS, Shard

LANE = 1_000
COUNT = 300


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    async with Shard(tmp_path / "store") as shard:
        yield shard


def delay_ms(number: int) -> int:
    """No two alike, and in no order."""
    return HOUR_MS + number * 7_919 % COUNT * 1_000


async def put(shard: Shard) -> None:
    await shard.put(*(timer(f"P{number}", delay_ms(number), key=f"k{number}") for number in range(COUNT)))


async def drain(shard: Shard) -> list[str]:
    """Due entries, in the order in which a scheduler restores them."""
    due = await shard.pull_due(LANE, max_count=1_000)
    records, found, at = b"", [], 0
    for entry, size, due_at_ms in zip(due.entries, due.sizes, due.due_at_ms, strict=True):
        data, at = due.records[at : at + size], at + size
        found.append(value_of(record.decode(data).properties, b"UNIQ_KEY").decode())
        records += restore(PulledEntry(LANE, entry, due_at_ms, data))
    if found:
        request = store_pb2.RestoreRequest(records=records, lane=LANE, entries=due.entries)
        assert not any((await shard.stub.Restore(request, timeout=60)).statuses)
    return found


def expected(but: set[int] = frozenset()) -> list[str]:  # type: ignore[assignment]
    return [f"P{number}" for number in sorted(range(COUNT), key=delay_ms) if number not in but]


async def test_they_come_in_order_from_wherever_they_were_appended_again(shard: Shard) -> None:
    await put(shard)
    for _ in range(4):
        await shard.fill(1_500)
        await shard.expire()
    assert shard.segments[0] > 4
    assert shard.node.store.lanes[LANE].pending_count == COUNT
    shard.clock.move(HOUR_MS - 10 * MINUTE_MS)
    assert await drain(shard) == []
    shard.clock.move(20 * MINUTE_MS)
    assert await drain(shard) == expected()
    assert await drain(shard) == []


@pytest.mark.parametrize("gone", ["", "checkpoint", "consumequeue", "timers"])
async def test_copies_are_found_again_after_a_crash(shard: Shard, gone: str) -> None:
    await put(shard)
    await shard.fill(1_500)
    await shard.expire()
    shard.clock.move(HOUR_MS - 2 * MINUTE_MS + COUNT // 2 * 1_000)
    first = await drain(shard)
    assert 0 < len(first) < COUNT
    await shard.restart(gone)
    lane = shard.node.store.lanes[LANE]
    assert (lane.pending_count, lane.is_even) == (COUNT - len(first), True)
    shard.clock.move(HOUR_MS)
    assert first + await drain(shard) == expected()


@pytest.mark.parametrize("gone", ["", "checkpoint", "timers"])
async def test_cancelled_timers_are_not_appended_again(shard: Shard, gone: str) -> None:
    await put(shard)
    store, entries = shard.node.store, np.arange(0, COUNT, 3)
    lane = store.lanes[LANE]
    cancel(store, [(lane, entries, lane.units(entries)["tags"].astype(np.int64))])
    durable = store.when_durable()
    shard.node.parts.flusher.wake()
    assert durable is not None
    await durable
    await shard.fill(1_500)
    await shard.expire()
    assert shard.segments[0] == 1
    assert (lane.units(entries)["position"] < store.log.min_position).all()
    await shard.restart(gone)
    assert shard.node.store.lanes[LANE].pending_count == COUNT - len(entries)
    shard.clock.move(2 * HOUR_MS)
    assert await drain(shard) == expected(set(entries.tolist()))
