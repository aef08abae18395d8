"""The audit log in the database: batches, pages, bounds; and events during an outage."""

import asyncio
from typing import Any

import pytest
from duetime_core.audit.events import TEXT_BYTES_MAX, AuditedCall
from duetime_core.clock import turn
from duetime_core.errors import Unavailable
from duetime_core.metadata import AuditFilter, AuditRow, AuditTable, Database, Trail, audit, trail, upgrade
from duetime_core.testing import FakeClock
from prometheus_client import CollectorRegistry

DAY_MS = 86_400_000
ALL = AuditFilter()


def event(at_ms: int = 1_000, **fields: Any) -> AuditedCall:
    values = {"user": "alice", "host": "10.0.0.1", "peer": "10.0.0.1:5", "method": "duetime.v1.Gateway/CreateTopic"}
    return AuditedCall(at_ms, **{**values, "resource": "topic orders", "status": "OK", "reason": "", **fields})


def row(number: int, **fields: Any) -> AuditRow:
    return AuditRow(f"key-{number}", "gateway", event(number, **fields))


@pytest.fixture
async def database(empty_database_url: str):
    await asyncio.to_thread(upgrade, empty_database_url)
    database = Database(empty_database_url)
    await database.start()
    yield database
    await database.stop()


@pytest.fixture
def table(database: Database) -> AuditTable:
    return AuditTable(database)


async def numbers(table: AuditTable, wanted: AuditFilter = ALL) -> list[int]:
    return [one.event.at_ms for one in (await table.page(wanted, 1_000)).rows]


async def test_rows_come_back_as_they_went_in(table: AuditTable) -> None:
    long = "x" * TEXT_BYTES_MAX
    full = row(5, user=long, host=long, peer=long, method=long, resource=long, reason=long, left_out_count=2**40)
    rows = [full, row(4, status="UNAUTHENTICATED", user="")]
    await table.add(rows)
    page = await table.page(AuditFilter(), 10)
    assert list(page.rows) == rows
    assert page.last is None
    await table.add([])


async def test_rows_that_are_written_twice_are_there_once(table: AuditTable) -> None:
    await table.add([row(1), row(2)])
    await table.add([row(2), row(3)])
    assert await numbers(table) == [3, 2, 1]


async def test_pages_give_every_row_once_the_newest_first(table: AuditTable) -> None:
    await table.add([AuditRow(f"k{number}", "gateway", event(number // 3)) for number in range(20)])
    found: list[AuditRow] = []
    after, sizes = None, []
    while True:
        page = await table.page(AuditFilter(), 6, after)
        found += page.rows
        sizes.append(len(page.rows))
        after = page.last
        if after is None:
            break
    assert sizes == [6, 6, 6, 2]
    assert len({one.key for one in found}) == 20
    assert [one.event.at_ms for one in found] == sorted((number // 3 for number in range(20)), reverse=True)


async def test_filters_exclude_named_messages(table: AuditTable) -> None:
    await table.add([row(1), row(2, user="bob"), row(3, method="duetime.v1.Gateway/DeleteGroup"), row(4)])
    assert await numbers(table, AuditFilter(from_ms=2, before_ms=4)) == [3, 2]
    assert await numbers(table, AuditFilter(user="bob")) == [2]
    assert await numbers(table, AuditFilter(method="DeleteGroup")) == [3]
    assert await numbers(table, AuditFilter(method="duetime.v1.Gateway/DeleteGroup")) == [3]
    assert await numbers(table, AuditFilter(method="%")) == []
    assert await numbers(table, AuditFilter(method="Group")) == []


async def test_old_rows_leave_and_refusals_drive_out_no_acts(
    table: AuditTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "ROWS_MAX", 3)
    await table.add([row(number) for number in range(5)])
    await table.add([row(number, status="PERMISSION_DENIED") for number in range(10, 20)])
    await table.forget(before_ms=1)
    assert await numbers(table) == [19, 18, 17, 4, 3, 2]
    await table.forget(before_ms=18)
    assert await numbers(table) == [19, 18]


class Writing:
    """A trail whose task runs."""

    def __init__(self, database: Database, keep_days: int = 0) -> None:
        self.clock, self.registry = FakeClock(), CollectorRegistry()
        self.trail = Trail("gateway", database, self.clock, self.registry, keep_days)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Writing":
        self._task = asyncio.create_task(self.trail.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def written(self) -> None:
        async with asyncio.timeout(60):
            while self.metric("duetime_audit_waiting_events"):
                await asyncio.to_thread(lambda: None)


async def test_events_are_in_the_database_soon_and_no_caller_waits(database: Database, table: AuditTable) -> None:
    async with Writing(database) as writing:
        for number in range(3 * trail.BATCH_MAX // 2):
            writing.trail.add(event(number))
        writing.trail.add(event(status="UNAUTHENTICATED"))
        await writing.written()
        assert writing.metric("duetime_audit_events_total", kind="act") == 3 * trail.BATCH_MAX // 2
        assert writing.metric("duetime_audit_events_total", kind="refusal") == 1
    assert len(await numbers(table)) == 3 * trail.BATCH_MAX // 2 + 1


async def test_events_wait_during_an_outage_and_are_bounded(
    database: Database, table: AuditTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "WAITING_MAX", 5)
    run, asked = database.run, asyncio.Event()

    async def away(work: Any) -> Any:
        asked.set()
        raise Unavailable("away")

    monkeypatch.setattr(database, "run", away)
    async with Writing(database) as writing:
        for number in range(8):
            writing.trail.add(event(number))
        await asyncio.wait_for(asked.wait(), 60)
        assert writing.metric("duetime_audit_waiting_events") == 5
        assert writing.metric("duetime_audit_dropped_total") == 3
        monkeypatch.setattr(database, "run", run)
        while writing.clock.next_timer_ms() is None:
            await turn()
        await writing.clock.advance(trail.RETRY_MS)
        await writing.written()
    assert await numbers(table) == [4, 3, 2, 1, 0]


async def test_rows_that_the_database_never_takes_hold_up_no_others(
    database: Database, table: AuditTable, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Writing(database) as writing:
        writing.trail.add(event(1, user=None))
        await writing.written()
        assert writing.metric("duetime_audit_dropped_total") == 1
        writing.trail.add(event(2))
        await writing.written()
    assert await numbers(table) == [2]


async def test_stop_writes_waiting_events(database: Database, table: AuditTable) -> None:
    writing = Writing(database)
    for number in range(trail.BATCH_MAX + 1):
        writing.trail.add(event(number))
    await writing.trail.finish()
    assert len(await numbers(table)) == trail.BATCH_MAX + 1
    assert writing.metric("duetime_audit_dropped_total") == 0


async def test_stop_without_a_database_counts_lost_events(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(work: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(database, "run", hangs)
    monkeypatch.setattr(trail, "FINISH_S", 0.01)
    writing = Writing(database)
    writing.trail.add(event())
    await writing.trail.finish()
    assert writing.metric("duetime_audit_dropped_total") == 1


async def test_rows_are_kept_for_a_set_time(database: Database, table: AuditTable) -> None:
    writing = Writing(database, keep_days=2)
    now_ms = writing.clock.now_ms()
    await table.add(
        [AuditRow("old", "gateway", event(now_ms - 2 * DAY_MS - 1)), AuditRow("new", "retry", event(now_ms))]
    )
    async with writing, asyncio.timeout(60):
        while len(await numbers(table)) > 1:
            await turn()
        writing.clock.step_wall(2 * DAY_MS + 1)
        while await numbers(table):
            await writing.clock.advance(trail.FORGET_MS)
