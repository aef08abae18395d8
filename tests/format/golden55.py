"""Store directories that a real RocketMQ 5.5.1 wrote, one for each of its engines, with a line for each message.

Those in `brokers/` have several engines at once, timers that the engine rolled on, or end with a kill; the settings are
in the line `end`, and q-540-all is of a broker 5.4.0. A client wrote them with the same kinds of lines as the others:
topics of each type, levels and timers, transactions, retries, priorities, lite topics, a receive by POP.
"""

import gzip
import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.format.golden import PROJECT

NAMES = ("a-default", "b-timer-rocksdb", "c-cq-rocksdb", "d-trans-rocksdb", "f-lite", "g-config-v2")
# All of these have their timers in RocksDB, and but for the last one queues, offsets, transactions, index and POP.
OWN_NAMES = ("n-all-rolled-killed", "k-single", "l-v2-lmq-killed", "q-540-all", "h-timer-killed")
_OWN = Path(__file__).parent / "brokers"
Line = dict[str, Any]


def chosen(*names: str) -> list[Any]:
    """Names for a test's parameters, each once: the gate has the first, the others are proofs."""
    found = enumerate(dict.fromkeys(names))
    return [pytest.param(name, marks=[pytest.mark.proof] if number else []) for number, name in found]


def golden55_dir() -> Path:
    """The directory of the archives, DUETIME_GOLDEN55_DIR; skips the test where there is none."""
    found = Path(os.environ.get("DUETIME_GOLDEN55_DIR") or PROJECT.parent / "shared" / "golden55")
    if not found.is_dir():
        pytest.skip(f"no golden store directories at {found}; DUETIME_GOLDEN55_DIR names their place")
    return found


def unpack(name: str, into: Path) -> Path:
    """The store directory, unpacked."""
    folder = _OWN if name in OWN_NAMES else golden55_dir()
    subprocess.run(["tar", "-xzf", str(folder / f"{name}.tar.gz"), "-C", str(into)], check=True)
    return into / name


@cache
def manifest(name: str) -> tuple[Line, ...]:
    """One line a topic, message, group or offset: `kind`, `topic`, `id`, `key`, `at` and `due` in ms, `state`."""
    if name in OWN_NAMES:
        text = gzip.decompress((_OWN / f"{name}.jsonl.gz").read_bytes()).decode()
    else:
        text = (golden55_dir() / f"{name}.jsonl").read_text()
    return tuple(map(json.loads, text.splitlines()))


def lines(name: str, *kinds: str) -> list[Line]:
    """The lines of these kinds."""
    return [line for line in manifest(name) if line["kind"] in kinds]


def ended_at_ms(name: str) -> int:
    """The moment at which the broker stopped: a fake clock starts there."""
    return int(lines(name, "end")[0]["at"])


def prefix(name: str) -> str:
    """The beginning of the directory's topics and groups."""
    return f"D{name[0]}_"


# State of a message at the broker's end: readable once; once, when it is due; never.
READABLE, PENDING, NEVER = "readable", "pending", "never"
_STATES = {
    **dict.fromkeys(("stored", "fired", "committed", "seen"), READABLE),
    **dict.fromkeys(("half", "rolled back", "recalled"), NEVER),
    "pending": PENDING,
}
# A level's due time wins over a timer's: this one had fired.
_READABLE_KINDS = frozenset(("both", "fail"))


def states(name: str) -> dict[tuple[str, str], tuple[str, int]]:
    """State and due time (0: at once) of each message, by topic and id; a later line about it counts more."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for line in manifest(name):
        state = READABLE if line["kind"] in _READABLE_KINDS else _STATES.get(line.get("state") or "", "")
        if state and line.get("id") and line["kind"] != "offset":
            found[line["topic"], line["id"]] = state, line["due"]
    for line in lines(name, "fail"):
        # Copies for its groups.
        if line["state"].startswith("retry"):
            found[f"%RETRY%{prefix(name)}g_retry", line["id"]] = PENDING, line["at"] + 30 * 60_000
        elif line["state"].startswith("dead letter"):
            for mark in ("RETRY", "DLQ"):
                found[f"%{mark}%{prefix(name)}g_dlq", line["id"]] = READABLE, 0
    return found
