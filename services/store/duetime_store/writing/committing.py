"""The step between writing a group of records and publishing it: its commit.

    staged ──▶ written, flushed (Flusher) ──▶ committed (Committer) ──▶ published (Store)

A group is committed when no failure that the shard is built for can lose it. With one copy the flush achieves that. A
shard with copies needs a majority of them, so several of its groups may be under way at a time.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from duetime_store.copies.entries import Entry
from duetime_store.copies.reads import LeaderMoment
from duetime_store.writing.staging import FlushBatch


class Leadership(Protocol):
    """Proves that the published state was the newest of all copies."""

    def moment(self) -> LeaderMoment:
        """The present, for `confirm`.

        Raises:
            NotLeader
        """
        ...

    async def confirm(self, moment: LeaderMoment) -> None:
        """Returns once it is proven that no other copy had led by `moment`. Call it after reading the state.

        Raises:
            NotLeader: the state may have been an old one.
        """
        ...


class Committer(Protocol):
    """Decides when written groups are committed."""

    # Whether places of records may be promised (promises.py).
    keeps_promises: bool

    @property
    def leadership(self) -> Leadership | None:
        """Confirms reads. None: no other copy can lead."""
        ...

    @property
    def wants_entry(self) -> bool:
        """Whether `write` is to be called soon, if need be with an empty group."""
        ...

    def write(self, group: FlushBatch) -> "tuple[Sequence[Entry], asyncio.Future[None]] | None":
        """Called before `propose`, with the group that follows the last one in the log. None: the flusher writes it.

        Otherwise the committer does, and closes it with a record of its own; more records of its own may follow.
        Returns their entries, and a future that is done when all are flushed.

        Raises:
            NotLeader: nothing is written, and nothing ever will be by this process.
        """
        ...

    def propose(self, group: FlushBatch) -> "asyncio.Future[None] | None":
        """Proposes the group that follows the last one in the log. It is written and, unless the mode is async or
        durable plans decide its places (promises.py), flushed.

        Returns a future that is done when the group is committed, in any order of the groups; None: it is. An error
        ends all writing: the groups that are not committed by then never will be by this process.
        """
        ...

    async def shorten(self, position: int) -> None:
        """Returns once a start needs no part of the log before a position, which is committed."""


class Alone:
    """The committer of a shard with one copy: a flushed group is committed."""

    keeps_promises = True
    wants_entry = False
    leadership: Leadership | None = None

    def write(self, group: FlushBatch) -> None:
        """See Committer."""

    def propose(self, group: FlushBatch) -> None:
        """See Committer."""

    async def shorten(self, position: int) -> None:
        """See Committer."""
