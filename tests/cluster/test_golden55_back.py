"""Directories of RocketMQ 5.5.1, imported, half used, exported, imported again: nothing is lost, doubled or early."""

from collections import Counter
from pathlib import Path

import pytest
from duetime_store.offline.export import export_directory

from tests.cluster.half_used import LEASE_MS, LEVELS, LONGEST_MS, due, ids, imported, places, running, used
from tests.format import golden55


@pytest.mark.proof
@pytest.mark.parametrize("name", golden55.NAMES)
async def test_an_export_that_comes_back_has_all_that_was_left(name: str, tmp_path: Path) -> None:
    before = await used(name, tmp_path)
    assert len(before.due) > 20
    assert len(before.open) == 3
    made = tmp_path / "made"
    exported = export_directory(before.root, made, LEVELS, accept_damage=False, now_ms=before.at_ms)
    assert exported.transactions == 3
    again = tmp_path / "again"
    assert due(imported(made, again)) == before.due
    async with running(again, before.at_ms) as shard:
        kept = places(shard.store)
        assert kept == before.places
        assert await shard.open() == before.open
        # Leases come back too.
        await shard.cluster.advance(f"{LEASE_MS}ms")
        for (group, topic), left in before.left.items():
            assert ids(await shard.receive(group, topic)) == left
        await shard.cluster.advance(f"{LONGEST_MS + 60_000}ms")
        assert sum(lane.pending_count for lane in shard.store.lanes) == 0
        last = places(shard.store)
    came = Counter((topic, key) for (topic, _, _), (key, _) in (last.items() - kept.items()))
    assert came == Counter((topic, key) for topic, key, _ in before.due.elements())
