"""A running copy: passes time and messages to its Copy, sends, writes, and says which entries are committed.

    ticks, messages heard ──▶ Copy ──▶ links (at once), writes (one thread, in order), commits

Every step of the copy happens on the event loop; an error in one ends the process, as the loss of leadership does: the
next start drops everything that was not committed.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor

import duetime_raft
import structlog
from duetime_core.clock import Clock
from duetime_core.errors import NotLeader

from duetime_store.copies.clock import GroupClock
from duetime_store.copies.copy import Copy
from duetime_store.copies.entries import Entry, Runs
from duetime_store.copies.links import Heard, PeerLink
from duetime_store.copies.writes import Sending
from duetime_store.log.commitlog import CommitLog

log = structlog.get_logger()

# Messages heard and not yet taken in; beyond it their streams wait.
HEARD_MAX = 64
# Longest wait of a stop for another member to take over leadership.
HAND_OVER_MS = 1_000

Done = asyncio.Future[None]


class Member:
    """See the module."""

    def __init__(
        self, copy: Copy, links: Mapping[int, PeerLink], clock: Clock, group_clock: GroupClock, executor: Executor
    ) -> None:
        """`executor`: one thread, which writes the log."""
        self._copy, self._links, self._clock, self._executor = copy, links, clock, executor
        self._group_clock = group_clock
        self._heard: asyncio.Queue[Heard] = asyncio.Queue(HEARD_MAX)
        self._changed = asyncio.Event()
        # Term in which this copy leads and its store may serve; 0: none so far.
        self._term = 0
        self._elected: Done = asyncio.get_running_loop().create_future()
        # Done once this copy led, and does no more.
        self._unseated: Done = asyncio.get_running_loop().create_future()
        # Own entries that are not on the disk, or not committed.
        self._writing: deque[tuple[Entry, Done]] = deque()
        self._committing: deque[tuple[Entry, Done]] = deque()
        # Entries before this position of the log are committed, and on this copy's disk.
        self.committed_end = copy.entries[0].end
        self.status = copy.node.status()

    async def run(self, tick_ms: float) -> None:
        """Runs the copy until it is cancelled.

        Raises:
            NotLeader: it led, and does no more.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tick(tick_ms))
                group.create_task(self._take())
                group.create_task(self._write())
                for link in self._links.values():
                    group.create_task(link.run())
        finally:
            self._fail(NotLeader(0, self.status["term"]))

    @property
    def elected(self) -> Done:
        """Done once this copy leads, and all entries before its term are committed and on its disk."""
        return self._elected

    def attach(self, commit_log: CommitLog) -> None:
        """Writes and reads the log by the object of the opened store. Nothing may be under way."""
        self._copy.attach(commit_log)

    async def hear(self, heard: Heard) -> None:
        """Takes a message of another member, once there is room."""
        self._group_clock.heard(heard.sender, heard.sent_at_ms)
        if heard.message:
            await self._heard.put(heard)

    def lost(self, member: int) -> None:
        """Notes that messages to a member were lost."""
        self._copy.node.unreachable(member)

    def propose(self, runs: Runs, stored_at_ms: int) -> tuple[Entry, Done, Done]:
        """Appends a group commit. Returns its entry, and futures of its flush and of its commit.

        Raises:
            NotLeader: nothing was appended.
        """
        try:
            entry = self._copy.propose(runs, max(stored_at_ms, self._copy.last.stored_at_ms))
        except (duetime_raft.NotLeader, duetime_raft.ProposalDropped) as error:
            raise NotLeader(self.status["leader"], self.status["term"]) from error
        loop = asyncio.get_running_loop()
        written, committed = loop.create_future(), loop.create_future()
        self._writing.append((entry, written))
        self._committing.append((entry, committed))
        self._work()
        return entry, written, committed

    async def hand_over(self) -> None:
        """Gives leadership to the member that has most of the log; returns when it is given, or after HAND_OVER_MS."""
        peers = [(match, number) for number, (match, _, active) in self.status["peers"].items() if active]
        peers = [peer for peer in peers if peer[1] in self._links]
        if not self._leads or self._unseated.done() or not peers:
            return
        self._copy.transfer(max(peers)[1])
        self._work()
        await self._clock.wait_for(self._unseated, HAND_OVER_MS)

    @property
    def _leads(self) -> bool:
        return self.status["role"] == "leader"

    async def _tick(self, tick_ms: float) -> None:
        while True:
            await self._clock.sleep(tick_ms)
            self._copy.tick()
            for number, link in self._links.items():
                # Each member knows the clocks of all, should it have to lead.
                link.send(Sending(number, b""))
            self._work()
            self._check()

    async def _take(self) -> None:
        while True:
            heard = await self._heard.get()
            if not self._copy.receive(heard.message, heard.payload):
                log.warning("message of another copy refused", copy=heard.sender, bytes=len(heard.payload))
            self._work()
            self._check()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while (write := self._copy.next_write) is not None:
                # A deposed leader writes no more: its store may be reading the log's end.
                self._check()
                if write.run is not None:
                    await loop.run_in_executor(self._executor, write.run)
                self._copy.wrote(write)
                self._work()
                self._check()
            self._changed.clear()
            await self._changed.wait()

    def _work(self) -> None:
        """Takes the results of a step of the copy."""
        copy = self._copy
        sendings, copy.sendings = copy.sendings, []
        for sending in sendings:
            self._links[sending.to].send(sending)
        while self._writing and self._writing[0][0].index <= copy.flushed.index:
            _done(self._writing.popleft()[1])
        committed, copy.committed = copy.committed, []
        self.status = copy.node.status()
        for entry in committed:
            self.committed_end = entry.end
            if self._committing and self._committing[0][0].index == entry.index:
                own, done = self._committing.popleft()
                if own.term == entry.term:
                    _done(done)
            if self._leads and entry.term == self.status["term"] and not self._elected.done():
                self._term = entry.term
                log.info("elected", term=entry.term, index=entry.index)
                self._elected.set_result(None)
        self._changed.set()

    def _check(self) -> None:
        """Raises: NotLeader: this copy has lost the leadership that its store relies on."""
        status = self.status
        if self._term and (not self._leads or status["term"] != self._term):
            error = NotLeader(status["leader"], status["term"])
            _done(self._unseated)
            self._fail(error)
            raise error

    def _fail(self, error: NotLeader) -> None:
        for _, done in (*self._writing, *self._committing):
            if not done.done():
                done.set_exception(error)
                # A caller may have gone.
                done.exception()
        self._writing.clear()
        self._committing.clear()


def _done(future: Done) -> None:
    if not future.done():
        future.set_result(None)
