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
# What is left out here ends: its pending occurrence comes, does nothing and plans nothing.
SCHEDULES = {"report": sys.argv[1] if len(sys.argv) > 1 else "* * * * *"}
RUNS = 3


def next_after(name: str, moment: datetime) -> datetime:
    # In an hour that the clock repeats, the first time may be a past one. UTC has no such hours.
    times = (at.astimezone(UTC) for at in CronSim(SCHEDULES[name], moment.astimezone(ZONE)))
    return next(at for at in times if at > moment)


def plan(producer: Producer, name: str, after: datetime, run: int) -> None:
    """The next occurrence takes the place of the pending one: however often it is planned, there is one."""
    body = json.dumps({"cron": SCHEDULES[name], "run": run}).encode()
    producer.send(TOPIC, body, deliver_at=next_after(name, after), key=name, replace=True)


def pending_of(name: str) -> list[PendingMessage]:
    try:
        with Finder() as finder:
            return list(finder.pending(TOPIC, key=name))
    except NotFound:
        # The first message makes the topic.
        return []


def seed(producer: Producer) -> None:
    """Plans what is not planned yet, or by another expression; every process may do so when it starts."""
    for name, cron in SCHEDULES.items():
        if any(json.loads(pending.body)["cron"] == cron for pending in pending_of(name)):
            print(f"{name}: is planned already", flush=True)
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
        # First the next one: whatever becomes of this one, the schedule goes on. This process's clock may be behind
        # the server's, and must not plan the same occurrence again.
        now = datetime.now(UTC)
        plan(producer, name, max(now, message.due_at or now), run + 1)
        print(f"{name}: run {run}", flush=True)
        if run == RUNS:
            # To stop a schedule: take it out of the table, and cancel what is pending.
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
