"""Reminders at a due time: a day before each appointment. They move with the appointment, or are cancelled with it.

python examples/reminders.py            days last 24 hours
python examples/reminders.py 2          days last 2 seconds, for a quick run
"""

import json
import sys
from datetime import UTC, datetime, timedelta

from duetime import Consumer, Finder, LeasedMessage, Producer, Receipt

TOPIC = "reminders"
DAY = timedelta(seconds=float(sys.argv[1]) if len(sys.argv) > 1 else 86_400)


def remind(producer: Producer, name: str, appointment: datetime) -> Receipt:
    """`deliver_at` takes a datetime with any time zone, up to ten years ahead."""
    body = json.dumps({"name": name}).encode()
    return producer.send(TOPIC, body, deliver_at=appointment - DAY, key=name)


def name_in(body: bytes) -> str:
    return str(json.loads(body)["name"])


def make_appointments(producer: Producer, now: datetime) -> None:
    remind(producer, "Ann", now + 2 * DAY)
    ben = remind(producer, "Ben", now + 3 * DAY)
    cy = remind(producer, "Cy", now + 4 * DAY)
    # Ben's appointment moves: the same message, with another due time.
    producer.reschedule(ben, deliver_at=now + 5 * DAY - DAY)
    # Cy's appointment is cancelled.
    print("Cy's reminder:", producer.cancel(cy).value, flush=True)


def print_pending(now: datetime) -> set[str]:
    """Lists pending reminders by due time, and returns their names."""
    names = []
    with Finder() as finder:
        for message in finder.pending(TOPIC):
            names.append(name_in(message.body))
            print(f"{names[-1]} is reminded in {round((message.due_at - now) / DAY)} days", flush=True)
    return set(names)


def main() -> None:
    now = datetime.now(UTC)
    with Producer() as producer:
        make_appointments(producer, now)
    waiting = print_pending(now)
    consumer = Consumer(group="reminders")

    @consumer.handler(TOPIC)
    def send_mail(message: LeasedMessage) -> None:
        name = name_in(message.body)
        print(f"Dear {name}, you have an appointment tomorrow.", flush=True)
        waiting.discard(name)
        if not waiting:
            consumer.stop()

    consumer.run()


if __name__ == "__main__":
    main()
