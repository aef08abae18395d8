"""Raft's core (tikv's raft-rs 0.7) as a state machine: messages in, work out; no I/O, thread or clock.

The caller owns the log's bytes, the disk, the network and the time. An entry of the core is a descriptor of bytes. A
node belongs to one thread at a time.

The order of a step:

    node.step(message) | node.tick() | node.propose(data)
    while (work := node.ready()) is not None:
        send work["messages"]                   # at once: a leader's entries leave before its own flush
        write work["entries"] and work["hard"]
        flush, at the latest before `persisted` # several works may share a flush
        send work["messages_flushed"]           # votes and acknowledgements
        node.persisted(work["number"])
        publish work["committed"], then node.applied(index)
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypedDict

INTERFACE: int

# Index, term, kind (0: the caller's, or Raft's own without data; 1: a change of members), data.
Entry: TypeAlias = tuple[int, int, int, bytes]

class Members(TypedDict):
    """The members of a group by id; `voters_outgoing` is not empty during a joint change."""

    voters: list[int]
    learners: list[int]
    voters_outgoing: list[int]
    learners_next: list[int]
    auto_leave: bool

class Work(TypedDict):
    """The work that a node asks for, in the order of the keys."""

    number: int  # rises by 1; `persisted` takes it
    # Receiver, message, and the entries whose bytes the message needs (one at most).
    messages: list[tuple[int, bytes, list[Entry]]]
    # A snapshot that replaces the log up to its index: index, term, members. The caller has to fetch its bytes.
    snapshot: tuple[int, int, Members] | None
    # To be written; the first may overrule a tail of the log, which then ends after the last of them.
    entries: list[Entry]
    hard: tuple[int, int, int] | None  # term, vote, commit
    flush: bool  # False: only `commit` changed, which a restart may know too low
    messages_flushed: list[tuple[int, bytes, list[Entry]]]  # to be sent after the flush
    committed: list[Entry]
    reads: list[tuple[bytes, int]]  # context of `read_index`; the read is right once this index is applied

class Status(TypedDict):
    id: int
    role: Literal["follower", "precandidate", "candidate", "leader"]
    term: int
    vote: int
    leader: int  # 0: not known
    commit: int
    applied: int
    persisted: int
    first: int
    last: int
    last_term: int
    transfer: int  # receiver of a leadership that is handed over, or 0
    members: Members
    # At the leader, by id: index surely on its disk; stateprobe, statereplicate or statesnapshot; whether it was heard.
    peers: dict[int, tuple[int, str, bool]]

class RaftError(Exception):
    """The core rejects a call. The node stays usable, except after `CoreFailed`."""

class NotLeader(RaftError):
    """Only the leader does this."""

class ProposalDropped(RaftError):
    """The leader takes no proposal now: it hands over, or another change of members is pending."""

class MessageRejected(RaftError):
    """A message is damaged, not for this node, from no member, or of a kind that never travels."""

class CoreFailed(RaftError):
    """The core broke one of its own rules (a panic). Every later call raises this too: end the process."""

def entries(message: bytes) -> list[Entry]:
    """The entries in a message, so that their bytes can be checked before `Node.step`.

    Raises:
        MessageRejected: no message of Raft.
    """

def context(data: bytes) -> bytes:
    """The caller's bytes in the data of a change of members; empty in one of Raft's own.

    Raises:
        MessageRejected: no change of members.
    """

class Node:
    """One member of a group.

    Pre-votes and checks of the quorum are on; reads never depend on a lease. A message carries one entry at most.

    Raises:
        ValueError: the state of a restart contradicts itself, or ticks are out of order.
    """

    def __new__(
        cls,
        id: int,  # noqa: A002 - the field's term
        members: Members,
        *,
        term: int = 0,
        vote: int = 0,
        commit: int = 0,
        base: tuple[int, int] = (0, 0),  # index and term of the entry before `entries`
        entries: Sequence[Entry] = (),
        applied: int = 0,
        heartbeat_ticks: int = 1,
        election_ticks: int = 10,
        timeout_ticks: tuple[int, int] = (10, 20),  # an election begins after a random count, the second excluded
        inflight_max: int = 64,  # entries under way to each follower
    ) -> Node: ...
    def tick(self) -> None:
        """Counts one tick, the unit of all timeouts."""

    def campaign(self) -> None:
        """Begins an election now."""

    def step(self, message: bytes) -> None:
        """Takes a message of another member.

        Raises:
            MessageRejected
        """

    def propose(self, data: bytes) -> tuple[int, int]:
        """Appends an entry of the caller, which is not empty; returns its index and term.

        Raises:
            NotLeader, ProposalDropped
        """

    def propose_conf(
        self, changes: Sequence[tuple[int, Literal["voter", "learner", "removed"]]], context: bytes = b""
    ) -> tuple[int, int]:
        """Appends a change of members; more than one at once is a joint change, which ends by itself.

        `context`: bytes of the caller, which travel with the change.

        Raises:
            NotLeader
            ProposalDropped: an earlier change is not applied everywhere; the entry became an empty one.
        """

    def apply_conf(self, index: int, data: bytes) -> Members:
        """Applies a committed change of members, in place of `applied`; returns the members after it."""

    def applied(self, index: int) -> None:
        """All committed entries up to `index` are published."""

    def persisted(self, number: int) -> None:
        """The writes of all works up to this number are flushed."""

    def read_index(self, context: bytes) -> None:
        """Asks for the commit index of this moment; it comes in `Work.reads`.

        A request may be lost, as without a leader or before its first commit: repeat it after a timeout.
        """

    def transfer(self, to: int) -> None:
        """Hands leadership over to a voter, once that has all entries; given up after an election timeout.

        Raises:
            NotLeader
        """

    def unreachable(self, id: int) -> None:  # noqa: A002 - the field's term
        """Messages to this member were lost: the leader probes it before it sends more."""

    def snapshot_sent(self, to: int, arrived: bool) -> None:
        """The bytes of a snapshot message arrived at this member, or did not."""

    def compact(self, index: int) -> None:
        """Forgets the descriptors up to an applied index.

        Raises:
            ValueError: not applied yet.
        """

    def ready(self) -> Work | None:
        """The work that is due, or None."""

    def status(self) -> Status:
        """The state of this moment; costs a few microseconds."""
