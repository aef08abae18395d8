"""The committer of a shard with copies: an entry of Raft for each group (writing/committing.py)."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from duetime_store.copies.entries import Entry
from duetime_store.copies.member import Member
from duetime_store.files.disk import Buffer


class ProposedGroup(Protocol):
    """A FlushBatch, as far as its bytes are concerned."""

    runs: list[tuple[int, list[Buffer]]]
    stored_at_ms: int


class Copies:
    """See the module. A majority of the copies have a committed group on their disks."""

    # A promise would need a commit of its own before the due time, and saves no flush: each entry has one.
    keeps_promises = False

    def __init__(self, member: Member) -> None:
        self._member = member
        self._committed: asyncio.Future[None] | None = None

    @property
    def leadership(self) -> Member:
        """See Committer."""
        return self._member

    @property
    def wants_entry(self) -> bool:
        """See Committer: a change of members waits."""
        return self._member.wants_change

    def write(self, group: ProposedGroup) -> "tuple[Sequence[Entry], asyncio.Future[None]]":
        """See Committer."""
        runs: Sequence[tuple[int, Sequence[Buffer]]] = group.runs
        entries, written, self._committed = self._member.propose(runs, group.stored_at_ms)
        return entries, written

    def propose(self, group: ProposedGroup) -> "asyncio.Future[None] | None":
        """See Committer: the core has had the group since it is being written."""
        committed, self._committed = self._committed, None
        return committed

    async def shorten(self, position: int) -> None:
        """See Committer."""
        await self._member.shorten(position)
