"""Output of a client (client.py), by message."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Journal:
    """Sets of message ids, and moments in Unix milliseconds."""

    # id: (delay, moment before the call)
    sending: dict[str, tuple[int, int]] = field(default_factory=dict)
    # id: due; 0: not delayed
    stored: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    pulled: Counter[str] = field(default_factory=Counter)
    # (id, late by the store's clock, late by the client's clock)
    late_ms: list[tuple[str, int, int]] = field(default_factory=list)
    wrong_bodies: list[str] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    # Received although acknowledged or dead before.
    received_again: list[str] = field(default_factory=list)
    # The call was begun; whether it was answered is not known.
    acking: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    # The puller's, by queue.
    committed: dict[int, int] = field(default_factory=dict)
    found: Counter[bool] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    killed_at_ms: int = 0
    done: bool = False

    @classmethod
    def read(cls, lines: Iterable[str]) -> "Journal":
        """Of a client's output."""
        journal = cls()
        for line in lines:
            kind, *values = json.loads(line)
            getattr(journal, f"_{kind}")(*values)
        return journal

    def _sending(self, name: str, delay_ms: int, at_ms: int) -> None:
        self.sending[name] = (delay_ms, at_ms)

    def _stored(self, name: str, due_at_ms: int) -> None:
        self.stored[name] = due_at_ms

    def _refused(self, name: str, error: str) -> None:
        self.refused[name] = error

    def _pulled(self, name: str, body: str, late_ms: int, at_ms: int) -> None:
        self.pulled[name] += 1
        if body != name:
            self.wrong_bodies.append(name)
        delay_ms, began_ms = self.sending[name]
        if delay_ms:
            self.late_ms.append((name, late_ms, at_ms - began_ms - delay_ms))

    def _received(self, name: str, _attempt: int, _at_ms: int) -> None:
        self.received[name] += 1
        if name in self.acked or name in self.dead:
            self.received_again.append(name)

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

    def _found(self, _name: str, found: bool) -> None:
        self.found[found] += 1

    def _error(self, text: str) -> None:
        self.errors.append(text)

    def _killed(self, at_ms: int) -> None:
        self.killed_at_ms = at_ms

    def _done(self) -> None:
        self.done = True
