"""Proofs for reads: at the moment of a read no other copy had led, so the state of this one was the newest.

    call arrives ──▶ state is read ──▶ proof ──▶ answer

Either of two proofs is enough, and no clock is part of them. A later entry of this leader is committed, or a majority
has answered a heartbeat of a round that began after the read: Raft's read index.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import duetime_raft


class LeaderMoment(NamedTuple):
    """A moment of a leader: its term, and the index of its last entry then."""

    term: int
    last: int


class LeaderRounds:
    """Rounds of heartbeats that prove leadership. One at a time is under way; the next serves all that asked since."""

    def __init__(self, node: "duetime_raft.Node") -> None:
        self._node = node
        # Numbers of the last round that began, of the last one that a majority answered, and of the last one wanted.
        self._begun = self.done = self._wanted = 0
        self._term = 0

    def ask(self) -> int:
        """Has a round begin now, or after the one under way. Returns its number: `done` reaches it. The caller leads,
        has committed an entry of its term, and takes the core's work afterwards."""
        term = self._node.status()["term"]
        self._wanted = self._begun + 1
        # The core forgets the rounds of earlier terms.
        if self.done == self._begun or term != self._term:
            self._term = term
            self._begin()
        return self._wanted

    def take(self, reads: list[tuple[bytes, int]]) -> None:
        """Takes `reads` of the core's work."""
        for context, _ in reads:
            self.done = int.from_bytes(context)
        if reads and self.done == self._begun < self._wanted:
            self._begin()

    def _begin(self) -> None:
        self._begun += 1
        self._node.read_index(self._begun.to_bytes(8))
