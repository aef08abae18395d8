"""Store directories that real RocketMQ brokers wrote: where they are, and how to unpack them."""

import gzip
import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
NAMES = ("rmq-4.9.8-clean", "rmq-4.9.8-killed", "rmq-5.3.3-clean", "rmq-5.3.3-killed")


def golden_dir() -> Path:
    """The directory of the archives, DUETIME_GOLDEN_DIR; skips the test where there is none."""
    found = Path(os.environ.get("DUETIME_GOLDEN_DIR") or PROJECT.parent / "shared" / "golden")
    if not found.is_dir():
        pytest.skip(f"no golden store directories at {found}; DUETIME_GOLDEN_DIR names their place")
    return found


def unpack(name: str, into: Path) -> Path:
    """The store directory, unpacked sparse."""
    subprocess.run(["tar", "-xzSf", str(golden_dir() / f"{name}.tar.gz"), "-C", str(into)], check=True)
    return into / name


@cache
def summary(name: str) -> dict[str, Any]:
    return json.loads((golden_dir() / f"{name}.summary.json").read_text())


def units(name: str) -> Iterator[dict[str, Any]]:
    """One dictionary per consume queue unit, by topic, queue and offset."""
    with gzip.open(golden_dir() / f"{name}.units.jsonl.gz", "rt") as lines:
        yield from map(json.loads, lines)


def acknowledged(name: str) -> set[str]:
    """The ids that the producer saw acknowledged before the kill."""
    return set(gzip.decompress((golden_dir() / f"{name}.acked.txt.gz").read_bytes()).decode().split())
