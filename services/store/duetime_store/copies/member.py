"""A running copy: passes time and messages to its Copy, sends, writes, and says which entries are committed.

    ticks, messages heard ──▶ Copy ──▶ links (at once), writes (one thread, in order), commits

Every step of the copy happens on the event loop; an error in one ends the process, as the loss of leadership does: the
next start drops everything that was not committed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import duetime_raft
import structlog
from duetime_core.clock import Clock
from duetime_core.errors import NotLeader

from duetime_store.copies.clock import GroupClock
from duetime_store.copies.copy import Copy, Role
from duetime_store.copies.entries import Entry, Runs
from duetime_store.copies.links import Heard, RemovedCopy
from duetime_store.copies.peers import Peers
from duetime_store.copies.reads import LeaderMoment
from duetime_store.copies.room import DiskRoom
from duetime_store.copies.roster import Newcomer, Roster
from duetime_store.copies.scanning import Damage
from duetime_store.copies.taking import Point
from duetime_store.copies.writes import Sending
from duetime_store.files.gate import NO_ROOM
from duetime_store.log.commitlog import CommitLog

log = structlog.get_logger()

# Messages heard and not yet taken in; beyond it their streams wait.
HEARD_MAX = 64
# Pauses between two inspections of the disk, and between two attempts of a write that found no room.
ROOM_CHECK_MS, ROOM_RETRY_MS = 1_000, 200
# Longest wait of a stop for another member to take over leadership.
HAND_OVER_MS = 1_000

Done = asyncio.Future[None]


class Member:
    """See the module."""

    def __init__(
        self, copy: Copy, peers: Peers, clock: Clock, group_clock: GroupClock, executor: Executor, room: DiskRoom
    ) -> None:
        """`executor`: one thread, which writes the log."""
        self.room = room
        # Members whose disks are full.
        self._full: set[int] = set()
        self._copy, self._peers, self._clock, self.executor = copy, peers, clock, executor
        self._group_clock = group_clock
        # Whether proposals were dropped during a handover: their callers have failed, so the leadership has to end.
        self._dropped = False
        self._followed = Roster(())
        # The change of members that waits for the store.
        self._wanted: tuple[Sequence[tuple[int, Role]], Newcomer | None] | None = None
        self._wake: Callable[[], None] = lambda: None
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
        # Calls that wait for a round of heartbeats, by its number.
        self._confirming: deque[tuple[int, Done]] = deque()
        # Answers by their proof: entry, round.
        self.confirmed = {"entry": 0, "round": 0}
        # Positions before which no start is to need the log.
        self._shortening: deque[tuple[int, Done]] = deque()
        # Entries before this position of the log are committed, and on this copy's disk.
        self.committed_end = copy.entries[0].end
        self.status = copy.node.status()
        self._follow()

    async def run(self, tick_ms: float) -> None:
        """Runs the copy until it is cancelled.

        Raises:
            NotLeader: it led, and does no more.
            RemovedCopy: the group has removed this copy.
            BehindCopy: it has to take a directory.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tick(tick_ms))
                group.create_task(self._take())
                group.create_task(self._write())
                group.create_task(self._peers.run())
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
        (self._full.add if heard.is_full else self._full.discard)(heard.sender)
        if heard.message:
            await self._heard.put(heard)

    def meet(self, number: int, address: str) -> None:
        """Answers a member from now on that this copy's log does not have yet."""
        self._peers.meet(number, address, self.roster)

    def lost(self, member: int) -> None:
        """Notes that messages to a member were lost."""
        self._copy.node.unreachable(member)

    def propose(self, runs: Runs, stored_at_ms: int) -> tuple[Sequence[Entry], Done, Done]:
        """Appends a group commit, if there is one, and a change of members that waits. Returns the entries, and futures
        of their flush and of their commit.

        Raises:
            NotLeader: nothing was appended.
        """
        copy = self._copy
        first = copy.last.index
        try:
            if runs:
                copy.propose(runs, max(stored_at_ms, copy.last.stored_at_ms))
            if self._wanted is not None and copy.can_change:
                (changes, newcomer), self._wanted = self._wanted, None
                copy.change(changes, newcomer)
                log.info("change of members proposed", changes=[*changes], index=copy.last.index)
        except (duetime_raft.NotLeader, duetime_raft.ProposalDropped) as error:
            self._dropped = True
            raise self.not_leader() from error
        entries = copy.after(first)
        if not entries:
            self._dropped = True
            raise self.not_leader()
        loop = asyncio.get_running_loop()
        written, committed = loop.create_future(), loop.create_future()
        self._writing.append((entries[-1], written))
        self._committing.append((entries[-1], committed))
        self._work()
        return entries, written, committed

    def moment(self) -> LeaderMoment:
        """See Leadership."""
        moment = self._copy.moment
        if moment is None or self._unseated.done():
            raise self.not_leader()
        return moment

    async def confirm(self, moment: LeaderMoment) -> None:
        """See Leadership."""
        copy = self._copy
        if copy.is_proven(moment):
            self.confirmed["entry"] += 1
            return
        # Only a leader may ask.
        self.moment()
        done: Done = asyncio.get_running_loop().create_future()
        self._confirming.append((copy.ask(), done))
        self._work()
        await done
        self.confirmed["round"] += 1

    @property
    def confirming_count(self) -> int:
        """Calls that wait for a round of heartbeats."""
        return len(self._confirming)

    async def hand_over(self) -> None:
        """Gives leadership to the member that has most of the log, if possible one with room on its disk. Returns when
        it is given, or after HAND_OVER_MS."""
        peers = self._successors()
        if not self.leads or self._unseated.done() or not peers:
            return
        self._copy.transfer(max(peers)[2])
        self._work()
        await self._clock.wait_for(self._unseated, HAND_OVER_MS)

    def _successors(self) -> list[tuple[bool, int, int]]:
        """Voters that answer: whether there is room, the last known entry, and the number of each."""
        peers = [(match, number) for number, (match, _, active) in self.status["peers"].items() if active]
        voters = self.roster.voters
        return [
            (number not in self._full, match, number)
            for match, number in peers
            if number in self._peers and number in voters
        ]

    def _inspect(self) -> None:
        """Gives leadership away if the disk is full, and one of another member is not."""
        self.room.inspect()
        successors = [peer for peer in self._successors() if peer[0]]
        if self.room.is_full and self._term and self.leads and successors and not self.status["transfer"]:
            log.error("the disk is full: another copy is to lead", copy=max(successors)[2])
            self._copy.transfer(max(successors)[2])

    def transfer(self, to: int) -> None:
        """Begins to give leadership to a voter that is heard and near the end of the log.

        Raises:
            NotLeader
        """
        try:
            self._copy.transfer(to)
        except duetime_raft.NotLeader as error:
            raise self.not_leader() from error
        self._work()

    def change(self, changes: Sequence[tuple[int, Role]], newcomer: Newcomer | None = None) -> bool:
        """Begins a change of members; False: another one is under way. It is lost with the leadership: repeat it."""
        if self._wanted is not None or not self._copy.can_change:
            return False
        self._wanted = changes, newcomer
        self._wake()
        return True

    @property
    def wants_change(self) -> bool:
        """Whether `propose` would append a change of members."""
        return self._wanted is not None and self._copy.can_change

    def serve(self, wake: Callable[[], None]) -> None:
        """The store of this leader serves. `wake` makes it call `propose` soon: nothing else may append to the log, by
        whose end the store places its records."""
        self._wake = wake
        wake()

    def _complete(self) -> None:
        """At the leader: takes the next step of members that join or are replaced."""
        copy = self._copy
        if self.wants_change:
            self._wake()
        elif self.leads and self._wanted is None and (changes := copy.next_change):
            self.change(changes)
        elif self.leads and copy.is_replaced and not self.status["transfer"] and (peers := self._successors()):
            log.info("leadership is handed over: this copy is replaced", copy=max(peers)[2])
            self.transfer(max(peers)[2])

    async def shorten(self, position: int) -> None:
        """On return, no start of this copy needs the log before a published position. Positions rise."""
        if self._copy.begin < position:
            done = asyncio.get_running_loop().create_future()
            self._shortening.append((position, done))
            self._copy.shorten(position)
            self._changed.set()
            await done

    @property
    def roster(self) -> Roster:
        """The members as of the last committed entry."""
        return self._copy.roster

    @property
    def point(self) -> Point:
        """See Copy."""
        return self._copy.point

    def read(self, damage: Damage) -> bytes:
        """See Copy."""
        return self._copy.read(damage)

    def address_of(self, number: int) -> str:
        """The address of a member for the others."""
        return self._peers.address_of(number, self.roster)

    @property
    def leads(self) -> bool:
        return self.status["role"] == "leader"

    def not_leader(self) -> NotLeader:
        """The error of a call that only the leader may serve."""
        return NotLeader(self.status["leader"], self.status["term"])

    async def _tick(self, tick_ms: float) -> None:
        inspected_ms = self._clock.monotonic_ms()
        while True:
            await self._clock.sleep(tick_ms)
            self._copy.tick()
            if self._clock.monotonic_ms() - inspected_ms >= ROOM_CHECK_MS:
                inspected_ms = self._clock.monotonic_ms()
                self._inspect()
            for number in self._peers:
                # Each member knows the clocks of all, should it have to lead.
                self._peers.send(Sending(number, b""))
            self._work()
            self._complete()
            self._check()

    async def _take(self) -> None:
        while True:
            heard = await self._heard.get()
            if not self._copy.receive(heard.message, heard.payload):
                log.warning("message of another copy refused", copy=heard.sender, bytes=len(heard.payload))
            self._work()
            self._check()

    async def _write(self) -> None:
        while True:
            while (write := self._copy.next_write) is not None:
                # A deposed leader writes no more: its store may be reading the log's end.
                self._check()
                if write.run is not None:
                    await self._on_disk(write.run)
                self._copy.wrote(write)
                self._work()
                self._check()
            self._changed.clear()
            await self._changed.wait()

    async def _on_disk(self, run: Callable[[], None]) -> None:
        """Runs a write. If the disk has no room for it, this copy acknowledges nothing until it has."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(self.executor, run)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self.room.refused(error)
            else:
                return
            await self._clock.sleep(ROOM_RETRY_MS)
            self._check()

    def _work(self) -> None:
        """Takes the results of a step of the copy."""
        copy = self._copy
        sendings, copy.sendings = copy.sendings, []
        for sending in sendings:
            self._peers.send(sending)
        while self._writing and self._writing[0][0].index <= copy.flushed.index:
            _done(self._writing.popleft()[1])
        while self._confirming and copy.is_answered(self._confirming[0][0]):
            _done(self._confirming.popleft()[1])
        while self._shortening and self._shortening[0][0] <= copy.begin:
            _done(self._shortening.popleft()[1])
        committed, copy.committed = copy.committed, []
        self.status = copy.node.status()
        for entry in committed:
            self.committed_end = entry.end
            if self._committing and self._committing[0][0].index == entry.index:
                own, done = self._committing.popleft()
                if own.term == entry.term:
                    _done(done)
            if self.leads and entry.term == self.status["term"] and not self._elected.done():
                self._term = entry.term
                log.info("elected", term=entry.term, index=entry.index)
                self._elected.set_result(None)
        self._follow()
        self._changed.set()

    def _follow(self) -> None:
        """Takes a change of members into account."""
        roster = self._copy.roster
        if roster is not self._followed:
            log.info("members", voters=roster.voters, learners=roster.learners, leaving=roster.voters_outgoing)
            self._followed = roster
            self._peers.follow(roster)
            self._group_clock.follow(roster.voters)

    def _check(self) -> None:
        """
        Raises:
            NotLeader: this copy has lost the leadership that its store relies on, or nobody took it after proposals
                were dropped.
            RemovedCopy: the group has removed this copy.
        """
        status = self.status
        if self.roster.is_removed(status["id"]):
            raise RemovedCopy(status["id"])
        was_dropped = self._dropped and not status["transfer"]
        if self._term and (not self.leads or status["term"] != self._term or was_dropped):
            error = self.not_leader()
            self._fail(error)
            raise error

    def _fail(self, error: NotLeader) -> None:
        _done(self._unseated)
        for _, done in (*self._writing, *self._committing, *self._confirming):
            if not done.done():
                done.set_exception(error)
                # A caller may have gone.
                done.exception()
        self._writing.clear()
        self._committing.clear()
        self._confirming.clear()


def _done(future: Done) -> None:
    if not future.done():
        future.set_result(None)
