"""`config/duetimeTopics`: topics missing in topics.json, a line each.

    5f3a01c2 ["orders",8]
    0b7c88d1 {"orders":"FIFO"}
    CRC-32 of all after the blank, in hex; then JSON: name, queue count; or its message type, by RocketMQ's name

The file only grows, until its content is in topics.json and it is started again: a new topic costs one line, not a file
with all topics. Lines are independent. A line with a wrong CRC is ignored: it comes from an unacknowledged write, or
from damage. A type has a line of its own: release 0.1 skips it, and reads the others.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

FILE = "duetimeTopics"


class TopicLines(NamedTuple):
    """The content of a file of lines."""

    # The highest count of each topic.
    counts: dict[str, int]
    # Number of skipped lines.
    damaged: int
    # Message types by topic; the last one counts.
    types: dict[str, str]


def encode(counts: Mapping[str, int], types: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Lines of topics, and of their types, if any; an empty line in front ends the remains of a torn write."""
    lines = [b""]
    for name, count in counts.items():
        lines.append(_line([name, count]))
        if name in types:
            lines.append(_line({name: types[name]}))
    return b"\n".join([*lines, b""])


def _line(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x %s" % (zlib.crc32(text), text)


def decode(data: bytes) -> TopicLines:
    """Reads lines."""
    counts: dict[str, int] = {}
    types: dict[str, str] = {}
    damaged = 0
    for line in filter(None, data.split(b"\n")):
        crc, _, text = line.partition(b" ")
        if crc != b"%08x" % zlib.crc32(text):
            damaged += 1
            continue
        match _value(text):
            case [str(name), int(count)] if type(count) is int:
                add(counts, {name: count})
            case dict(found) if len(found) == 1 and all(type(one) is str for one in found.values()):
                types |= found
            case _:
                damaged += 1
    return TopicLines(counts, damaged, types)


def _value(text: bytes) -> Any:
    """A line's JSON; None: invalid, though its CRC is right."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """Merges counts: a topic never loses queues, so the highest count applies."""
    for name, count in more.items():
        counts[name] = max(counts.get(name, 0), count)


def read(directory: Path) -> TopicLines:
    """Reads the file in `config/`; empty if it does not exist."""
    try:
        return decode((directory / FILE).read_bytes())
    except FileNotFoundError:
        return TopicLines({}, 0, {})
