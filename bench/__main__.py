"""Runs the benchmark: `python -m bench [--quick] [--peers all] [--pending N]`, or draws earlier runs: `--history`."""

import argparse
import contextlib
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import any_time, contest, history, lone, measure, report, rocketmq, schedules, webhooks
from bench.echo import echo_server
from bench.figures import ONE_PROCESS, STOLEN_SHARE_MAX
from bench.machine import Meanwhile, core_count, machine
from bench.memory import CachedHoles
from bench.peers import Missing, Peer
from bench.peers.duetime import DueTime
from bench.peers.postgres import Postgres

LAST = Path(__file__).with_name("last.json")
HISTORY = Path(__file__).with_name("history.svg")
# Module and class of each; all but the first are for `--peers all` and `--peers tasks`.
PEERS = {
    "postgres": ("bench.peers.postgres", "Postgres"),
    "beanstalkd": ("bench.peers.beanstalkd", "Beanstalkd"),
    "redis": ("bench.peers.redis", "Redis"),
    "rabbitmq": ("bench.peers.rabbitmq", "RabbitMQ"),
    "app": ("bench.peers.tasks", "DueTimeTasks"),
    "celery": ("bench.peers.tasks", "Celery"),
    "dramatiq": ("bench.peers.tasks", "Dramatiq"),
    "taskiq": ("bench.peers.tasks", "Taskiq"),
}
TASKS = ["app", "celery", "dramatiq", "taskiq"]
GROUPS = {"all": [name for name in PEERS if name not in TASKS], "tasks": TASKS, "none": []}


@dataclass(frozen=True)
class Extras:
    """Further measurements with their numbers of messages; 0: skipped."""

    burst: int
    retries: int
    pending: int


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.history:
        return show_history(arguments.history)
    plan = contest.QUICK if arguments.quick else contest.PLAN
    plan = replace(plan, queues=arguments.queues, rounds=arguments.rounds or plan.rounds)
    plan = replace(plan, lateness_seconds=arguments.lateness or plan.lateness_seconds)
    # Each once, in the order of the table.
    wanted = {name for given in arguments.peers for name in GROUPS.get(given, [given])}
    names = [name for name in PEERS if name in wanted]
    # Progress goes to standard error, so that the tables can be piped.
    progress, tables = Console(stderr=True), Console(width=None if sys.stdout.isatty() else 130)
    try:
        with tempfile.TemporaryDirectory(prefix="duetime-bench-", dir=arguments.directory) as root:
            # The directory holds those of servers that run as other users.
            Path(root).chmod(0o711)
            extras = Extras(arguments.burst, arguments.retries, arguments.pending)
            result = run(plan, Path(root), names, extras, progress)
    except contest.WrongError as error:
        print(f"WRONG: {error}", file=sys.stderr)
        return 1
    LAST.write_text(json.dumps(result, indent=2) + "\n")
    report.show(result, tables)
    if arguments.pictures:
        # matplotlib is in the bench's own extra.
        from bench.pictures import draw

        draw(result)
    return 0


def show_history(paths: list[Path]) -> int:
    """Shows and draws saved runs: `cp bench/last.json SOMEWHERE`."""
    try:
        runs = history.read(paths)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    report.draw_tables([history.table_of(runs)], Console(width=None if sys.stdout.isatty() else 130))
    # matplotlib is in the bench's own extra.
    from bench.pictures import draw_history

    draw_history(runs, HISTORY)
    print(f"drawn in {HISTORY}", file=sys.stderr)
    return 0


def run(plan: contest.Plan, root: Path, names: list[str], extras: Extras, progress: Console) -> dict[str, Any]:
    """All measurements, in the form of bench/last.json."""
    started, meanwhile = time.monotonic(), Meanwhile()
    result: dict[str, Any] = {"cores": core_count(), "machine": machine(), "plan": vars(plan), "missing": {}}
    with echo_server() as echo, _started(root, plan, names, result, progress) as (clusters, peers):
        sync = clusters[0]
        rounds = contest.Contest(plan, echo, *clusters, peers, CachedHoles(root), progress.print)
        result["rounds"] = rounds.run()
        result["lone"] = _lone(plan, clusters, peers, progress)
        progress.print("cancels")
        result["any_time"] = {"cancels": any_time.all_cancels(sync)}
        if plan.schedules:
            progress.print(f"{plan.schedules:,} schedules")
            result["any_time"]["schedules"] = schedules.measured(
                root / "schedules", plan.schedules, plan.lateness_seconds
            )
        progress.print("RocketMQ's calls")
        result["rocketmq"] = rocketmq.compare(sync, rocketmq.TURNS * plan.rounds, plan.seconds, plan.lateness_seconds)
        result |= {"cpu_us": rounds.cpu_us, "faults": rounds.faults, "memory": measure.memory(sync.cluster)}
        if plan.webhooks:
            progress.print(f"{plan.webhooks:,} messages to webhooks")
            result["webhooks"] = webhooks.measured(root / "webhooks", plan.webhooks)
        if extras.burst:
            progress.print(f"{extras.burst:,} due at once on another lane")
            result["beside_burst"] = measure.beside_burst(sync, extras.burst, plan.lateness_seconds)
        if extras.retries:
            progress.print(f"{extras.retries:,} retries pending")
            result["beside_retries"] = measure.beside_retries(sync, extras.retries, plan.lateness_seconds)
        if extras.pending:
            progress.print(f"{extras.pending:,} pending")
            result["pending"] = measure.pending(sync, extras.pending, plan.sustained_seconds, plan.lateness_seconds)
    for number, one in enumerate(result["rounds"], 1):
        if one["stolen"] > STOLEN_SHARE_MAX:
            progress.print(f"round {number}: {one['stolen']:.0%} of the processor time was stolen", style="red")
    return result | {"processor_shares": meanwhile.shares(), "took_s": time.monotonic() - started}


def _lone(plan: contest.Plan, clusters: list[DueTime], peers: list[Peer], progress: Console) -> dict[str, Any]:
    """One message at a time, of DueTime and PostgreSQL."""
    sync, _, _, together = clusters
    measured = {"duetime": sync, ONE_PROCESS: together} | {p.name: p for p in peers if isinstance(p, Postgres)}
    systems = [lone.system_of(name, peer, plan.seconds) for name, peer in measured.items()]
    return lone.compare(systems, plan.rounds, progress.print)


@contextlib.contextmanager
def _started(
    root: Path, plan: contest.Plan, names: list[str], result: dict[str, Any], progress: Console
) -> Iterator[tuple[list[DueTime], list[Peer]]]:
    """Starts a cluster for each flush mode, one without ids, one in one process, and each installed peer; all are idle
    until measured."""
    clusters, peers = [DueTime(mode, plan.queues) for mode in ("sync", "async")], []
    clusters.append(DueTime("sync", plan.queues, settings={"DUETIME_STORE_RECENT_IDS_COUNT": "0"}))
    clusters.append(DueTime("sync", plan.queues, together=True))
    with contextlib.ExitStack() as running:
        for name, cluster in zip(("sync", "async", "without-ids", "together"), clusters, strict=True):
            progress.print(f"starting DueTime, {name}")
            running.callback(cluster.stop)
            cluster.start(root / name)
            cluster.make_topic("accepted")
        for name in names:
            try:
                module, kind = PEERS[name]
                peer: Peer = getattr(importlib.import_module(module), kind)()
                progress.print(f"starting {peer.title}")
                running.callback(peer.stop)
                peer.start(root / name)
                peer.make_topic("accepted")
                peers.append(peer)
            except (Missing, ImportError, RuntimeError) as error:
                progress.print(f"{name} is skipped: {error}", style="yellow")
                result["missing"][name] = str(error)
        result["systems"] = {peer.name: {"title": peer.title, "version": peer.version} for peer in peers}
        yield clusters, peers


def _parser() -> argparse.ArgumentParser:
    description = "Measures DueTime, queues beside it and a bare gRPC echo in turns."
    parser = argparse.ArgumentParser(prog="python -m bench", description=description)
    parser.add_argument("--quick", action="store_true", help="one short round, a minute")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds, default 3, with --quick 1")
    lateness = "seconds of lateness at each rate, default 30, with --quick 2"
    parser.add_argument("--lateness", type=float, default=0, metavar="SECONDS", help=lateness)
    parser.add_argument(
        "--peers",
        nargs="*",
        default=["postgres"],
        choices=[*PEERS, *GROUPS],
        help="systems measured beside it, default postgres; all: and other servers, tasks: libraries of task queues; "
        "missing ones are named and skipped",
    )
    parser.add_argument("--pending", type=int, default=0, metavar="N", help="also measure with N messages pending")
    burst = "also measure lateness on one lane while another has N messages due at once"
    parser.add_argument("--burst", type=int, default=0, metavar="N", help=burst)
    retries = "also measure lateness while a group has N retries pending"
    parser.add_argument("--retries", type=int, default=0, metavar="N", help=retries)
    queues = "queues of each topic, default %(default)s; automatic topics have 4"
    parser.add_argument("--queues", type=int, default=contest.PLAN.queues, metavar="N", help=queues)
    kept = "measure nothing: show and draw (bench/history.svg) the figures of saved runs, oldest first"
    parser.add_argument("--history", type=Path, nargs="+", metavar="FILE", help=kept)
    parser.add_argument("--pictures", action="store_true", help="also draw docs/pictures (needs matplotlib)")
    parser.add_argument("--directory", default="/var/tmp", help="directory of the data; on a disk, not in memory")
    return parser


if __name__ == "__main__":
    sys.exit(main())
