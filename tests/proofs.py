"""`make proof` and `make proofs`: long tests outside the gate, and the record of their last results.

Each run of a proof target appends one line to proofs.json:

    {"target": "races", "commit": "d05c48c…", "changed": false, "at": "2026-11-28T05:10:00+00:00", "seconds": 412,
     "passed": true, "seed": 3021, "figures": ["100000 pairs in 371 s, 0 kills: …"]}

`changed`: whether tracked files other than the record differed from the commit. `figures`: the summary of pytest, and
the last lines of programs that are no tests.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "proofs.json"
ENGINE = ("format", "core", "shard", "services")
PRODUCT = (*ENGINE, "sdk")
FIGURES_MAX = 8
FIGURE_CHARACTERS_MAX = 400
# Parameters of the Makefile's targets that change the meaning of a run.
PARAMETERS = "CLIENT COUNT HOURS KILLS MESSAGES MINUTES PAIRS POINTS RUNS TARGETS TXS".split()
# Results beside a pytest summary: lines with a number, printed by the test or program itself.
SUMMARY = re.compile(r"=+ (?P<counts>(?:\d+ \w+(?:, )?)+.*?) in [\d.:hms ()]+=+$")


@dataclass(frozen=True)
class Proof:
    """One target of the Makefile."""

    # Folders whose changes make its last result old.
    folders: tuple[str, ...]
    # A part of `make proof`; others need a host that most people lack.
    everywhere: bool = True


PROOFS = {
    "kills": Proof((*PRODUCT, "tests/crash", "bench/processes.py")),
    "transactions": Proof((*PRODUCT, "tests/crash")),
    "races": Proof((*PRODUCT, "tests/crash")),
    "torture": Proof(("format", "core", "shard", "services/store", "tests/crash", "tests/store")),
    "lives": Proof(("format", "core", "shard", "services/store", "tests/store")),
    "copies": Proof(
        ("format", "services/store/duetime_store/copies", "services/store/duetime_store/log", "native", "tests/copies"),
        False,
    ),
    "copies-kills": Proof(
        ("format", "core", "shard", "services/store", "native", "tests/copies", "tests/crash"), False
    ),
    "copies-cuts": Proof(("format", "core", "shard", "services/store", "native", "tests/copies", "tests/crash"), False),
    "explore": Proof((*PRODUCT, "spark", "tests")),
    "fuzz": Proof((*PRODUCT, "spark", "tests/fuzz")),
    "sanitize": Proof((*ENGINE, "spark", "tests/fuzz")),
    "hostile": Proof((*ENGINE, "tests/hostile")),
    "proof-store": Proof(
        ("format", "core", "shard", "services/store", "services/scheduler", "services/retry", "tests/store")
    ),
    "proof-spark": Proof(("format", "shard/duetime_shard", "spark", "tests/spark")),
    "proof-rest": Proof((*PRODUCT, "console", "deploy", "docs", "examples", "bench", "tests")),
    "soak": Proof((*ENGINE, "tests/soak")),
    "console-soak": Proof(("console", "tests/console")),
    "clients": Proof(("services/producer_gw", "proto", "tests/clients", "tests/rocketmq")),
    "broker-test": Proof(("format", "core", "shard", "services/store", "tests/brokers", "tests/cluster/half_used.py")),
    "clients-kills": Proof((*ENGINE, "proto", "tests/crash", "tests/clients")),
    "upgrade-test": Proof((*PRODUCT, "proto", "tests/upgrade")),
    "compose-test": Proof((*PRODUCT, "console", "Dockerfile", "docker-compose.yml", "deploy", "tests/compose")),
    "k8s-test": Proof((*PRODUCT, "console", "Dockerfile", "deploy/k8s", "tests/kubernetes"), everywhere=False),
}


def git(*arguments: str) -> str:
    """The output of a git command. Raises CalledProcessError for an unknown commit, for instance."""
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout


# --- a run ----------------------------------------------------------------------------------------------------------


def figures_of(lines: Iterable[str]) -> list[str]:
    """Summaries of pytest; without one, the last lines."""
    kept = [line.strip() for line in lines if line.strip()]
    found = [match["counts"] for line in kept if (match := SUMMARY.search(line))]
    return [line[:FIGURE_CHARACTERS_MAX] for line in (found or kept)[-FIGURES_MAX:]]


def run(target: str, command: str) -> int:
    """Runs a target's command in the shell, shows its output, and appends its result to the record."""
    seed = int(os.environ.get("SEED") or os.environ.get("DUETIME_TEST_SEED") or random.SystemRandom().getrandbits(31))
    environment = os.environ | {"SEED": str(seed), "DUETIME_TEST_SEED": str(seed), "PYTHONUNBUFFERED": "1"}
    print(f"{target}: seed {seed}", flush=True)
    commit, changed = (
        git("rev-parse", "HEAD").strip(),
        bool(git("diff", "HEAD", "--name-only", "--", f":!{RECORD.name}")),
    )
    began_at, began_s = datetime.now(UTC), time.monotonic()
    with subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        lines = list(shown(process.stdout))
    result = {
        "target": target,
        "commit": commit,
        "changed": changed,
        "at": began_at.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began_s),
        "passed": process.returncode == 0,
        "seed": seed,
        "parameters": {name: os.environ[name] for name in PARAMETERS if os.environ.get(name)},
        "figures": figures_of(lines),
    }
    with RECORD.open("a") as record:
        record.write(json.dumps(result) + "\n")
    return process.returncode


def shown(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        print(line, end="", flush=True)
        yield line


# --- the record -----------------------------------------------------------------------------------------------------


def last_results(text: str) -> dict[str, dict[str, Any]]:
    """The last result of each target, from the lines of the record."""
    return {one["target"]: one for one in map(json.loads, text.splitlines())}


def changes_since(commit: str, folders: Iterable[str]) -> list[str] | None:
    """Files below the folders that differ from the commit; None if the repository lacks that commit."""
    try:
        return git("diff", "--name-only", commit, "--", *folders).splitlines()
    except subprocess.CalledProcessError:
        return None


def row(target: str, result: dict[str, Any] | None) -> dict[str, Any]:
    if result is None:
        return {"target": target, "result": "never run"}
    changes = changes_since(result["commit"], PROOFS[target].folders)
    return {
        "target": target,
        "result": "passed" if result["passed"] else "FAILED",
        "at": result["at"],
        "seconds": result["seconds"],
        "commit": result["commit"][:8] + ("+" if result["changed"] else ""),
        "changed_since": changes,
        "figures": result["figures"],
    }


def show(*, as_json: bool) -> None:
    """Prints one line per target: its last result, the commit, and the number of files changed since."""
    results = last_results(RECORD.read_text()) if RECORD.exists() else {}
    rows = [row(target, results.get(target)) for target in PROOFS]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'target':14} {'result':9} {'at (UTC)':16} {'minutes':>7} {'commit':9} changed since")
    for one in rows:
        if "at" not in one:
            print(f"{one['target']:14} {one['result']}")
            continue
        changes = one["changed_since"]
        since = "unknown: no such commit here" if changes is None else f"{len(changes)} files" if changes else "-"
        minutes = f"{one['seconds'] / 60:.1f}"
        print(f"{one['target']:14} {one['result']:9} {one['at'][:16]} {minutes:>7} {one['commit']:9} {since}")
        for figure in one["figures"]:
            print(f"{'':14} {figure}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run a target's command and record its result")
    runs.add_argument("target", choices=PROOFS)
    runs.add_argument("shell", help="the command")
    shows = commands.add_parser("show", help="the last result of each target")
    shows.add_argument("--json", action="store_true")
    commands.add_parser("list", help="the targets of `make proof`")
    given = parser.parse_args()
    if given.command == "run":
        return run(given.target, given.shell)
    if given.command == "list":
        print(*(name for name, proof in PROOFS.items() if proof.everywhere))
    else:
        show(as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
