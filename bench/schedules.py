"""Schedules: the cost of an occurrence beside that of a plain message, and lateness beside many due in a minute.

`python -m bench.schedules [--count N]` measures a cluster of its own, and adds the figures to the last run,
bench/last.json.
"""

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from duetime import AsyncSchedules, Message

from bench import report
from bench.any_time import INSTANT_RATE, fill_instant
from bench.contest import Meter, WrongError, lateness
from bench.figures import RATES
from bench.measure import RESTART_DEADLINE_S, lane_of
from bench.peers import BODY
from bench.peers.duetime import TIMER_LANE, DueTime
from bench.processes import wait_until

COUNT = 100_000
# Puts of schedules in flight, and the assumed rate; the actual rate is higher.
PUTS, PUT_RATE = 64, 250
# Processes of the way of a due message to its topic.
PROCESSES = ("store", "scheduler")
SPREAD_S = 60.0
LATENESS_S = 30.0
# Occurrences measured of each kind, and cron expressions among them.
COST_COUNT, RULES = 40_000, 59
Kind = Literal["interval", "cron"]


def measured(duetime: DueTime, count: int, lateness_seconds: float) -> dict[str, Any]:
    """Processor time a message and an occurrence, and lateness beside `count` schedules due within a minute."""
    found: dict[str, Any] = {"count": count, "cost_count": (costs := min(count, COST_COUNT))}
    found["cpu_us"] = {
        "message": _cost_of_messages(duetime, costs),
        "interval": _cost_of_schedules(duetime, costs, "interval"),
        "cron": _cost_of_schedules(duetime, costs, "cron"),
    }
    found["usual"] = lateness(duetime, "late-unscheduled", RATES[0], lateness_seconds)
    first = _ahead(count / PUT_RATE)
    starts = [first + timedelta(seconds=SPREAD_S * number / count) for number in range(count)]
    put_s = asyncio.run(_put(duetime, "scheduled-minute", starts, "interval"))
    _wait_until(first)
    found["beside"] = lateness(duetime, "late-scheduled", RATES[0], lateness_seconds)
    _wait_drained(duetime, first + timedelta(seconds=SPREAD_S))
    return found | {"put_per_s": count / put_s}


def _cost_of_messages(duetime: DueTime, count: int) -> dict[str, float]:
    duetime.make_topic("scheduled-messages")
    instant = _ahead(count / INSTANT_RATE)
    asyncio.run(fill_instant(duetime.cluster.address, "scheduled-messages", instant, count))
    return _cost_of_instant(duetime, instant, count)


def _cost_of_schedules(duetime: DueTime, count: int, kind: Kind) -> dict[str, float]:
    instant = _ahead(count / PUT_RATE)
    asyncio.run(_put(duetime, f"scheduled-{kind}", [instant] * count, kind))
    return _cost_of_instant(duetime, instant, count)


def _cost_of_instant(duetime: DueTime, instant: datetime, count: int) -> dict[str, float]:
    """Microseconds a message, by process, from a moment before the instant until all are delivered."""
    _wait_until(instant - timedelta(seconds=2.5))
    meter = Meter({name: pid for name, pid in duetime.cluster.pids().items() if name in PROCESSES})
    _wait_drained(duetime, instant)
    used = meter.us_each(count)
    return {name: used[name] for name in PROCESSES}


def _ahead(seconds: float) -> datetime:
    """A whole second with time to send everything before it."""
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=int(seconds) + 6)


def _wait_until(moment: datetime) -> None:
    left_s = moment.timestamp() - time.time()
    if left_s < 0:
        raise WrongError("the due time came before all were sent")
    threading.Event().wait(left_s)


def _wait_drained(duetime: DueTime, last: datetime) -> None:
    """Waits until no entry of the lane is due, `last` being past."""
    threading.Event().wait(max(last.timestamp() - time.time(), 0.0) + 0.1)
    wait_until(lambda: not lane_of(duetime, TIMER_LANE).due_count, RESTART_DEADLINE_S, "the lane is drained")


async def _put(duetime: DueTime, topic: str, starts: Sequence[datetime], kind: Kind) -> float:
    """Puts a schedule for each start. Returns the seconds that it took."""
    duetime.make_topic(topic)
    began, left = time.perf_counter(), list(enumerate(starts))

    async def work(schedules: AsyncSchedules) -> None:
        while left:
            number, start = left.pop()
            message, name = Message(topic, BODY), f"schedule-{number}"
            if kind == "interval":
                await schedules.put(name, message, every="1h", start=start)
            else:
                # All have the same first time, and many share a rule.
                cron = f"{start.second} {start.minute},{(start.minute + 1 + number % RULES) % 60} * * * *"
                await schedules.put(name, message, cron=cron, zone="Europe/Berlin")

    async with AsyncSchedules(duetime.cluster.address, timeout="60s") as schedules, asyncio.TaskGroup() as group:
        for _ in range(PUTS):
            group.create_task(work(schedules))
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.schedules", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, metavar="N", help="schedules due in a minute")
    parser.add_argument("--directory", default="/var/tmp", help="directory of the data; on a disk")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duetime-bench-", dir=arguments.directory) as root:
        duetime = DueTime("sync", 4)
        try:
            duetime.start(Path(root) / "schedules")
            found = measured(duetime, arguments.count, LATENESS_S)
        except WrongError as error:
            print(f"WRONG: {error}", file=sys.stderr)
            return 1
        finally:
            duetime.stop()
    report.keep_any_time({"schedules": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
