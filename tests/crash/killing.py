"""kill -9 of services at random times, no faster than the workload can bear."""

import asyncio
import os
from collections.abc import Callable

from bench.processes import Processes

# DUETIME_TEST_KILLS: the number of kills in one run; `make kills` has 200.
KILLS = int(os.environ.get("DUETIME_TEST_KILLS", "6"))
# The time limit of a test with as many kills: a safety net alone, on a machine where a start takes 10 s.
KILLS_TIMEOUT_S = 540 + 10 * KILLS
RESTART_DEADLINE_S = 60.0
PROGRESS_DEADLINE_S = 60.0
# A slow machine takes seconds for a start. Where kills come faster than that, nothing would ever be served.
KILLS_WITHOUT_PROGRESS_MAX = 8


async def kill_one(cluster: Processes, name: str) -> None:
    """Kills a service and waits for the supervisor to start it again; that it serves is not waited for."""
    killed = cluster.kill(name)
    async with asyncio.timeout(RESTART_DEADLINE_S):
        while cluster.pids().get(name) in (None, killed):  # noqa: ASYNC110  another process tells no event
            await asyncio.sleep(0.02)


class Breath:
    """Lets a workload progress: after a number of kills without progress, the next one waits for it."""

    def __init__(self, progress: Callable[[], tuple[object, ...]]) -> None:
        """`progress`: values that all change while the workload gets on."""
        self._progress = progress
        self._last = progress()
        self._kills = 0

    async def taken(self) -> None:
        """To be called after each kill."""
        self._kills = 0 if self._got_on() else self._kills + 1
        if self._kills >= KILLS_WITHOUT_PROGRESS_MAX:
            async with asyncio.timeout(PROGRESS_DEADLINE_S):
                while not self._got_on():  # noqa: ASYNC110  another process tells no event
                    await asyncio.sleep(0.05)
            self._kills = 0

    def _got_on(self) -> bool:
        now = self._progress()
        if any(one == before for one, before in zip(now, self._last, strict=True)):
            return False
        self._last = now
        return True
