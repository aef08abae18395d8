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

from tests.seeds import seed

PROJECT = Path(__file__).resolve().parents[2]
NAMES = ("rmq-4.9.8-clean", "rmq-4.9.8-killed", "rmq-5.3.3-clean", "rmq-5.3.3-killed")

# Offsets of groups that hold messages received by POP: the first one not acknowledged. The broker has the next new one.
POP_OFFSETS = {"DkPop@Dk_g_pop": {"0": 0, "1": 10}}


def params(part: str = "", *, count: int = 2) -> list[Any]:
    """Names with this part, for a test's parameters.

    The gate has one of each release, one stopped and one killed, or one of these two (`count`), by the seed; the others
    are proofs.
    """
    chosen = ["rmq-4.9.8-clean", "rmq-5.3.3-killed"] if seed() % 2 else ["rmq-4.9.8-killed", "rmq-5.3.3-clean"]
    if count == 1:
        chosen = [chosen[seed() // 2 % 2]]
    return [pytest.param(name, marks=[] if name in chosen else [pytest.mark.proof]) for name in NAMES if part in name]


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


def pending_timers(name: str, *, has_receives: bool = False) -> list[dict[str, Any]]:
    """Units of the timers that a 5.x broker would still deliver: those of the wheel's slots, without marks and
    cancelled units; none of a 4.9 broker. `has_receives`: also its own ones for messages received by POP.
    """
    known = {unit["physicalOffset"]: unit for unit in units(name)}
    slots = summary(name).get("timer", {}).get("slots", [])
    in_wheel = [(known[unit["physicalOffset"]], unit["magic"]) for slot in slots for unit in slot["units"]]
    recalled = {unit["properties"]["TIMER_DEL_UNIQKEY"] for unit, magic in in_wheel if magic & 4}
    return [
        unit
        for unit, magic in in_wheel
        if not magic & 4
        and f"{unit['properties']['REAL_TOPIC']}+{unit['uniqKey']}" not in recalled
        and (has_receives or not unit["properties"]["REAL_TOPIC"].startswith("rmq_sys_REVIVE_LOG_"))
    ]


def code(unit: dict[str, Any]) -> int:
    """The tagsCode that DueTime gives a unit of the manifest: a timer has its due time, as its sender asked for it to
    the ms and the broker to the second."""
    if unit["topic"] != "rmq_sys_wheel_timer":
        return int(unit["tagsCode"])
    properties, stored_at_ms = unit["properties"], unit["storeTimestamp"]
    out = int(properties["TIMER_OUT_MS"])
    if "TIMER_DELAY_SEC" in properties:
        asked = stored_at_ms + 1_000 * int(properties["TIMER_DELAY_SEC"])
    elif "TIMER_DELAY_MS" in properties:
        asked = stored_at_ms + int(properties["TIMER_DELAY_MS"])
    else:
        asked = int(properties["TIMER_DELIVER_MS"])
    return min(max(asked, out + 1), out + 1_000)
