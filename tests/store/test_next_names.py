"""Names of occurrences that follow restored ones: read once a call needs a name, and no change meets an older one."""

import asyncio
from typing import Any

import pytest
from duetime.v1 import store_pb2
from duetime_format.replacing import LATEST_MAX
from duetime_store.pending import keys as module
from duetime_store.pending.keys import Upsert, UpsertKeys
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.occurrences import StagedOccurrences

from tests.store.conftest import sent
from tests.store.scheduling import LANE, MINUTE_MS
from tests.store.test_retention import Shard
from tests.store.test_schedule_calls import DELETE, LOOK, PAUSE, RESUME, change, failing, planned, put, shard

__all__ = ["shard"]


class OldSearch:
    """A search that finds an old message of each name, after `meanwhile`."""

    def __init__(self) -> None:
        self.count = 0
        self.meanwhile: Any = lambda: None

    async def find(self, _: Any, wanted: list[Any], __: float) -> int:
        self.count += 1
        self.meanwhile()
        for one in wanted:
            one.newest = Upsert(LANE, 0, "old", LATEST_MAX, is_schedule=True)
        return len(wanted)


@pytest.fixture
def search() -> OldSearch:
    return OldSearch()


@pytest.fixture
def keys(search: OldSearch) -> UpsertKeys:
    return UpsertKeys(search, ScanTurns())  # type: ignore[arg-type]


def following(*names: str, first: int = 5, topic: str = "orders") -> StagedOccurrences:
    labels = "\x02".join(f"{topic}\x01{name}\x01id-{name}" for name in names)
    return StagedOccurrences(LANE, first, [1] * len(names), labels.encode())


def upsert(entry: int, message_id: str) -> Upsert:
    return Upsert(LANE, entry, message_id, LATEST_MAX, is_schedule=True)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("read_before", [True, False])
def test_names_are_known_while_staged_and_once_durable(keys: UpsertKeys, durable: bool, read_before: bool) -> None:
    settle = keys.stage_next(following("a", "größe", "c"))
    if read_before:
        assert keys.newest(("orders", "größe")) == upsert(6, "id-größe")
    settle(durable)
    assert keys.knows(("orders", "c")) == durable
    if durable:
        assert keys.newest(("orders", "c")) == upsert(7, "id-c")
    assert not keys.knows(("other", "a"))


def test_the_later_of_two_counts(keys: UpsertKeys) -> None:
    first = keys.stage_next(following("a", first=5))
    put = keys.stage(("orders", "a"), upsert(6, "put"))
    assert keys.newest(("orders", "a")) == upsert(6, "put")
    second = keys.stage_next(following("a", first=7))
    assert keys.newest(("orders", "a")) == upsert(7, "id-a")
    first(True)
    put(True)
    assert keys.newest(("orders", "a")) == upsert(7, "id-a")
    second(False)
    assert keys.newest(("orders", "a")) == upsert(6, "put")


async def test_a_search_does_not_bring_back_an_older_one(
    keys: UpsertKeys, search: OldSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with more occurrences meanwhile than are kept unread."""
    monkeypatch.setattr(module, "UNREAD_MAX", 2)
    search.meanwhile = lambda: keys.stage_next(following("a", "b", "c"))(True)
    await keys.learn([("orders", "a"), ("orders", "z")])
    assert keys.newest(("orders", "a")) == upsert(5, "id-a")
    assert keys.newest(("orders", "z")) == upsert(0, "old")


async def test_unread_names_are_forgotten_beyond_the_limit(
    keys: UpsertKeys, search: OldSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known messages may then be outdated, and are searched for again. Staged ones cannot be found, and stay."""
    monkeypatch.setattr(module, "UNREAD_MAX", 3)
    keys.stage(("orders", "a"), upsert(1, "put"))(True)
    staged = keys.stage_next(following("s", first=90))
    keys.stage_next(following("a", "b", first=5))(True)
    keys.stage_next(following("a", "b", first=7))(True)
    assert not keys.knows(("orders", "a"))
    assert keys.newest(("orders", "s")) == upsert(90, "id-s")
    await keys.learn([("orders", "a")])
    assert search.count == 1
    staged(True)
    assert keys.newest(("orders", "s")) == upsert(90, "id-s")


# --- changes beside restores ----------------------------------------------------------------------------------------


async def occur(shard: Shard, by_ms: int = 0) -> None:
    """Restores all due entries, if there are any."""
    shard.clock.move(by_ms)
    await restore(shard, await shard.pull_due(LANE, may_keep=True))


async def restore(shard: Shard, due: store_pb2.PullDueResponse) -> None:
    if due.kept_count:
        request = store_pb2.RestoreRequest(lane=LANE, first_entry=due.first_entry, kept_count=due.kept_count)
        await shard.stub.Restore(request, timeout=60)


@pytest.mark.parametrize("known", [True, False])
async def test_changes_meet_the_next_occurrence(shard: Shard, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """Whether or not the names of the occurrences before were forgotten."""
    if not known:
        monkeypatch.setattr(module, "UNREAD_MAX", 0)
    await put(shard)
    for number in range(1, 4):
        await occur(shard, MINUTE_MS)
        found = (await change(shard, LOOK)).schedule
        assert found.entry == number
    paused = (await change(shard, PAUSE)).schedule
    assert (paused.entry, paused.paused) == (4, True)
    await occur(shard, MINUTE_MS)
    assert len(await planned(shard)) == 3
    await change(shard, RESUME)
    await occur(shard, MINUTE_MS)
    assert len(await planned(shard)) == 4
    await change(shard, DELETE)
    await failing(change(shard, LOOK), "SCHEDULE_NOT_FOUND")
    await occur(shard, MINUTE_MS)
    assert len(await planned(shard)) == 4
    assert shard.node.store.lanes[LANE].pending_count == 0


@pytest.mark.parametrize("what", [PAUSE, DELETE, "put"])
async def test_changes_racing_restores_leave_one_chain(shard: Shard, what: store_pb2.ScheduleChange | str) -> None:
    """Each restore is staged while changes of the same schedules are under way."""
    names = [f"s{number}" for number in range(24)]
    await shard.put(sent("first"))
    await asyncio.gather(*(put(shard, name) for name in names))
    shard.clock.move(MINUTE_MS)
    due = await shard.pull_due(LANE, may_keep=True)
    calls = [
        put(shard, name, body=b"changed") if what == "put" else change(shard, what, name)  # type: ignore[arg-type]
        for name in names
    ]
    await asyncio.gather(*calls[:8], restore(shard, due), *calls[8:])
    lane = shard.node.store.lanes[LANE]
    assert lane.pending_count == (0 if what == DELETE else len(names))
    # A change came before its occurrence was restored, or after it.
    before = len(await planned(shard))
    assert before <= len(names)
    await occur(shard, MINUTE_MS)
    assert len(await planned(shard)) == before + len(names) * (what == "put")
    assert lane.pending_count == (0 if what == DELETE else len(names))
