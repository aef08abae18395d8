"""Copies that forget old entries, and delete old segments: one that was away for longer takes a directory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from duetime_core.errors import StartupError
from duetime_store.offline.verify import verify
from duetime_store.settings import StoreSettings

from tests.copies.kills import entries_of
from tests.copies.processes import MIB
from tests.copies.test_full import NUMBERS, Nodes
from tests.twins import native

native("duetime_raft")

from duetime_store.copies.copy import Copy  # noqa: E402  after the check for the wheel

pytestmark = pytest.mark.timeout(300)
ENTRIES_MAX = 20


class Supervisor:
    """Restarts nodes that end; `ends` has their errors."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes, self.ends = nodes, dict[int, list[str]]()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Held by a restart: a cancelled one would leave half a node.
        self._restarting = asyncio.Lock()

    def watch(self, number: int) -> None:
        self.ends[number] = []
        self._tasks[number] = asyncio.create_task(self._keep(number))

    async def leave(self, number: int) -> None:
        """The node stays down from now on."""
        async with self._restarting:
            self._tasks[number].cancel()
            await asyncio.wait([self._tasks.pop(number)])
            await self.nodes.stop(number)

    async def _keep(self, number: int) -> None:
        while True:
            try:
                await self.nodes.nodes[number].failed()
            except StartupError as error:
                self.ends[number].append(str(error))
            async with self._restarting:
                await self.nodes.stop(number)
                await self.nodes.start(number)

    async def close(self) -> None:
        for number in list(self._tasks):
            await self.leave(number)


@asynccontextmanager
async def supervised(root: Path, **settings: Any) -> AsyncIterator[Supervisor]:
    async with Nodes(root, **settings) as nodes:
        supervisor = Supervisor(nodes)
        for number in NUMBERS:
            supervisor.watch(number)
        try:
            yield supervisor
        finally:
            await supervisor.close()


async def test_copy_that_was_away_for_too_long_takes_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = Copy.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "entries_max", ENTRIES_MAX)
    async with supervised(tmp_path) as supervisor:
        nodes = supervisor.nodes
        await nodes.put()
        leader = await nodes.leader()
        away, other = (number for number in NUMBERS if number != leader)
        last = nodes.membership(away).member.status["last"]
        await supervisor.leave(away)
        for number in (leader, other):
            # Entry by entry: a leader forgets them in its ticks.
            while nodes.base(number) <= last + ENTRIES_MAX:
                await nodes.put()
        await nodes.start(away)
        supervisor.watch(away)
        await nodes.until(lambda: any("takes a directory" in text for text in supervisor.ends[away]))
        await nodes.put()
        await nodes.until(lambda: nodes.base(away) > last)
        # Without it there is no majority.
        await supervisor.leave(other)
        await nodes.put()
    found = {number: entries_of(tmp_path / str(number)) for number in (leader, away)}
    end = min(entries[-1].end for _, entries in found.values())
    for position in range(0, end, MIB):
        first, second = (log.read(position, min(MIB, end - position)) for log, _ in found.values())
        assert first == second
    for log, entries in found.values():
        log.close()
        assert entries[-1].index - entries[0].index < 2 * ENTRIES_MAX


def begin_of(root: Path) -> int:
    """The position at which the log in a directory begins."""
    return min(int(path.name) for path in (root / "commitlog").iterdir())


PENDING = 20


async def test_copies_delete_the_same_segments(tmp_path: Path) -> None:
    """Pending messages are kept, also by another leader. A copy that was away takes a log without its beginning."""
    roots = {number: tmp_path / str(number) for number in NUMBERS}
    limits = {"retention_bytes": 3 * MIB, "retention_check_ms": 50, "checkpoint_ms": 100}
    async with supervised(tmp_path, **limits) as supervisor:
        nodes = supervisor.nodes
        for _ in range(PENDING):
            await nodes.put(level=18)

        async def cut(position: int, *numbers: int) -> None:
            while any(begin_of(roots[number]) < position for number in numbers):
                await nodes.put()

        await cut(2 * MIB, *NUMBERS)
        leader = await nodes.leader()
        away, other = (number for number in NUMBERS if number != leader)
        last = nodes.membership(away).member.status["last"]
        await supervisor.leave(away)
        while min(nodes.base(leader), nodes.base(other)) <= last + ENTRIES_MAX:
            await nodes.put()
        await nodes.start(away)
        supervisor.watch(away)
        await nodes.until(lambda: any("takes a directory" in text for text in supervisor.ends[away]))
        await nodes.until(lambda: nodes.base(away) > last)
        await supervisor.leave(leader)
        await cut(begin_of(roots[leader]) + 2 * MIB, away, other)
        assert await nodes.pending(level=18) == PENDING
        await nodes.start(leader)
        supervisor.watch(leader)
        await nodes.until(lambda: nodes.base(leader) > last)
        await cut(begin_of(roots[away]) + MIB, *NUMBERS)
    for root in roots.values():
        report = verify(root, StoreSettings(data_dir=root).levels)
        assert report.is_sound, report.damages[:3]
