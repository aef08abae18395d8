"""A committer that needs time: it commits late, out of step, or never."""

import asyncio
import random
from collections.abc import Sequence

from duetime_store.writing.committing import Leadership
from duetime_store.writing.staging import FlushBatch


class Delayed:
    """A Committer that commits when it is told to, in any order; `committed_end`: the groups before it are committed,
    from `start` on."""

    keeps_promises = True

    def __init__(self, start: int = 0) -> None:
        self.committed_end = start
        # Whether groups are committed as they come.
        self.is_free = False
        # End and commit of each group, in the order of the log; those at the front are committed.
        self._groups: list[tuple[int, asyncio.Future[None]]] = []

    wants_entry = False
    leadership: Leadership | None = None

    def write(self, group: FlushBatch) -> None:
        """See Committer."""

    async def shorten(self, position: int) -> None:
        """See Committer."""

    def propose(self, group: FlushBatch) -> "asyncio.Future[None]":
        """See Committer."""
        assert group.end > self.last_end, "groups are proposed in the order of the log"
        done = asyncio.get_running_loop().create_future()
        self._groups.append((group.end, done))
        if self.is_free:
            self.commit()
        return done

    @property
    def last_end(self) -> int:
        return self._groups[-1][0] if self._groups else self.committed_end

    @property
    def waiting(self) -> "list[asyncio.Future[None]]":
        """The uncommitted groups, oldest first."""
        return [done for _, done in self._groups if not done.done()]

    def commit(self, groups: "Sequence[asyncio.Future[None]] | None" = None) -> None:
        """Commits these groups, or all. The shard learns it in the loop's next turn."""
        for done in self.waiting if groups is None else groups:
            done.set_result(None)
        while self._groups and self._groups[0][1].done():
            self.committed_end = self._groups.pop(0)[0]

    def release(self) -> None:
        """Commits all groups, and later ones as they come."""
        self.is_free = True
        self.commit()

    def commit_some(self, dice: random.Random) -> None:
        """Commits some of the groups, in or out of step."""
        waiting = self.waiting
        count = dice.randint(0, len(waiting))
        self.commit(waiting[:count] if dice.random() < 0.7 else dice.sample(waiting, count))

    def lose(self) -> None:
        """Ends the shard's leadership: no group that waits is ever committed by it."""
        for done in self.waiting:
            done.set_exception(RuntimeError("another copy leads"))
