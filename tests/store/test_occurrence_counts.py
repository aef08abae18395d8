"""Counts of due occurrences by result, of ended schedules, and of those that the store paused."""

from duetime_format.schedules import SKIP
from duetime_store.writing.metrics import ShardCollector
from duetime_store.writing.staging import OK

from tests.store.conftest import Shard
from tests.store.scheduling import MINUTE_MS, begin, every, occur


def counts(shard: Shard) -> dict[str, float]:
    """As a scrape has them."""
    found = {}
    for family in ShardCollector(shard.store).collect():
        if family.name.startswith(("duetime_store_occurrences", "duetime_store_schedules")):
            for sample in family.samples:
                name = sample.labels.get("result", family.name.rpartition("_")[2])
                found[name] = sample.value
    return found


def test_results_are_counted_once_they_are_durable(shard: Shard) -> None:
    now_ms = shard.clock.now_ms()
    begin(shard, every(shard.store, MINUTE_MS))
    begin(shard, every(shard.store, MINUTE_MS, name="skipped", missed=SKIP))
    begin(shard, every(shard.store, 0, name="last", at_ms=(now_ms + MINUTE_MS,), planned=now_ms + MINUTE_MS))
    begin(shard, every(shard.store, 0, name="bad", cron="bad", zone="UTC", planned=now_ms + MINUTE_MS))
    none = {"delivered": 0, "skipped": 0, "ended": 0, "paused": 0, "moved": 0}
    assert counts(shard) == none
    shard.clock.wall_ms += MINUTE_MS
    assert occur(shard).statuses == [OK] * 4
    assert counts(shard) == none
    shard.store.undo()
    assert counts(shard) == none
    assert occur(shard).statuses == [OK] * 4
    shard.flush()
    assert counts(shard) == none | {"delivered": 4, "ended": 1, "paused": 1}
    shard.clock.wall_ms += 3 * MINUTE_MS
    occur(shard)
    shard.flush()
    assert counts(shard) == none | {"delivered": 5, "skipped": 1, "ended": 1, "paused": 1}
