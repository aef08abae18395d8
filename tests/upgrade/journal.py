"""Output of a client (client.py), by message, and checks of a cluster against it after an upgrade."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Found(NamedTuple):
    """A message in its topic; moments in Unix milliseconds, `due_at_ms` 0: it is not delayed."""

    id: str
    body: bytes
    due_at_ms: int
    stored_at_ms: int


@dataclass
class Journal:
    """Sets of message ids, and moments in Unix milliseconds."""

    # id: (delay, moment before the call)
    sending: dict[str, tuple[int, int]] = field(default_factory=dict)
    # id: due; 0: not delayed
    stored: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    # The call was begun; whether it was answered is not known.
    acking: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    # The puller's, by queue.
    committed: dict[int, int] = field(default_factory=dict)
    killed_at_ms: int = 0

    @classmethod
    def read(cls, text: str) -> "Journal":
        """Of a client's output. The last line of a killed client may be cut off."""
        journal = cls()
        for line in text.split("\n"):
            if line.endswith("]"):
                kind, *values = json.loads(line)
                note = getattr(journal, f"_{kind}", None)
                if note is not None:
                    note(*values)
        return journal

    def _sending(self, name: str, delay_ms: int, at_ms: int) -> None:
        self.sending[name] = (delay_ms, at_ms)

    def _stored(self, name: str, due_at_ms: int) -> None:
        self.stored[name] = due_at_ms

    def _refused(self, name: str, error: str) -> None:
        self.refused[name] = error

    def _acking(self, name: str) -> None:
        self.acking.add(name)

    def _acked(self, name: str) -> None:
        self.acked.add(name)

    def _failing(self, name: str, _reject: bool) -> None:
        self.failing.add(name)

    def _failed(self, name: str, dead: bool) -> None:
        self.failing.discard(name)
        if dead:
            self.dead.add(name)

    def _committed(self, offsets: dict[str, int]) -> None:
        self.committed = {int(queue): offset for queue, offset in offsets.items()}

    def _killed(self, at_ms: int) -> None:
        self.killed_at_ms = at_ms

    def check_topic(self, found: Iterable[Found]) -> None:
        """Acknowledged messages are there once and as sent, and none came early."""
        messages = list(found)
        names = [message.id for message in messages]
        assert len(names) == len(set(names))
        assert self.stored.keys() <= set(names) <= self.sending.keys()
        for message in messages:
            assert message.body.decode() == message.id
            delay_ms, began_ms = self.sending[message.id]
            assert bool(message.due_at_ms) == bool(delay_ms)
            assert message.stored_at_ms >= began_ms + delay_ms
            assert self.stored.get(message.id, 0) in (0, message.due_at_ms)

    def check_positions(self, positions: dict[int, int]) -> None:
        """The puller's. Its last commit may have been in flight."""
        assert self.committed
        assert all(positions[queue] >= offset for queue, offset in self.committed.items())

    def left(self, dead: Iterable[str]) -> set[str]:
        """Messages that the group must still get."""
        return self.stored.keys() - self.acking - set(dead)

    def check_group(self, received: set[str], dead: set[str]) -> None:
        """The group got all that it had not acknowledged, and nothing again."""
        assert self.acked
        assert self.dead
        assert not (self.acked | self.dead) & received
        assert self.dead <= dead <= self.dead | self.failing
        assert self.left(dead) <= received
