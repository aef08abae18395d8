"""A group of `duetime_raft.Node`s in one dict: each has a disk, and the test delivers the messages."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.twins import native

raft = native("duetime_raft")


def members(*voters: int, learners: Iterable[int] = ()) -> dict[str, Any]:
    return {
        "voters": list(voters),
        "learners": list(learners),
        "voters_outgoing": [],
        "learners_next": [],
        "auto_leave": False,
    }


@dataclass
class Disk:
    """The state that a crash leaves: hard state, entries with their base, and the applied index with its members."""

    hard: tuple[int, int, int] = (0, 0, 0)
    base: tuple[int, int] = (0, 0)
    entries: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    applied: int = 0
    members: dict[str, Any] = field(default_factory=dict)

    def write(self, work: dict[str, Any]) -> None:
        if work["snapshot"] is not None:
            index, term, self.members = work["snapshot"]
            self.base, self.entries, self.applied = (index, term), [], index
        if work["entries"]:
            del self.entries[work["entries"][0][0] - self.base[0] - 1 :]
            self.entries += work["entries"]
        self.hard = work["hard"] or self.hard

    def start(self, id: int, timeout: int = 0) -> Any:  # noqa: A002 - the field's term
        last = self.entries[-1][0] if self.entries else self.base[0]
        ticks = {"timeout_ticks": (timeout, timeout + 1)} if timeout else {}
        return raft.Node(
            id,
            self.members,
            term=self.hard[0],
            vote=self.hard[1],
            commit=min(max(self.hard[2], self.applied), last),
            base=self.base,
            entries=self.entries,
            applied=self.applied,
            **ticks,
        )


class Member:
    """A node, its disk, and the works that are written but not flushed yet."""

    def __init__(self, id: int, disk: Disk, timeout: int) -> None:  # noqa: A002 - the field's term
        self.id, self.disk, self.timeout = id, disk, timeout
        self.node = disk.start(id, timeout)
        self.flushing = True
        self.unflushed: list[dict[str, Any]] = []
        self.committed: list[tuple[int, int, int, bytes]] = []
        self.reads: list[tuple[bytes, int]] = []
        self.sent: list[tuple[int, bytes]] = []

    def work(self) -> None:
        """Takes all work; unless `flushing`, its writes, and the messages behind them, wait."""
        while (work := self.node.ready()) is not None:
            self.sent += [(to, message) for to, message, _ in work["messages"]]
            self.unflushed.append(work)
            self.reads += work["reads"]
            for index, _, kind, data in work["committed"]:
                if kind == 1:
                    self.disk.members = self.node.apply_conf(index, data)
                else:
                    self.node.applied(index)
                self.disk.applied = index
            self.committed += work["committed"]
            if self.flushing:
                self.flush()

    def flush(self) -> None:
        works, self.unflushed = self.unflushed, []
        for work in works:
            self.disk.write(work)
            self.sent += [(to, message) for to, message, _ in work["messages_flushed"]]
        if works:
            self.node.persisted(works[-1]["number"])

    def restart(self) -> None:
        """A crash: unflushed works are lost, with the messages behind them."""
        self.unflushed, self.sent = [], []
        self.node = self.disk.start(self.id, self.timeout)
        self.committed = self.committed[: self.disk.applied]


class Group:
    """Members by id, and the messages under way."""

    def __init__(self, *voters: int) -> None:
        timeouts = {each: 10 + 3 * place for place, each in enumerate(voters)}
        self.members = {each: Member(each, Disk(members=members(*voters)), timeouts[each]) for each in voters}
        self.mail: list[tuple[int, bytes]] = []

    def __getitem__(self, id: int) -> Member:  # noqa: A002 - the field's term
        return self.members[id]

    def deliver(self, to: int, message: bytes) -> None:
        if (member := self.members.get(to)) is None:
            return
        try:
            member.node.step(message)
        except raft.MessageRejected:
            return
        member.work()

    def settle(self, cut: Iterable[int] = ()) -> None:
        """Delivers everything, until nothing is under way; members of `cut` neither send nor receive."""
        silent = set(cut)
        while True:
            for member in self.members.values():
                member.work()
                self.mail += [] if member.id in silent else member.sent
                member.sent = []
            if not self.mail:
                return
            mail, self.mail = self.mail, []
            for to, message in mail:
                if to not in silent:
                    self.deliver(to, message)

    def elect(self, id: int, cut: Iterable[int] = ()) -> None:  # noqa: A002 - the field's term
        self[id].node.campaign()
        self.settle(cut)
        assert self[id].node.status()["role"] == "leader"
