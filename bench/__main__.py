"""Runs the benchmark: `python -m bench [--quick] [--pending N]`."""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import measure, report
from bench.echo import echo_server
from bench.machine import Meanwhile, core_count
from bench.processes import Processes

LAST = Path(__file__).with_name("last.json")


def main() -> int:
    arguments = _parser().parse_args()
    plan = replace(measure.QUICK if arguments.quick else measure.PLAN, queues=arguments.queues)
    # Progress goes to standard error, so that the tables can be piped.
    progress, tables = Console(stderr=True), Console(width=None if sys.stdout.isatty() else 110)
    try:
        with tempfile.TemporaryDirectory(prefix="duetime-bench-", dir=arguments.directory) as root:
            result = run(plan, Path(root), arguments.pending, progress)
    except measure.WrongError as error:
        print(f"WRONG: {error}", file=sys.stderr)
        return 1
    LAST.write_text(json.dumps(result, indent=2) + "\n")
    report.show(result, tables)
    return 0


def run(plan: measure.Plan, root: Path, pending: int, progress: Console) -> dict[str, Any]:
    """All measurements, as bench/last.json has them."""
    started, meanwhile = time.monotonic(), Meanwhile()
    result: dict[str, Any] = {"cores": core_count(), "queues": plan.queues}
    with echo_server() as echo:
        progress.print("starting a cluster for each flush mode")
        clusters = measure.start_all(root, plan)
        try:
            _measure(plan, echo, clusters, pending, result, progress)
        finally:
            measure.stop_all(clusters)
    return result | {"processor_shares": meanwhile.shares(), "took_s": time.monotonic() - started}


def _measure(
    plan: measure.Plan,
    echo: tuple[str, int],
    clusters: dict[str, Processes],
    pending: int,
    result: dict[str, Any],
    progress: Console,
) -> None:
    progress.print(f"accepting, {plan.rounds} rounds in turns")
    result["accepted"] = measure.accepting(plan, echo, clusters)
    result["delayed"], result["lateness"], result["memory"] = {}, {}, {}
    for mode, cluster in clusters.items():
        progress.print(f"the delayed path, {mode}")
        result["delayed"][mode] = measure.delayed(plan, echo[0], cluster, mode)
        progress.print(f"lateness, {mode}")
        result["lateness"][mode] = {str(rate): measure.lateness(plan, cluster, mode, rate) for rate in measure.RATES}
        result["memory"][mode] = measure.memory(cluster)
    if pending:
        progress.print(f"{pending:,} pending")
        result["pending"] = measure.pending(plan, clusters["sync"], pending)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures against a bare gRPC echo.")
    parser.add_argument("--quick", action="store_true", help="one short round, under a minute")
    parser.add_argument("--pending", type=int, default=0, metavar="N", help="also measure with N messages pending")
    queues = "queues of each topic, default %(default)s; a topic that makes itself has 4"
    parser.add_argument("--queues", type=int, default=measure.PLAN.queues, metavar="N", help=queues)
    parser.add_argument(
        "--directory", default="/var/tmp", help="where the data lie meanwhile; on a disk, not in memory"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
