"""Recurring messages: each occurrence plans the next one, by a cron expression in a time zone.

pip install cronsim
python examples/recurring.py                    every minute, three times
python examples/recurring.py '30 2 * * *'       every night at 2:30 in Berlin
"""

import json
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim
from duetime import Consumer, Finder, LeasedMessage, NotFound, PendingMessage, Producer

TOPIC = "schedules"
ZONE = ZoneInfo("Europe/Berlin")
# A removed entry ends: its pending occurrence arrives, does nothing and plans nothing.
SCHEDULES = {"report": sys.argv[1] if len(sys.argv) > 1 else "* * * * *"}
RUNS = 3


def next_after(name: str, moment: datetime) -> datetime:
    # If the clock repeats an hour, its first pass may be in the past. UTC has no such hours.
    times = (at.astimezone(UTC) for at in CronSim(SCHEDULES[name], moment.astimezone(ZONE)))
    return next(at for at in times if at > moment)


def plan(producer: Producer, name: str, after: datetime, run: int) -> None:
    """The next occurrence replaces the pending one: repeated planning leaves a single one."""
    body = json.dumps({"cron": SCHEDULES[name], "run": run}).encode()
    producer.send(TOPIC, body, deliver_at=next_after(name, after), key=name, replace=True)


def pending_of(name: str) -> list[PendingMessage]:
    try:
        with Finder() as finder:
            return list(finder.pending(TOPIC, key=name))
    except NotFound:
        # The first message creates the topic.
        return []


def seed(producer: Producer) -> None:
    """Plans missing occurrences, and those with a changed expression; every process may do so when it starts."""
    for name, cron in SCHEDULES.items():
        if any(json.loads(pending.body)["cron"] == cron for pending in pending_of(name)):
            print(f"{name}: already planned", flush=True)
        else:
            plan(producer, name, datetime.now(UTC), 1)
            print(f"{name}: planned", flush=True)


def main() -> None:
    producer = Producer()
    consumer = Consumer(group="schedules")

    @consumer.handler(TOPIC)
    def occur(message: LeasedMessage) -> None:
        name, run = message.keys[0], json.loads(message.body)["run"]
        if name not in SCHEDULES:
            return
        # The next one is planned first: the schedule continues even if this run fails. This process's clock may be
        # behind the server's, and must not plan the same occurrence again.
        now = datetime.now(UTC)
        plan(producer, name, max(now, message.due_at or now), run + 1)
        print(f"{name}: run {run}", flush=True)
        if run == RUNS:
            # A schedule stops when it is removed from the table and its pending message is cancelled.
            del SCHEDULES[name]
            for pending in pending_of(name):
                print(f"{name}: {producer.cancel(pending).value}", flush=True)
            consumer.stop()

    with producer:
        seed(producer)
        seed(producer)
        consumer.run()


if __name__ == "__main__":
    main()
