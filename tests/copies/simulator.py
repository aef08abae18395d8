"""A group in one process: real copies and files, on a simulated clock, network and disk. A seed decides everything.

    events   | tick | message arrives | write done | client proposes | fault |        one heap, by time in ms

Faults: loss, duplicates, reordering, delays and one-way cuts of the network; kills and power cuts in the middle of any
operation of a disk, with torn writes; stopped processes; flipped bytes; handovers; members replaced by machines that
take a directory; lists of entries that are compacted soon, so that members fall behind; deleted segments.
"""

import heapq
import os
import random
import zlib
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from duetime_core.errors import StartupError
from duetime_format.record import Record, encode
from duetime_store.copies.copy import ENTRIES_MAX, BehindCopy, Copy, DamagedLog, repaired
from duetime_store.copies.entries import Entry
from duetime_store.copies.reads import LeaderMoment
from duetime_store.copies.roster import Roster
from duetime_store.copies.scanning import Damage
from duetime_store.copies.statefile import RaftState, StateFile
from duetime_store.copies.taking import Ask, Check, Giver, Listing, Read, SourceBehind, TakenOtherwise, begin, take
from duetime_store.copies.writes import Sending, Write
from duetime_store.log.commitlog import CommitLog

from tests.power_disk import PowerCut, PowerDisk
from tests.twins import native

raft = native("duetime_raft")

SEGMENT_BYTES = 16 * 1024
GROUP = 0xD0E71AE
TICK_MS = 10


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Place:
    """A committed entry."""

    term: int
    position: int
    end: int
    crc: int


@dataclass(slots=True)
class Truth:
    """All that was committed or answered anywhere."""

    places: list[Place] = field(default_factory=list)
    # Position of each token's entry.
    answered: dict[bytes, int] = field(default_factory=dict)
    # Highest index of an answered entry.
    answered_last: int = 0

    def committed(self, index: int, place: Place, where: int) -> None:
        if index == len(self.places) + 1:
            self.places.append(place)
        if self.places[index - 1] != place:
            raise Violation(f"copy {where} has {place} as entry {index}, another copy {self.places[index - 1]}")

    def answer(self, token: bytes, index: int, position: int) -> None:
        if token in self.answered:
            raise Violation(f"{token!r} was answered twice")
        self.answered[token] = position
        self.answered_last = max(self.answered_last, index)


@dataclass(frozen=True, slots=True)
class OpenRead:
    """A read that waits for its proof. `found`: entries that it saw; `wanted`: those answered before."""

    moment: LeaderMoment
    # Number of a round of heartbeats; 0: a later entry is to be the proof.
    asked: int
    found: int
    wanted: int


class Machine:
    """A copy on its disk; `copy` is None while it is down, or damaged."""

    def __init__(self, group: "Group", number: int, *, joins: bool = False) -> None:
        """`joins`: its directory is taken from another machine."""
        self.group, self.number, self.joins = group, number, joins
        self.root = group.root / str(number)
        self.root.mkdir()
        self.disk = PowerDisk(self.root, group.dice)
        self.copy: Copy | None = None
        self.file: StateFile
        self.log = CommitLog(self.disk, self.root / "commitlog", SEGMENT_BYTES)
        self.damage: Damage | None = None
        self.is_up = False
        # The taking of a directory.
        self.steps: Generator[Ask, Any, None] | None = None
        # Counts lives: events of an earlier one are void.
        self.life = 0
        self.busy: Write | None = None
        self.waiting: dict[int, tuple[int, bytes]] = {}
        self.reading: list[OpenRead] = []
        # The process is stopped until then.
        self.stopped_until = 0
        # Term by index of the entries on the disk.
        self.durable: dict[int, int] = {}

    def boot(self) -> None:
        """Starts the process; a power cut may interrupt that too."""
        self.life += 1
        self.is_up, self.busy, self.waiting, self.damage, self.steps = True, None, {}, None, None
        self.reading, self.stopped_until = [], 0
        try:
            roster = Roster(()) if self.joins else Roster(self.group.voters, highest=len(self.group.voters))
            self.file = StateFile(self.disk, self.root, RaftState(GROUP, self.number, roster, is_taking=self.joins))
            if self.file.state.is_taking:
                self.group.after(5, self._take, self.life)
            else:
                self._open()
        except PowerCut:
            self.crash(power=True)

    def _take(self, life: int) -> None:
        """Takes the directory of another machine, one step at a time."""
        sources = [each for each in self.group.machines.values() if each.copy is not None]
        if life == self.life and self.is_up:
            if sources:
                self.steps = take(self.disk, self.root, self.file)
                self._step(life, self.group.dice.choice(sources), None)
            else:
                self.group.after(20, self._take, life)

    def _step(self, life: int, source: "Machine", answer: Any) -> None:
        if life != self.life or not self.is_up or self.steps is None:
            return
        try:
            ask = self.steps.send(answer)
            if source.copy is None:
                self.steps.close()
                self.group.after(20, self._take, life)
                return
            giver = Giver(source.root)
            if isinstance(ask, Read):
                answer = giver.read(ask)
            else:
                answer = giver.check(ask) if isinstance(ask, Check) else Listing(giver.files(), source.copy.point)
            self.group.after(self.group.dice.randrange(1, 4), self._step, life, source, answer)
        except StopIteration:
            self.group.taken += 1
            self._open_whole()
        except (SourceBehind, TakenOtherwise):
            self.group.after(20, self._take, life)
        except PowerCut:
            self.crash(power=True)

    def _open_whole(self) -> None:
        try:
            self._open()
        except PowerCut:
            self.crash(power=True)

    def _open(self) -> None:
        self.log = CommitLog(self.disk, self.root / "commitlog", SEGMENT_BYTES)
        if self.log.min_position > self.file.state.position:
            raise Violation(f"the log of copy {self.number} has lost its beginning")
        # Fixed and different timeouts: the core's own random numbers would not repeat, and equal ones split votes.
        timeout = 10 + self.group.dice.randrange(4) * len(self.group.voters) + self.number
        try:
            ticks, most = (timeout, timeout + 1), self.group.entries_max
            self.copy = Copy(self.log, self.file, timeout_ticks=ticks, entries_max=most)
        except DamagedLog as error:
            self.damage = error.damage
            return
        except StartupError as error:
            raise Violation(f"copy {self.number} does not start: {error}") from error
        before = self.group.truth.places[: self.copy.entries[0].index]
        self.durable = {index: place.term for index, place in enumerate(before, 1)}
        self.durable |= {entry.index: entry.term for entry in self.copy.entries[1:]}
        self.group.after(TICK_MS, self.tick, self.life)

    def crash(self, *, power: bool) -> None:
        """The process dies, maybe with the machine."""
        self.is_up, self.copy, self.damage = False, None, None
        self.release()
        before, self.disk = self.disk, PowerDisk(self.root, self.group.dice)
        if power:
            before.lose()
        else:
            self.disk.go_on_from(before)
        away = self.group.dice.randrange(20, 400) if self.group.dice.random() < 0.6 else 3
        self.group.after(away, self._restart, self.life)

    def release(self) -> None:
        """Closes the files of this life, whose maps are descriptors too."""
        if self.steps is not None:
            with suppress(PowerCut):
                self.steps.close()
        self.disk.close_all()
        for position in range(0, self.log.max_position, SEGMENT_BYTES):
            if (segment := self.log.segment_at(position)) is not None:
                segment.map.close()

    def _restart(self, life: int) -> None:
        if life == self.life and not self.is_up:
            self.boot()

    def stop(self, ms: int) -> None:
        """Stops the process for a while. When it continues it knows of nothing that happened, and reads come first."""
        self.stopped_until = self.group.now + ms
        self.group.after(ms, self.read)

    def tick(self, life: int) -> None:
        if self.is_stopped(self.tick, life):
            return
        if life == self.life and self.copy is not None:
            self.act(self.copy.tick)
            if self.copy is not None:
                self.act(self._complete)
            if self.copy is not None and self.group.cuts:
                self._shorten(self.copy)
            self.group.after(TICK_MS - 2 + self.group.dice.randrange(5), self.tick, life)

    def _shorten(self, copy: Copy) -> None:
        """Deletes the oldest segment before a position that is committed, once no start needs it."""
        segment = self.log.segment_at(self.log.min_position)
        if segment is None or segment.end + SEGMENT_BYTES > copy.entry(copy.node.status()["applied"]).end:
            return
        if copy.begin < segment.end:
            self.act(lambda: copy.shorten(segment.end))
            return
        self.log.drop(segment)
        self.group.deleted += 1
        try:
            self.disk.unlink(segment.path)
            self.disk.sync_directory(segment.path.parent)
        except PowerCut:
            self.crash(power=True)

    def _complete(self) -> None:
        """The next step of members that join, as a leader takes it."""
        copy = self.copy
        assert copy is not None
        if copy.can_change and copy.next_change:
            copy.change(copy.next_change)
        elif copy.can_change and copy.is_replaced:
            copy.transfer(self.group.dice.choice([each for each in copy.roster.voters if each != self.number]))

    def act(self, step: Callable[[], object]) -> None:
        """Runs one step of the copy; then sends, publishes, and begins the next write."""
        copy = self.copy
        assert copy is not None
        roster = copy.roster
        try:
            step()
        except BehindCopy as error:
            self._fall_behind(error.index)
            return
        sendings, copy.sendings = copy.sendings, []
        for sending in sendings:
            self.group.send(self.number, sending)
        committed, copy.committed = copy.committed, []
        status = copy.node.status()
        if copy.roster is not roster and status["role"] == "leader":
            # Until a leader applies a change, it counts by the members before; then a removal may commit more.
            count = min(len(roster.voters), len(copy.roster.voters))
            self.group.counted[status["commit"]] = count
        for entry in committed:
            self._publish(copy, entry)
        if copy.roster.is_removed(self.number):
            self.leave()
            return
        self._read_on(copy)
        if self.busy is None and copy.next_write is not None:
            self.busy = copy.next_write
            took = self.group.dice.randrange(1, 8) if self.busy.run else 0
            self.group.after(took, self._write, self.life)

    def _fall_behind(self, committed: int) -> None:
        """The process ends; the next one takes a directory."""
        self.group.behind += 1
        try:
            begin(self.file, committed)
            self.crash(power=False)
        except PowerCut:
            self.crash(power=True)

    def leave(self) -> None:
        """The group has removed this machine."""
        if self.group.machines.pop(self.number, None) is not None:
            self.is_up, self.copy, self.damage, self.life = False, None, None, self.life + 1
            self.release()
            self.group.removed += 1

    def is_stopped(self, act: Callable[..., None], *values: object) -> bool:
        """Whether the process is stopped; the act is done when it continues."""
        ms = self.stopped_until - self.group.now
        if ms > 0:
            self.group.after(ms, act, *values)
        return ms > 0

    def _write(self, life: int) -> None:
        if self.is_stopped(self._write, life):
            return
        if life != self.life or self.copy is None or self.busy is None:
            return
        write, copy = self.busy, self.copy
        if write.run is not None:
            try:
                write.run()
            except PowerCut:
                self.crash(power=self.group.dice.random() < 0.7)
                return
        self.busy = None
        if write.entry is not None:
            self.durable = {index: term for index, term in self.durable.items() if index < write.entry.index}
            self.durable[write.entry.index] = write.entry.term
        self.act(lambda: copy.wrote(write))

    def _publish(self, copy: Copy, entry: Entry) -> None:
        data = copy.read(Damage(entry.position, entry.end))
        place = Place(entry.term, entry.position, entry.end, zlib.crc32(data))
        self.group.truth.committed(entry.index, place, self.number)
        term, token = self.waiting.pop(entry.index, (0, b""))
        if term == entry.term:
            holders = sum(each.durable.get(entry.index) == term for each in self.group.machines.values())
            counts = [count for commit, count in self.group.counted.items() if entry.index <= commit]
            if 2 * holders <= min([len(copy.roster.voters), *counts]):
                raise Violation(f"{token!r} was answered with {holders} copies")
            if data.count(token) != 1:
                raise Violation(f"{token!r} was answered at the place of other bytes")
            self.group.truth.answer(token, entry.index, entry.position)

    def read(self, *, asks: bool = True) -> None:
        """Reads the committed entries, if this copy leads as far as it knows. `asks`: for a round of heartbeats."""
        copy, wanted = self.copy, self.group.truth.answered_last
        if copy is None or self.group.now < self.stopped_until or (moment := copy.moment) is None:
            return
        found, asked = copy.node.status()["applied"], 0
        if asks:
            asked = copy.ask()
        self.reading.append(OpenRead(moment, asked, found, wanted))
        self.act(lambda: None)

    def _read_on(self, copy: Copy) -> None:
        """Completes the reads that are proven."""
        waiting, term = [], copy.node.status()["term"]
        for read in self.reading:
            if copy.is_proven(read.moment, read.asked):
                if read.found < read.wanted:
                    raise Violation(f"copy {self.number} read {read.found} entries, {read.wanted} were answered")
                self.group.reads += 1
            elif read.moment.term == term:
                waiting.append(read)
        self.reading = waiting

    def propose(self, token: bytes) -> bool:
        """Stages records with the token and proposes them; False: this copy does not lead."""
        copy, dice = self.copy, self.group.dice
        if copy is None or self.group.now < self.stopped_until:
            return False
        runs: list[tuple[int, list[bytes]]] = []
        at = copy.last.end
        for number in range(1 if self.group.is_even else dice.randrange(1, 4)):
            body = (token if number == 0 else b"") + bytes([65 + number]) * (
                100 if self.group.is_even else dice.randrange(0, 1500)
            )
            record = Record("orders", 0, body, b"", stored_at_ms=self.group.now)
            position = self.log.place(at, len(encode(record)))
            data = encode(Record("orders", 0, body, b"", stored_at_ms=self.group.now, position=position))
            runs.append((position, [data]))
            at = position + len(data)
        proposed: list[Entry] = []
        try:
            self.act(lambda: proposed.append(copy.propose(runs, self.group.now)))
        except (raft.NotLeader, raft.ProposalDropped):
            self.act(lambda: None)
            return False
        # Its commit needs a flush, so it was not published by that step.
        self.waiting[proposed[0].index] = proposed[0].term, token
        return True

    def flip(self) -> None:
        """Changes a byte of an old entry, while the process is down."""
        # Two later entries are on this disk, the next one is committed: no peer has the mark of an overruled entry.
        committed = self.group.truth.places[: max(max(self.durable, default=0) - 2, 0)]
        pairs = pairwise(committed)
        # A removed machine takes its disk along: another member must have the entry.
        copies = [each.copy for each in self.group.machines.values() if each.copy is not None]
        roster = max(copies, key=lambda copy: copy.node.status()["applied"]).roster
        others = [
            each.durable for number, each in self.group.machines.items() if number in roster.numbers - {self.number}
        ]
        places = [
            one
            for at, (one, two) in enumerate(pairs, 2)
            if self.durable.get(at) == two.term and any(durable.get(at) == two.term for durable in others)
        ]
        # A start checks the entries after those of a taken directory.
        places = [place for place in places if place.position >= self.file.state.position]
        if not places:
            return
        place = self.group.dice.choice(places)
        position = self.group.dice.randrange(place.position, place.end)
        path = self.root / "commitlog" / f"{position - position % SEGMENT_BYTES:020d}"
        with path.open("r+b") as file:
            (byte,) = os.pread(file.fileno(), 1, position % SEGMENT_BYTES)
            os.pwrite(file.fileno(), bytes([byte ^ 1 << self.group.dice.randrange(8)]), position % SEGMENT_BYTES)

    def repair(self) -> None:
        """Asks a peer for damaged bytes."""
        peers = [each.copy for each in self.group.machines.values() if each.copy is not None]
        if self.damage is None or not peers:
            return
        data = self.group.dice.choice(peers).read(self.damage)
        try:
            if data and repaired(self.log, self.file, self.damage, data):
                self.damage = None
                self.group.repaired += 1
                self._open()
        except PowerCut:
            self.crash(power=True)


class Group:
    """Machines, the network between them, and the clock."""

    def __init__(self, root: Path, seed: int, members: int = 3) -> None:
        self.root, self.dice = root, random.Random(seed)
        self.voters = tuple(range(1, members + 1))
        self.truth = Truth()
        self.now = 0
        # Repaired ranges; faults; directories taken, machines removed; members that fell behind; completed reads.
        self.repaired = self.faults = self.taken = self.removed = self.behind = self.reads = 0
        # See Copy; whether segments are deleted, and their number.
        self.entries_max, self.cuts, self.deleted = ENTRIES_MAX, False, 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._serial = 0
        # (sender, receiver) of cut ways.
        self._cut: set[tuple[int, int]] = set()
        self.loss = self.double = self.slow = 0.0
        # The lower number of voters before and after a change, by the last entry that may be committed by either.
        self.counted: dict[int, int] = {}
        # All entries with messages have one length: a stale one fits behind any other.
        self.is_even = False
        self.machines = {number: Machine(self, number) for number in self.voters}

    def after(self, ms: int, act: Callable[..., None], *values: object) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now + ms, self._serial, act, values))

    def run(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, act, values = heapq.heappop(self._events)
            act(*values)
        self.now = until

    def send(self, sender: int, sending: Sending) -> None:
        if (sender, sending.to) in self._cut or self.dice.random() < self.loss:
            return
        for _ in range(2 if self.dice.random() < self.double else 1):
            ms = self.dice.randrange(1, 300) if self.dice.random() < self.slow else self.dice.randrange(1, 6)
            self.after(ms, self._arrive, sender, sending)

    def _arrive(self, sender: int, sending: Sending) -> None:
        machine = self.machines.get(sending.to)
        if machine is None or (copy := machine.copy) is None:
            return
        if machine.is_stopped(self._arrive, sender, sending):
            return
        if copy.roster.is_removed(sender):
            if sender in self.machines:
                self.machines[sender].leave()
        elif sender in copy.roster.numbers or sender > copy.roster.highest:
            machine.act(lambda: self._receive(copy, sender, sending))

    def _receive(self, copy: Copy, sender: int, sending: Sending) -> None:
        """The network loses and repeats, but changes nothing. Answers of an unknown member may be refused."""
        is_known = sender in copy.roster.numbers
        if not copy.receive(sending.message, sending.payload) and is_known:
            raise Violation(f"copy {sending.to} refused a message")

    def cut(self, both_ways: bool) -> None:
        """Cuts one machine off: both ways, or only its sending or hearing."""
        one = self.dice.choice([*self.machines])
        out = self.dice.random() < 0.5
        for other in self.machines:
            self._cut |= {(one, other)} if both_ways or out else set()
            self._cut |= {(other, one)} if both_ways or not out else set()

    def heal(self) -> None:
        self._cut.clear()
