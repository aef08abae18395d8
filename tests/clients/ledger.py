"""Messages that clients report as sent, received and acknowledged, and checks of these reports. Pure."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

TOPIC = "kills"


class Kind(StrEnum):
    """The expected outcome of a message."""

    NORMAL = "normal"
    DELAYED = "delayed"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    # A transaction that its producer does not end, and commits when it is asked.
    CHECKED = "checked"


DECIDED = frozenset((Kind.COMMITTED, Kind.ROLLED_BACK, Kind.CHECKED))


class Sent(NamedTuple):
    body: str
    due_ms: int
    kind: Kind
    # Not: nobody knows whether it was stored. A transaction counts as rolled back then.
    ok: bool
    what: str = "sent"


class Got(NamedTuple):
    group: str
    body: str
    attempt: int
    at_ms: int
    what: str = "got"


class Acked(NamedTuple):
    """It was said to be acknowledged, before this moment."""

    group: str
    body: str
    at_ms: int
    what: str = "acked"


class Ledger:
    """Of one run."""

    def __init__(self, groups: Iterable[str]) -> None:
        self.groups = tuple(groups)
        self.sent: dict[str, Sent] = {}
        self.got: list[Got] = []
        self.acked: list[Acked] = []
        self.done_count = 0
        self._seen = {group: set[str]() for group in self.groups}

    def take(self, line: list[Any]) -> None:
        """Adds a client's report; its last element names the event."""
        match line:
            case [body, due_ms, kind, ok, "sent"]:
                self.sent[body] = Sent(body, due_ms, Kind(kind), ok)
            case [group, body, attempt, at_ms, "got"]:
                self.got.append(Got(group, body, attempt, at_ms))
                self._seen[group].add(body)
            case [group, body, at_ms, "acked"]:
                self.acked.append(Acked(group, body, at_ms))
            case ["done"]:
                self.done_count += 1
            case _:
                raise ValueError(f"{line} is nothing that a client says")

    def missing(self) -> dict[str, list[Sent]]:
        """Messages that were certainly sent and have not come, by group."""
        wanted = [one for one in self.sent.values() if one.ok and one.kind != Kind.ROLLED_BACK]
        missing = {group: [one for one in wanted if one.body not in seen] for group, seen in self._seen.items()}
        return {group: lost for group, lost in missing.items() if lost}

    def faults(self) -> list[str]:
        """Violations among the received messages. A message that no producer reports as sent is unknown."""
        found = []
        first_acked: dict[tuple[str, str], int] = {}
        for acked in self.acked:
            key = acked.group, acked.body
            first_acked[key] = min(acked.at_ms, first_acked.get(key, acked.at_ms))
        for got in self.got:
            sent = self.sent.get(got.body)
            if sent is None:
                found.append(f"{got.body} came, and was never sent")
            elif got.at_ms < sent.due_ms:
                found.append(f"{got.body} came {sent.due_ms - got.at_ms} ms early")
            elif sent.kind == Kind.ROLLED_BACK or (sent.kind in DECIDED and not sent.ok):
                found.append(f"{got.body} came, and was rolled back")
            acked_ms = first_acked.get((got.group, got.body), got.at_ms)
            if got.at_ms > acked_ms:
                after = f"{got.at_ms - acked_ms} ms after it was acknowledged"
                found.append(f"{got.body} came to {got.group} again, attempt {got.attempt}, {after}")
        return found

    def figures(self) -> dict[str, Any]:
        """To be printed."""
        kinds = Counter(one.kind.value for one in self.sent.values() if one.ok)
        late_ms = sorted(
            got.at_ms - self.sent[got.body].due_ms
            for got in self.got
            if got.attempt == 1 and got.body in self.sent and self.sent[got.body].due_ms
        )
        again = {group: sum(one.group == group for one in self.got) - len(self._seen[group]) for group in self.groups}
        return {
            "sent": dict(kinds),
            "not known to be sent": sum(not one.ok for one in self.sent.values()),
            "came again, never acknowledged": again,
            "first came so long after it was due: p50, p99, max ms": [
                late_ms[int((len(late_ms) - 1) * part)] for part in (0.5, 0.99, 1.0) if late_ms
            ],
        }
