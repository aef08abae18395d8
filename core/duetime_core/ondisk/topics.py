"""`config/duetimeTopics`: topics that are not in topics.json yet, a line each.

    5f3a01c2 ["orders",8]
    CRC-32 of all after the blank, in hex; then JSON: name, queue count

The file only grows, until all of it is in topics.json and it begins anew: a new topic costs its own line, not a file
of all topics. A line stands for itself. One that does not match its CRC is ignored: a write that was never answered has
left it, or damage.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

FILE = "duetimeTopics"


def encode(counts: Mapping[str, int]) -> bytes:
    """Lines of topics; an empty line in front ends the remains of a torn write."""
    return b"\n" + b"".join(_line(name, count) for name, count in counts.items())


def _line(name: str, count: int) -> bytes:
    text = json.dumps([name, count], separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(data: bytes) -> tuple[dict[str, int], int]:
    """The counts, the highest of several for one topic; and the number of damaged lines."""
    counts: dict[str, int] = {}
    damaged = 0
    for line in filter(None, data.split(b"\n")):
        crc, _, text = line.partition(b" ")
        if crc != b"%08x" % zlib.crc32(text):
            damaged += 1
            continue
        topic = _topic(text)
        damaged += topic is None
        add(counts, dict([topic] if topic else []))
    return counts, damaged


def _topic(text: bytes) -> tuple[str, int] | None:
    """Name and count of a line's JSON; None: it is something else, though its CRC is right."""
    try:
        name, count = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return (name, count) if type(name) is str and type(count) is int else None


def add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """A topic never loses queues: the highest count of several is the one in force."""
    for name, count in more.items():
        counts[name] = max(counts.get(name, 0), count)


def read(directory: Path) -> tuple[dict[str, int], int]:
    """Reads the file in `config/`: as `decode`; empty where there is no file."""
    try:
        return decode((directory / FILE).read_bytes())
    except FileNotFoundError:
        return {}, 0
