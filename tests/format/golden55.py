"""Store directories that a real RocketMQ 5.5.1 wrote, one for each of its engines, with a line for each message."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.format.golden import PROJECT

NAMES = ("a-default", "b-timer-rocksdb", "c-cq-rocksdb", "d-trans-rocksdb", "f-lite", "g-config-v2")
Line = dict[str, Any]


def golden55_dir() -> Path:
    """The directory of the archives, DUETIME_GOLDEN55_DIR; skips the test where there is none."""
    found = Path(os.environ.get("DUETIME_GOLDEN55_DIR") or PROJECT.parent / "shared" / "golden55")
    if not found.is_dir():
        pytest.skip(f"no golden store directories at {found}; DUETIME_GOLDEN55_DIR names their place")
    return found


def unpack(name: str, into: Path) -> Path:
    """The store directory, unpacked."""
    subprocess.run(["tar", "-xzf", str(golden55_dir() / f"{name}.tar.gz"), "-C", str(into)], check=True)
    return into / name


@cache
def manifest(name: str) -> tuple[Line, ...]:
    """One line a topic, message, group or offset: `kind`, `topic`, `id`, `key`, `at` and `due` in ms, `state`."""
    return tuple(map(json.loads, (golden55_dir() / f"{name}.jsonl").read_text().splitlines()))


def lines(name: str, *kinds: str) -> list[Line]:
    """The lines of these kinds."""
    return [line for line in manifest(name) if line["kind"] in kinds]


def ended_at_ms(name: str) -> int:
    """The moment at which the broker stopped: a fake clock starts there."""
    return int(lines(name, "end")[0]["at"])
