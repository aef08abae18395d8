"""Dead letters by filter and by cause. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from duetime.v1 import consumer_pb2

from duetime_console.moments import moment_ms

# Parts that differ between messages with the same error: numbers, addresses, ids.
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b[0-9A-F]{16,}\b|\d+")
_PYTHON_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_JAVA_FRAME = re.compile(r"^\s*at ([\w.$<>]+)\(([^)]*)\)", re.MULTILINE)
_ERROR_CHARS_MAX = 200

# Fields of a form, in order.
FILTER_FIELDS = ("error", "topic", "tag", "key", "ids", "from", "to")


def filter_of(group: str, form: Mapping[str, Any]) -> consumer_pb2.DeadLetterFilter:
    """The filter in a form or an address. Raises: InvalidMoment."""
    fields = {name: str(form.get(name, "")).strip() for name in FILTER_FIELDS}
    return consumer_pb2.DeadLetterFilter(
        group=group,
        from_ms=moment_ms(fields["from"]) if fields["from"] else 0,
        to_ms=moment_ms(fields["to"]) if fields["to"] else 0,
        error=fields["error"],
        tag=fields["tag"],
        key=fields["key"],
        topic=fields["topic"],
        ids=fields["ids"].replace(",", " ").split(),
    )


def error_of(letter: consumer_pb2.DeadLetter) -> tuple[str, str]:
    """Type and message of the last attempt's error; empty if unknown."""
    if not letter.attempts:
        return "", ""
    error = letter.attempts[-1].error
    return error.type, error.message


def handler_of(letter: consumer_pb2.DeadLetter) -> str:
    """The outermost function outside the SDK in the trace of the last attempt's error; empty: there is none."""
    trace = letter.attempts[-1].error.trace if letter.attempts else ""
    for path, line, name in _PYTHON_FRAME.findall(trace):
        if "/duetime/client/" not in path:
            return f"{name} ({path.rpartition('/')[2]}:{line})"
    frame = _JAVA_FRAME.search(trace)
    return f"{frame[1]} ({frame[2]})" if frame else ""


@dataclass(slots=True)
class Cause:
    """Dead letters with the same error, numbers and ids aside, in the same handler."""

    error: str
    handler: str
    # Selects them, as a filter's `error`; it may match others, so a dry run shows the number.
    needle: str
    count: int = 0
    first_at_ms: int = 0
    last_at_ms: int = 0
    redriven_count: int = 0
    topics: set[str] = field(default_factory=set)

    def add(self, letter: consumer_pb2.DeadLetter) -> None:
        at_ms = letter.dead_at_ms
        self.first_at_ms = min(self.first_at_ms, at_ms) if self.count else at_ms
        self.last_at_ms = max(self.last_at_ms, at_ms)
        self.count += 1
        self.redriven_count += letter.redriven_count > 0
        self.topics.add(letter.message.topic)


def causes_of(letters: Iterable[consumer_pb2.DeadLetter]) -> list[Cause]:
    """Causes, the most frequent first."""
    found: dict[tuple[str, str], Cause] = {}
    for letter in letters:
        kind, message = error_of(letter)
        error = f"{kind}: {message}" if message else kind
        # The type is the same in all; its digits do not vary.
        alike = kind + _VARIABLE.sub("#", error[len(kind) :])[:_ERROR_CHARS_MAX]
        handler = handler_of(letter)
        variable = _VARIABLE.search(error, len(kind))
        needle = error[: variable.start() if variable else _ERROR_CHARS_MAX].rstrip()
        cause = found.setdefault((alike, handler), Cause(alike, handler, needle))
        cause.add(letter)
    return sorted(found.values(), key=lambda cause: (-cause.count, cause.error, cause.handler))
