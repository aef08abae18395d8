"""Schedules: the cost of an occurrence beside that of a plain message, and lateness beside many due in a minute.

    minute of costs      cron expressions at :00, intervals at :20, plain messages at :40, each at one instant
    minutes of lateness  an even one with all schedules due in it, an odd one with none; and so on

Schedules recur, so each is put once and measured in several turns. The figures are the medians of the turns.

`python -m bench.schedules [--count N]` adds them to the last run, bench/last.json.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from duetime import AsyncSchedules, Message, ScheduleDefinition

from bench import report
from bench.any_time import fill_instant
from bench.contest import Meter, WrongError, lateness
from bench.figures import PERCENTILES, RATES
from bench.measure import RESTART_DEADLINE_S, lane_of
from bench.peers import BODY
from bench.peers.duetime import TIMER_LANE, DueTime
from bench.processes import wait_until

COUNT, TURNS = 100_000, 3
# Puts that measure the rate, and the share of it in the plan of times.
PROBED, PLANNED_SHARE = 2_000, 0.6
# Processes of the way of a due message to its topic.
PROCESSES = ("store", "scheduler")
MINUTE = timedelta(minutes=1)
# Within its minute, so that the last sent messages are due in it too.
LATENESS_S = 30.0
# Occurrences of each kind, cron expressions among them, and the turns of their cost.
COST_COUNT, RULES, COST_TURNS = 20_000, 48, 5
QUEUES = 4
# Time between looks at the lane, which cost the store as much as a hundred messages.
LOOK_S = 0.25

Times = Callable[[int], dict[str, Any]]


def measured(root: Path, count: int, lateness_seconds: float, turns: int = TURNS) -> dict[str, Any]:
    """Processor time a message and an occurrence, and lateness beside `count` schedules due within a minute, in
    clusters of their own under `root`."""
    costs = min(count, COST_COUNT)
    with _started(root / "costs") as duetime:
        found = {"count": count, "cost_count": costs, "cpu_us": _costs(duetime, costs)}
    with _started(root / "lateness") as duetime:
        return found | _beside(duetime, count, min(lateness_seconds, LATENESS_S), turns)


@contextmanager
def _started(directory: Path) -> Iterator[DueTime]:
    duetime = DueTime("sync", QUEUES)
    try:
        duetime.start(directory)
        yield duetime
    finally:
        duetime.stop()


def _costs(duetime: DueTime, count: int) -> dict[str, list[dict[str, float]]]:
    """Microseconds a message of each kind, by process and turn."""
    first = _minute_after(2 * count / _put_rate(duetime))
    minutes = [(first.minute + turn) % 60 for turn in range(COST_TURNS)]

    def rule(number: int) -> dict[str, Any]:
        # Many share a rule. Each of them has a time of its own after the last turn.
        own = (minutes[-1] + 1 + number % RULES) % 60
        return {"cron": f"{','.join(map(str, [*minutes, own]))} * * * *", "zone": "Europe/Berlin"}

    starts = {"cron": first, "interval": first + MINUTE / 3, "message": first + MINUTE * 2 / 3}
    asyncio.run(_put(duetime, "scheduled-cron", count, rule))
    asyncio.run(_put(duetime, "scheduled-interval", count, lambda _: {"every": "1m", "start": starts["interval"]}))
    duetime.make_topic("scheduled-message")
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in starts}
    for turn in range(COST_TURNS):
        for kind, start in starts.items():
            instant = start + turn * MINUTE
            if kind == "message":
                asyncio.run(fill_instant(duetime.cluster.address, "scheduled-message", instant, count))
            found[kind].append(_cost_of_instant(duetime, instant, count))
    return found


def _cost_of_instant(duetime: DueTime, instant: datetime, count: int) -> dict[str, float]:
    """Microseconds a message, by process, from a moment before the instant until all are delivered."""
    _wait_until(instant - timedelta(seconds=2.5))
    meter = Meter({name: pid for name, pid in duetime.cluster.pids().items() if name in PROCESSES})
    _wait_drained(duetime, instant)
    used = meter.us_each(count)
    return {name: used[name] for name in PROCESSES}


def _beside(duetime: DueTime, count: int, seconds: float, turns: int) -> dict[str, Any]:
    """Lateness on a level, with and without due schedules."""
    first = _minute_after(count / _put_rate(duetime))

    def spread(number: int) -> dict[str, Any]:
        return {"every": "2m", "start": first + number * MINUTE / count}

    put_s = asyncio.run(_put(duetime, "scheduled-minute", count, spread))
    late: dict[str, list[dict[str, float]]] = {"beside": [], "usual": []}
    for turn in range(turns):
        for kind, minute in (("beside", first + 2 * turn * MINUTE), ("usual", first + (2 * turn + 1) * MINUTE)):
            _wait_until(minute)
            if kind == "usual":
                _wait_drained(duetime, minute)
            late[kind].append(lateness(duetime, f"late-{kind}-{turn}", RATES[0], seconds))
    return late_by_turns(late) | {"put_per_s": count / put_s}


def late_by_turns(late: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """The medians of both kinds' turns, and the ratio of each turn."""
    medians = {
        kind: {name: statistics.median(turn[name] for turn in found) for name in PERCENTILES}
        for kind, found in late.items()
    }
    pairs = list(zip(late["beside"], late["usual"], strict=True))
    return medians | {"multiples": {name: [one[name] / two[name] for one, two in pairs] for name in PERCENTILES}}


def _put_rate(duetime: DueTime) -> float:
    """A rate of puts that this machine surely reaches."""
    took_s = asyncio.run(_put(duetime, "scheduled-probe", PROBED, lambda _: {"every": "30d"}))
    return PLANNED_SHARE * PROBED / took_s


def _minute_after(seconds: float) -> datetime:
    """The first whole minute after a time from now."""
    ready = datetime.now(UTC) + timedelta(seconds=seconds + 5)
    return ready.replace(second=0, microsecond=0) + MINUTE


def _wait_until(moment: datetime) -> None:
    left_s = moment.timestamp() - time.time()
    if left_s < 0:
        raise WrongError("the due time came before all were sent")
    threading.Event().wait(left_s)


def _wait_drained(duetime: DueTime, last: datetime) -> None:
    """Waits until no entry of the lane is due, `last` being past."""
    threading.Event().wait(max(last.timestamp() - time.time(), 0.0) + LOOK_S)

    def is_drained() -> bool:
        threading.Event().wait(LOOK_S)
        return not lane_of(duetime, TIMER_LANE).due_count

    wait_until(is_drained, RESTART_DEADLINE_S, "the lane is drained")


async def _put(duetime: DueTime, topic: str, count: int, times: Times) -> float:
    """Puts schedules with the times of each number. Returns the seconds that it took."""
    duetime.make_topic(topic)
    began, message = time.perf_counter(), Message(topic, BODY)
    async with AsyncSchedules(duetime.cluster.address, timeout="60s") as schedules:
        await schedules.put_all(
            ScheduleDefinition(f"schedule-{number}", message, **times(number)) for number in range(count)
        )
    return time.perf_counter() - began


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.schedules", description="Measures schedules.")
    parser.add_argument("--count", type=int, default=COUNT, metavar="N", help="schedules due in a minute")
    parser.add_argument("--turns", type=int, default=TURNS, metavar="N", help="turns of two minutes of lateness")
    parser.add_argument("--directory", default="/var/tmp", help="directory of the data; on a disk")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="duetime-bench-", dir=arguments.directory) as root:
        try:
            found = measured(Path(root), arguments.count, LATENESS_S, arguments.turns)
        except WrongError as error:
            print(f"WRONG: {error}", file=sys.stderr)
            return 1
    report.keep_any_time({"schedules": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
