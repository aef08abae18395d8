"""The long run: `python -m tests.fuzz --count 10000000`; findings are kept in tests/fuzz/corpus, for every test run.

Inputs follow coverage where atheris is installed, else mutations alone. The cost of an input sets its target's share.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from math import ceil
from pathlib import Path

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.judging import Finding, judge_all
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target


def shares(count: int) -> dict[str, int]:
    """The inputs of each target."""
    whole = sum(1 / target.cost for target in TARGETS.values())
    return {name: ceil(count / whole / target.cost) for name, target in TARGETS.items()}


def by_mutations(target: Target, runs: int, seed: int) -> str:
    """Why it failed; empty: it did not."""
    try:
        judge_all(target, Mutator(target, seed).inputs(runs))
    except Finding as finding:
        return f"{finding}\n  kept as {finding.keep()}"
    return ""


def by_coverage(target: Target, runs: int, seed: int, folder: Path) -> str:
    """As `by_mutations`."""
    command = [sys.executable, "-m", "tests.fuzz.guided", target.name, str(runs), str(seed), str(folder / target.name)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return "" if done.returncode == 0 else done.stderr[-4_000:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--count", type=int, default=10_000_000, help="inputs of all targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="what was learned of each target")
    parser.add_argument("--mutations", action="store_true", help="without coverage")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="these alone")
    given = parser.parse_args()
    guided = find_spec("atheris") is not None and not given.mutations
    print(
        "inputs by coverage" if guided else "inputs by mutations: atheris is not installed, or not wanted", flush=True
    )
    failed, began = 0, time.monotonic()
    chosen = {name: runs for name, runs in shares(given.count).items() if not given.targets or name in given.targets}

    def run(name: str) -> tuple[str, float, str]:
        target, runs, started = TARGETS[name], chosen[name], time.monotonic()
        why = by_coverage(target, runs, given.seed, given.folder) if guided else by_mutations(target, runs, given.seed)
        return name, time.monotonic() - started, why

    with ThreadPoolExecutor(given.workers if guided else 1) as threads:
        for name, took_s, why in threads.map(run, chosen):
            print(f"{name:36} {chosen[name]:10,} inputs {took_s:8.0f} s  {why or 'nothing found'}", flush=True)
            failed += bool(why)
    print(
        f"{sum(chosen.values()):,} inputs, {time.monotonic() - began:.0f} s, seed {given.seed}; {failed} targets failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
