"""`config/duetimeTopics`: topics that are not in topics.json yet, a line each.

    5f3a01c2 ["orders",8]
    CRC-32 of all behind the blank, in hex; then JSON: name, queue count

The file only grows, until all of it is in topics.json and it begins anew: a new topic costs its
own line, not a file of all topics. A line stands for itself. One that does not match its CRC counts
for nothing: a write that was never answered has left it, or damage.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

FILE = "duetimeTopics"


def encode(counts: Mapping[str, int]) -> bytes:
    """Lines; an empty one in front ends what a torn write may have left."""
    return b"\n" + b"".join(_line(name, count) for name, count in counts.items())


def _line(name: str, count: int) -> bytes:
    text = json.dumps([name, count], separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(data: bytes) -> tuple[dict[str, int], int]:
    """The counts, of several of one topic the highest; and how many lines are damaged."""
    counts: dict[str, int] = {}
    damaged = 0
    for line in filter(None, data.split(b"\n")):
        crc, _, text = line.partition(b" ")
        if crc != b"%08x" % zlib.crc32(text):
            damaged += 1
            continue
        name, count = json.loads(text)
        add(counts, {name: count})
    return counts, damaged


def add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """A topic never loses queues: the highest count of several is the one in force."""
    for name, count in more.items():
        counts[name] = max(counts.get(name, 0), count)


def read(directory: Path) -> tuple[dict[str, int], int]:
    """Of `config/`: as `decode`, of nothing where there is no file."""
    try:
        return decode((directory / FILE).read_bytes())
    except FileNotFoundError:
        return {}, 0
