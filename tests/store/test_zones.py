"""Newer rules of time zones: pending occurrences are moved at the next start, once, and nothing else is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from duetime.v1 import export_pb2, pending_pb2, schedules_pb2, store_pb2
from duetime_core.cron import zones_version
from duetime_core.errors import DiskFull
from duetime_core.testing import FakeClock
from duetime_store.files import configs
from duetime_store.pending import zones
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.holding import GATHER_MS
from duetime_store.writing.occurrences import DELIVERED, MOVED, SKIPPED
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from tests.store.scheduling import LANE
from tests.store.test_retention import HOUR_MS, Shard
from tests.store.test_schedule_calls import LOOK, PAUSE, change, occur, planned, put
from tests.zones import release, rules_of

# Ruritania's clock is two hours ahead of UTC, then one, then three.
ZONE, OTHER = "Europe/Ruritania", "Europe/Graustark"
OLD, LESS, MORE = "2030a", "2030b", "2030c"
_HOURS = {OLD: 2, LESS: 1, MORE: 3}
DAY_MS = 24 * HOUR_MS
# Midnight UTC.
BEGIN_MS = 1_700_006_400_000
# Midnight UTC of June 1st, 2023.
SUMMER_MS = 1_685_577_600_000


@asynccontextmanager
async def made_shard(tmp_path: Path, version: str, now_ms: int = BEGIN_MS, **settings: object) -> AsyncIterator[Shard]:
    """A shard with the zones of a release."""
    made = {ZONE: rules_of(f"RUR-{_HOURS[version]}"), OTHER: rules_of("GRA-5")}
    with release(tmp_path, version, made):
        shard = Shard(tmp_path / "store", **settings)
        shard.clock = FakeClock(now_ms=now_ms)
        async with shard:
            yield shard


@asynccontextmanager
async def shard_of(tmp_path: Path, version: str, now_ms: int = BEGIN_MS) -> AsyncIterator[Shard]:
    """One that has compared them."""
    async with made_shard(tmp_path, version, now_ms) as shard:
        async with asyncio.timeout(60):
            await shard.node.parts.occurrence_mover.done.wait()
        yield shard


def at_summer(tmp_path: Path) -> Shard:
    """A shard with the zones of this process."""
    shard = Shard(tmp_path / "store")
    shard.clock = FakeClock(now_ms=SUMMER_MS)
    return shard


def cron(expression: str, zone: str = ZONE) -> dict[str, object]:
    return {"cron": schedules_pb2.CronRule(expression=expression, zone=zone)}


async def look(shard: Shard, name: str = "report") -> schedules_pb2.Schedule:
    return (await change(shard, LOOK, name)).schedule


def moved_count(shard: Shard) -> int:
    return shard.node.store.occurrences.counts[MOVED]


@pytest.mark.parametrize(("version", "hour"), [(LESS, 5), (MORE, 3)])
async def test_a_pending_occurrence_moves_with_its_zone(tmp_path: Path, version: str, hour: int) -> None:
    right_ms, stack = BEGIN_MS + hour * HOUR_MS, AsyncExitStack()
    async with shard_of(tmp_path, OLD) as shard:
        before = (await put(shard, **cron("0 6 * * *"))).schedule
        assert before.next_at_ms == [BEGIN_MS + 4 * HOUR_MS]
        await put(shard, "other", **cron("0 6 * * *", OTHER))
        await put(shard, "each", every=schedules_pb2.IntervalTimes(every_ms=10 * DAY_MS))
        await put(shard, "paused", **cron("0 6 * * *"))
        await change(shard, PAUSE, "paused")
        assert "duetime_store_zones_behind 0.0" in generate_latest(shard.node.registry).decode()
    with capture_logs() as logged:
        shard = await stack.enter_async_context(shard_of(tmp_path, version))
    (event,) = [one for one in logged if one["event"] == "audit"]
    assert (event["method"], event["status"], event["user"]) == ("store/MoveOccurrences", "OK", "")
    assert event["resource"] == f"1 pending occurrences: time zone rules {OLD} to {version}"
    async with stack:
        moved = await look(shard)
        assert (moved.next_at_ms, moved.due_at_ms) == ([right_ms], right_ms)
        assert moved.moved_from_ms == before.next_at_ms[0]
        assert (moved.version, moved.created_at_ms, moved.message) == (1, before.created_at_ms, before.message)
        assert "duetime_store_occurrences_moved_total 1.0" in generate_latest(shard.node.registry).decode()
        assert shard.node.store.lanes[LANE].pending_count == 4
        request = pending_pb2.ListPendingRequest(
            filter=pending_pb2.PendingFilter(key="report"), schedules_only=True, max_count=10
        )
        listed = await shard.stub.ListPending(request)
        assert [one.schedule.moved_from_ms for one in listed.messages] == [moved.moved_from_ms]
        await occur(shard, hour * HOUR_MS - GATHER_MS)
        assert (await look(shard)).next_at_ms == [right_ms]
        await occur(shard, GATHER_MS)
        assert (await planned(shard)).count(right_ms) == 1
        following = await look(shard)
        assert (following.next_at_ms, following.moved_from_ms) == ([right_ms + DAY_MS], 0)


@pytest.mark.parametrize(("zone", "before", "after"), [("America/Mexico_City", 11, 12), ("Africa/Cairo", 4, 3)])
async def test_real_releases_move_a_real_zone(tmp_path: Path, zone: str, before: int, after: int) -> None:
    """Mexico abolished daylight saving time in 2022f, and Egypt reinstated it in 2023a. The older files are those of
    IANA's release 2022e, which is in the public domain."""
    old = {zone: (Path(__file__).parent / "tzdata_2022e" / zone).read_bytes()}
    with release(tmp_path, "2022e", old):
        async with at_summer(tmp_path) as shard:
            made = (await put(shard, **cron("0 6 * * *", zone))).schedule
            assert made.next_at_ms == [SUMMER_MS + before * HOUR_MS]
    # The installed package.
    async with at_summer(tmp_path) as shard:
        async with asyncio.timeout(60):
            await shard.node.parts.occurrence_mover.done.wait()
        moved = await look(shard)
        assert (moved.next_at_ms, moved.moved_from_ms) == ([SUMMER_MS + after * HOUR_MS], made.next_at_ms[0])
        assert configs.load(tmp_path / "store" / "config", configs.ZONES).value["version"] == zones_version()


async def test_the_next_start_moves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store" / "config" / configs.ZONES
    async with shard_of(tmp_path, OLD) as shard:
        await put(shard, **cron("0 6 * * *"))
    async with shard_of(tmp_path, MORE) as shard:
        assert (await look(shard)).next_at_ms == [BEGIN_MS + 3 * HOUR_MS]
        end = shard.node.store.published_end
    for harm in (None, path.unlink, lambda: path.write_text("{")):
        if harm is not None:
            harm()
        async with shard_of(tmp_path, MORE) as shard:
            assert (moved_count(shard), shard.node.store.published_end) == (0, end)
            assert configs.load(path.parent, path.name).value["version"] == MORE
    # The rules of the older release again.
    async with shard_of(tmp_path, OLD) as shard:
        again = await look(shard)
        assert (again.next_at_ms, again.moved_from_ms) == ([BEGIN_MS + 4 * HOUR_MS], 0)


async def test_hours_of_real_time_stay(tmp_path: Path) -> None:
    async with shard_of(tmp_path, OLD) as shard:
        for name, expression in (("ten", "*/10 * * * *"), ("hourly", "30 * * * *")):
            await put(shard, name, **cron(expression))
        end = shard.node.store.published_end
    async with shard_of(tmp_path, MORE) as shard:
        assert (moved_count(shard), shard.node.store.published_end) == (0, end)


@pytest.mark.parametrize(("missed", "left"), [("ONE", [3]), ("SKIP", []), ("ALL", [3])])
async def test_a_time_that_has_passed_by_the_new_rules_is_missed(tmp_path: Path, missed: str, left: list[int]) -> None:
    policy = schedules_pb2.MissedPolicy.Value(f"MISSED_POLICY_{missed}")
    begin_ms = BEGIN_MS + 3 * HOUR_MS + HOUR_MS // 2
    async with shard_of(tmp_path, OLD) as shard:
        await put(shard, missed=policy, **cron("0 6 * * *"))
    async with shard_of(tmp_path, MORE, begin_ms) as shard:
        # A past time is due a millisecond later.
        shard.clock.move(1)
        if left:
            await occur(shard)
        known = shard.node.store.queues.counts
        delivered = await planned(shard) if "orders" in known else []
        assert delivered == [BEGIN_MS + hour * HOUR_MS for hour in left]
        assert (await look(shard)).next_at_ms == [BEGIN_MS + 3 * HOUR_MS + DAY_MS]
        counts = shard.node.store.occurrences.counts
        assert (counts[MOVED], counts[SKIPPED], counts[DELIVERED]) == (1, not left, len(left))


async def test_a_rescheduled_occurrence_keeps_its_time(tmp_path: Path) -> None:
    due_at_ms = BEGIN_MS + HOUR_MS
    async with shard_of(tmp_path, OLD) as shard:
        one = (await put(shard, **cron("0 6 * * *"))).schedule
        await reschedule(shard, one, due_at_ms)
    async with shard_of(tmp_path, LESS) as shard:
        moved = await look(shard)
        assert (moved.next_at_ms, moved.due_at_ms) == ([BEGIN_MS + 5 * HOUR_MS], due_at_ms)
        await occur(shard, HOUR_MS)
        assert await planned(shard) == [BEGIN_MS + 5 * HOUR_MS]
        assert (await look(shard)).next_at_ms == [BEGIN_MS + 5 * HOUR_MS + DAY_MS]


async def test_the_occurrence_after_one_delivered_early_does_not_repeat_it(tmp_path: Path) -> None:
    """Its times before the planned one were delivered."""
    async with shard_of(tmp_path, OLD) as shard:
        one = (await put(shard, **cron("0 6,7 * * *"))).schedule
        await reschedule(shard, one, BEGIN_MS + 1)
        await occur(shard, 1)
        assert (await look(shard)).next_at_ms == [BEGIN_MS + 5 * HOUR_MS]
        # A change of the message keeps the planned time.
        await put(shard, body=b"other", **cron("0 6,7 * * *"))
    (tmp_path / "store" / "config" / configs.ZONES).unlink()
    async with shard_of(tmp_path, OLD, BEGIN_MS + 2) as shard:
        assert (moved_count(shard), (await look(shard)).next_at_ms) == (0, [BEGIN_MS + 5 * HOUR_MS])
    async with shard_of(tmp_path, MORE, BEGIN_MS + 2) as shard:
        # The first after 6:00 by the rules until now, which is 7:00 by these.
        assert (await look(shard)).next_at_ms == [BEGIN_MS + 3 * HOUR_MS + DAY_MS]


async def test_a_start_that_was_cut_short_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"report-{number}" for number in range(10)]
    async with shard_of(tmp_path, OLD) as shard:
        for name in names:
            await put(shard, name, **cron("0 6 * * *"))
    monkeypatch.setattr(zones, "MOVED_AT_ONCE", 4)
    durable, moved = Flusher.durable, asyncio.Event()

    async def stopping(flusher: Flusher) -> None:
        await durable(flusher)
        moved.set()
        raise DiskFull("the first four, or fewer, are moved")

    with monkeypatch.context() as broken:
        broken.setattr(Flusher, "durable", stopping)
        async with made_shard(tmp_path, MORE) as shard:
            async with asyncio.timeout(60):
                await moved.wait()
            first = moved_count(shard)
            assert 0 < first <= zones.MOVED_AT_ONCE
            assert "duetime_store_zones_behind 1.0" in generate_latest(shard.node.registry).decode()
    async with shard_of(tmp_path, MORE) as shard:
        assert moved_count(shard) == len(names) - first
        for name in names:
            assert (await look(shard, name)).next_at_ms == [BEGIN_MS + 3 * HOUR_MS]
        assert shard.node.store.lanes[LANE].pending_count == len(names)


async def test_a_full_disk_delays_the_moves(tmp_path: Path) -> None:
    async with shard_of(tmp_path, OLD) as shard:
        await put(shard, **cron("0 6 * * *"))
    async with made_shard(tmp_path, OLD) as shard:
        pass
    (tmp_path / "store" / "config" / configs.ZONES).unlink()
    async with made_shard(tmp_path, MORE, disk_used_max=0.000001) as shard:
        mover = shard.node.parts.occurrence_mover
        with pytest.raises(DiskFull):
            await mover.move()
        assert (mover.done.is_set(), moved_count(shard)) == (False, 0)
    async with shard_of(tmp_path, MORE) as shard:
        assert moved_count(shard) == 1


async def test_an_export_of_files_leaves_the_zones_out(tmp_path: Path) -> None:
    async with shard_of(tmp_path, OLD) as shard:
        files = await shard.stub.ListFiles(export_pb2.ListFilesRequest())
        paths = {one.path for one in files.files}
        assert (tmp_path / "store" / "config" / configs.ZONES).exists()
        assert f"config/{configs.ZONES}" not in paths
        assert "config/duetimeStore.json" in paths


async def reschedule(shard: Shard, one: schedules_pb2.Schedule, due_at_ms: int) -> None:
    ref = pending_pb2.PendingRef(message_id=one.message_id, topic="orders", lane=one.lane, entry=one.entry)
    asked = pending_pb2.Reschedule(message=ref, deliver_at_ms=due_at_ms)
    request = store_pb2.ReplaceRequest(replacements=[store_pb2.Replacement(reschedule=asked)])
    (result,) = (await shard.stub.Replace(request, timeout=60)).results
    assert result.status == pending_pb2.RESCHEDULE_STATUS_RESCHEDULED
