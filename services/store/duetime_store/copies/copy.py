"""One copy of a replicated log: joins Raft's core, the bytes of the commit log, and the marks in it."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Literal

import duetime_raft
from duetime_core.errors import StartupError
from duetime_format.errors import DamagedBytes
from duetime_format.marks import GROUP, MEMBERS, OWN

from duetime_store.copies.entries import Entry, Runs, described, is_of, made, received
from duetime_store.copies.reads import LeaderMoment, LeaderRounds
from duetime_store.copies.roster import Newcomer, Roster
from duetime_store.copies.scanning import Damage, View, repairs, scan
from duetime_store.copies.statefile import StateFile
from duetime_store.copies.taking import Point
from duetime_store.copies.writes import Sending, Write, Writer
from duetime_store.log.commitlog import CommitLog

# Entries that a member may lack when it is given leadership, or a vote.
BEHIND_MAX = 1_024
# Entries kept up to the last applied one. A start reads them, and a member further behind takes a directory.
ENTRIES_MAX = 262_144
Role = Literal["voter", "learner", "removed"]


class DamagedLog(Exception):
    """Bytes in the middle of the log are damaged: the copy neither votes nor acknowledges until a peer gave them."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(f"positions {damage.position} to {damage.end} of the log are damaged; a peer has them")
        self.damage = damage


class BehindCopy(Exception):
    """The leader no longer has the entries that this copy lacks: it has to take a directory with the committed entry
    `index`. The core is of no more use."""

    def __init__(self, index: int) -> None:
        super().__init__(f"the leader no longer has all entries up to {index}")
        self.index = index


def opened(log: CommitLog, file: StateFile) -> tuple[Entry, list[Entry]]:
    """(a stand-in for the log before the first entry; the entries of the log), with a torn end cut, durably. Blocking.

    Raises:
        DamagedLog: see `repaired`.
        StartupError: entries that were committed are missing at the end.
    """
    state, writer = file.state, Writer(log, file)
    if state.is_cutting:
        writer.finish_cut()
    first = state.base
    found = scan(View(log), state.group, first)
    if found.damage is not None:
        raise DamagedLog(found.damage)
    last = found.entries[-1] if found.entries else first
    if last.index < state.commit:
        raise StartupError(
            f"the log of {log.directory} ends with entry {last.index}, and entry {state.commit} was on this disk: "
            "replace this copy"
        )
    # A killed process may have left its last entry in the page cache alone.
    log.flush_from(last.position)
    log.take_back(last.end)
    return first, found.entries


def repaired(log: CommitLog, file: StateFile, damage: Damage, data: bytes) -> bool:
    """Writes the bytes of a peer in place of damaged ones, durably, if they continue the chain. Blocking."""
    state = file.state
    before = scan(View(log), state.group, state.base).entries
    last = before[-1] if before else state.base
    if len(data) != damage.end - damage.position or last.end != damage.position:
        return False
    if not repairs(View(log, damage.position, data), state.group, last, damage):
        return False
    log.end = damage.position
    Writer(log, file).write(damage.position, data)
    return True


class Copy:
    """A member of a group, on its own log and `duetimeRaft`. One thread at a time calls it; only `Write.run` blocks.

    The caller passes on time (`tick`) and messages (`receive`), sends those of `sendings`, runs the writes one after
    the other, and publishes `committed` in order. It moves bytes and decides nothing.
    """

    def __init__(
        self,
        log: CommitLog,
        file: StateFile,
        *,
        timeout_ticks: tuple[int, int] = (10, 20),
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        """Opens the copy; blocking. A tick compacts more than `entries_max` entries.

        Raises:
            DamagedLog, StartupError: see `opened`.
        """
        first, found = opened(log, file)
        state = self._state = file.state
        self._log, self._file, self._writer = log, file, Writer(log, file)
        self.entries, self._entries_max = [first, *found], entries_max
        # A start reads the log from this position on.
        self.begin = first.end
        self.flushed = self.entries[-1]
        self.sendings: list[Sending] = []
        self.committed: list[Entry] = []
        self._writes: deque[Write] = deque()
        # Bytes of new entries, until the core has taken or refused them; and until their write is done.
        self._incoming: dict[tuple[int, int], bytes] = {}
        self._unwritten: dict[tuple[int, int], bytes] = {}
        # An entry of a later term than the state's: the newer slot is damaged. This copy gives no vote in that term.
        term, vote = (state.term, state.vote) if state.term >= self.flushed.term else (self.flushed.term, state.id)
        self._voted = term, vote
        # The members as of the base, and as of each later change in `committed`, with its index.
        self._rosters = [(first.index, state.roster)]
        # The last change of members that was proposed here, or a later entry: no other begins before it is applied.
        self._change = 0
        # The last entry that was looked at for a change of members.
        self._looked = first.index
        # Writes under way that make the commit of a change of members durable, and committed rows that wait for them.
        self._held = 0
        self._waiting: list[duetime_raft.Entry] = []
        self.node = duetime_raft.Node(
            state.id,
            state.roster.core(),
            term=term,
            vote=vote,
            commit=max(state.commit, first.index),
            base=(first.index, first.term),
            applied=first.index,
            entries=[(each.index, each.term, int(each.kind == MEMBERS), _core_data(each)) for each in found],
            timeout_ticks=timeout_ticks,
        )
        self._rounds = LeaderRounds(self.node)
        self._drain()

    def attach(self, log: CommitLog) -> None:
        """Replaces the object of the log by another one with the same segments. No write may be under way.

        Raises:
            ValueError: that log ends elsewhere.
        """
        if log.end != self.last.end:
            raise ValueError(f"the log ends at {log.end}, its last entry at {self.last.end}")
        self._log, self._writer = log, Writer(log, self._file)

    def after(self, index: int) -> list[Entry]:
        """The entries after this one."""
        return self.entries[index + 1 - self.entries[0].index :]

    def entry(self, index: int) -> Entry:
        """The entry of an index, which the log has, or the stand-in for the log before the first one."""
        return self.entries[index - self.entries[0].index]

    @property
    def last(self) -> Entry:
        """The last entry, flushed or not; the next one begins at its end."""
        return self.entries[-1]

    @property
    def roster(self) -> Roster:
        """The members as of the last entry in `committed`."""
        return self._rosters[-1][1]

    def tick(self) -> None:
        self.node.tick()
        status = self.node.status()
        for number, (_, state, _) in status["peers"].items():
            if state == "statesnapshot":
                # The member takes a directory by itself; until then it is probed again.
                self.node.snapshot_sent(number, False)
        if (least := status["applied"] - self._entries_max) > self.entries[0].index:
            # A quarter more, so that the base moves rarely; but not those that members may still get.
            matches = [match for match, _, is_heard in status["peers"].values() if is_heard and match >= least]
            self.compact(min([least + self._entries_max // 4, *matches]))
        self._drain()

    def compact(self, index: int) -> None:
        """Forgets the entries up to an applied one. It becomes the base of the log, durably by one of `next_write`."""
        base = self.entry(index)
        del self.entries[: index - self.entries[0].index]
        self.node.compact(index)
        while len(self._rosters) > 1 and self._rosters[1][0] <= index:
            del self._rosters[0]
        roster = self._rosters[0][1]
        self._looked = max(self._looked, index)
        self._writes.append(Write(lambda: self._writer.begin_after(base, roster), begin=base.end))

    def shorten(self, position: int) -> None:
        """Forgets the entries before a published position, and the one that has it. `begin` follows."""
        self.compact(self.entries[0].index + bisect_left(self.entries, position, key=_end))

    def receive(self, message: bytes, payload: bytes) -> bool:
        """Takes a message; False: it or its bytes are not valid, and nothing changed."""
        try:
            for index, term, kind, data in duetime_raft.entries(message):
                if kind == 0 and data:
                    if not is_of(data, payload):
                        return False
                    received(self._state.group, index, term, data, payload)
                    self._incoming[index, term] = payload
            self.node.step(message)
        except (duetime_raft.MessageRejected, DamagedBytes, ValueError):
            return False
        finally:
            self._drain()
        return True

    def propose(self, runs: Runs, stored_at_ms: int) -> Entry:
        """Appends a group commit whose first run begins at or after the end of `last`. It counts once `committed` has
        an entry of its index and term; an entry of another term there overruled it.

        Raises:
            NotLeader, ProposalDropped: of `duetime_raft`; nothing was appended.
        """
        term = self.node.status()["term"]
        entry, data = made(self._log, self._state.group, self.last, term, runs, stored_at_ms, kind=GROUP)
        self._incoming[entry.index, term] = data
        try:
            place = self.node.propose(entry.data)
        finally:
            self._drain()
        assert place == (entry.index, entry.term)
        return entry

    def change(self, changes: Sequence[tuple[int, Role]], newcomer: Newcomer | None = None) -> bool:
        """Appends a change of members; `newcomer`: the learner that it adds. False: another change is under way, or
        this copy does not lead.
        """
        if not self.can_change:
            return False
        try:
            self.node.propose_conf(changes, newcomer.encode() if newcomer else b"")
        except (duetime_raft.NotLeader, duetime_raft.ProposalDropped):
            return False
        finally:
            self._drain()
            # Not before: a change that can't begin becomes an empty entry.
            self._change = self.last.index
        return True

    @property
    def can_change(self) -> bool:
        """Whether this copy leads, and no change is under way. One of an earlier leader may have the next number."""
        status = self.node.status()
        is_free = status["applied"] >= self._change and not self.roster.voters_outgoing
        return self._knows_all(status) and not status["transfer"] and is_free

    def _knows_all(self, status: "duetime_raft.Status") -> bool:
        """Whether this copy leads, and has committed an entry of its term, and so all that earlier leaders answered."""
        return status["role"] == "leader" and self.entry(status["applied"]).term == status["term"]

    @property
    def next_change(self) -> list[tuple[int, Role]]:
        """At the leader: the next step of a member that joins. A learner with nearly all entries becomes a voter; then
        the member that it replaces leaves, unless that leads."""
        status, roster = self.node.status(), self.roster
        for number in roster.learners:
            match, _, is_heard = status["peers"].get(number, (0, "", False))
            # A new member counts as heard; an acknowledgement alone shows that it has a log.
            if is_heard and match and status["last"] - match <= BEHIND_MAX:
                return [(number, "voter")]
        replaced = [old for new, old in roster.replaces.items() if new in roster.voters and old != self._state.id]
        return [(old, "removed") for old in replaced[:1]]

    @property
    def is_replaced(self) -> bool:
        """Whether a voter takes this copy's place: a leader hands over then."""
        return any(new in self.roster.voters and old == self._state.id for new, old in self.roster.replaces.items())

    def transfer(self, to: int) -> None:
        """Hands leadership over.

        Raises:
            NotLeader: of `duetime_raft`.
        """
        self.node.transfer(to)
        self._drain()

    @property
    def moment(self) -> LeaderMoment | None:
        """The present, if this copy leads, and has committed all entries that earlier leaders may have answered."""
        status = self.node.status()
        return LeaderMoment(status["term"], self.last.index) if self._knows_all(status) else None

    def ask(self) -> int:
        """Has the next round of heartbeats begin, and returns its number; only while there is a `moment`."""
        asked = self._rounds.ask()
        self._drain()
        return asked

    def is_proven(self, moment: LeaderMoment, asked: int = 0) -> bool:
        """Whether no other copy had led by `moment`; `asked`: a round that began afterwards."""
        status = self.node.status()
        if (status["role"], status["term"]) != ("leader", moment.term):
            return False
        return status["applied"] > moment.last or (asked > 0 and self.is_answered(asked))

    def is_answered(self, asked: int) -> bool:
        """Whether a majority has answered a round."""
        return asked <= self._rounds.done

    @property
    def point(self) -> Point:
        """The last committed entry, which is on this copy's disk; a copied directory begins after it."""
        entry = self.entry(self.node.status()["applied"])
        return Point(entry, self.roster, self._log.min_position, self._log.segment_bytes)

    def read(self, damage: Damage) -> bytes:
        """The bytes of a range, for a peer that lost them; empty: this copy does not have them all."""
        return self._bytes(damage.position, damage.end) if damage.end <= self.flushed.end else b""

    @property
    def next_write(self) -> Write | None:
        """The write to be run next, or None."""
        return self._writes[0] if self._writes else None

    def wrote(self, write: Write) -> None:
        """The next write was run."""
        assert write is self._writes[0]
        self._writes.popleft()
        if write.entry is not None:
            self.flushed = write.entry
            self._unwritten.pop((write.entry.index, write.entry.term), None)
        if write.begin is not None:
            self.begin = write.begin
        self.sendings += write.sendings
        if write.number:
            self.node.persisted(write.number)
        self._held -= write.is_awaited
        self._apply()
        self._drain()

    def _drain(self) -> None:
        """Takes the core's work after every call of it."""
        while (work := self.node.ready()) is not None:
            if work["snapshot"] is not None:
                raise BehindCopy(work["snapshot"][0])
            hard = work["hard"]
            if hard is not None and hard[:2] != self._voted:
                self._write_vote(*hard)
            for row in work["entries"]:
                self._write_entry(*row)
            if hard is not None and self._commits_change(hard[2]):
                # Before others hear of it, and before this copy acts on it. Otherwise a removed member could leave, and
                # a power cut make the rest forget why: they would elect nobody without it, or two leaders of a term.
                self._write_vote(*hard, is_awaited=True)
            at_once = [self._sending(*each) for each in work["messages"]]
            if self._held:
                self._writes.append(Write(sendings=at_once))
            else:
                self.sendings += at_once
            self._writes.append(Write(None, work["number"], [self._sending(*s) for s in work["messages_flushed"]]))
            self._waiting += work["committed"]
            self._apply()
            self._rounds.take(work["reads"])
        self._incoming.clear()

    def _apply(self) -> None:
        """Applies committed entries, unless a write of `_held` is under way."""
        if self._held:
            return
        rows, self._waiting = self._waiting, []
        for index, _, kind, data in rows:
            if kind == 1:
                members, context = self.node.apply_conf(index, data), duetime_raft.context(data)
                self._rosters.append((index, self.roster.after(members, Newcomer.decode(context))))
            else:
                self.node.applied(index)
            self.committed.append(self.entry(index))

    def _commits_change(self, commit: int) -> bool:
        """Whether a change of members is among the entries that are known to be committed since the last call."""
        first, self._looked = self._looked, max(self._looked, commit)
        return any(self.entry(index).kind == MEMBERS for index in range(first + 1, self._looked + 1))

    def _write_vote(self, term: int, vote: int, commit: int, *, is_awaited: bool = False) -> None:
        self._voted, self._held = (term, vote), self._held + is_awaited

        def run() -> None:
            # No higher than the disk: a log that ends before it has lost entries.
            self._writer.vote(term, vote, min(commit, self.flushed.index))

        self._writes.append(Write(run, is_awaited=is_awaited))

    def _write_entry(self, index: int, term: int, kind: int, data: bytes) -> None:
        if index <= self.last.index:
            del self.entries[index - self.entries[0].index :]
            position, last = self.last.end, self.last
            self._writes.append(Write(lambda: self._writer.cut(position), entry=last))
        if kind == 0 and data:
            payload = self._incoming[index, term]
            entry = received(self._state.group, index, term, data, payload)
        else:
            own, group = MEMBERS if kind == 1 else OWN, self._state.group
            entry, payload = made(self._log, group, self.last, term, (), self.last.stored_at_ms, kind=own, change=data)
        if entry.position != self.last.end:
            raise ValueError(f"entry {index} begins at {entry.position}, the one before ends at {self.last.end}")
        self.entries.append(entry)
        self._writes.append(Write(lambda: self._writer.append(entry, payload), entry=entry))
        self._unwritten[index, term] = payload

    def _sending(self, to: int, message: bytes, rows: "list[duetime_raft.Entry]") -> Sending:
        payload = b""
        for index, term, kind, data in rows:
            if kind == 0 and data:
                position, length = described(data)
                known = self._incoming.get((index, term)) or self._unwritten.get((index, term))
                payload = known or self._bytes(position, position + length)
        return Sending(to, message, payload)

    def _bytes(self, position: int, end: int) -> bytes:
        parts = []
        while position < end and (part := self._log.read(position, end - position)):
            parts.append(part)
            position += len(part)
        return b"".join(parts)


def _end(entry: Entry) -> int:
    return entry.end


def _core_data(entry: Entry) -> bytes:
    return entry.data if entry.kind in (GROUP, MEMBERS) else b""
