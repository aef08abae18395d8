"""Commits that take time (delayed.py) in a shard's life: late, out of step, or never.

In mode `delayed` some flushed groups wait for their commit, across all other steps. A deposed leader loses
them: its log ends with the committed groups, and all answers, reads and checkpoints have to be right.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from duetime_core.clock import turn
from duetime_store.log.commitlog import CommitLog
from duetime_store.writing.committing import Alone, Committer
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

from tests.power_disk import PowerDisk
from tests.store.delayed import Delayed

T = TypeVar("T")
# Turns of the loop in which work ends, unless it waits for a commit.
TURNS = 12


class Committing:
    """A part of Life, whose steps it takes."""

    root: Path
    dice: random.Random
    loop: asyncio.AbstractEventLoop
    disk: PowerDisk | None
    store: Store
    flusher: Flusher
    _end: Callable[[], None]
    _open: Callable[[], None]
    check: Callable[[], None]

    def __init__(self, mode: str) -> None:
        self.is_delayed = mode == "delayed"
        self.committer: Committer = Alone()
        # The end of the log of a deposed leader, until it is cut.
        self._log_end: int | None = None

    def new_committer(self) -> Committer:
        """The committer of a life that begins."""
        self.committer = Delayed(self.store.published_end) if self.is_delayed else Alone()
        return self.committer

    def run(self, work: Awaitable[T]) -> T:
        """Runs work to its end. If it waits for a commit, the oldest group is committed."""

        async def waited() -> T:
            working, committer = asyncio.ensure_future(work), self.committer
            try:
                while isinstance(committer, Delayed) and not working.done():
                    for _ in range(TURNS):
                        await turn()
                    if not working.done():
                        if not committer.waiting:
                            break
                        committer.commit(committer.waiting[:1])
                        await self._publish()
                return await working
            finally:
                working.cancel()

        return self.loop.run_until_complete(waited())

    async def _publish(self) -> None:
        """As the flusher's loop for commits does."""
        await turn()
        await self.flusher.publish_committed()

    def commit(self, *, all_of_them: bool = False) -> None:
        """Commits some of the groups, or all."""
        if isinstance(self.committer, Delayed):
            if all_of_them or self.dice.random() < 0.4:
                self.committer.commit()
            elif self.dice.random() < 0.7:
                self.committer.commit_some(self.dice)
            self.loop.run_until_complete(self._publish())

    def depose(self) -> None:
        """Another copy leads: uncommitted groups are lost."""
        if isinstance(self.committer, Delayed):
            self._log_end = self.committer.committed_end
            self._end()
            self._open()
            self.check()

    def cut_log(self) -> None:
        """A deposed leader's, before it is opened."""
        if self._log_end is not None and self.disk is not None:
            log = CommitLog(self.disk, self.root / "commitlog", 1)
            log.cut(self._log_end)
            log.close()
            self._log_end = None
