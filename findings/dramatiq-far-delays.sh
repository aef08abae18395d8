#!/bin/sh
# dramatiq 2.2.1: messages due in an hour hold up one that is due in a second.
#
# A worker takes delayed messages in the order of their sending, at most 1,000 for each of its threads, and keeps them
# until they are due. While it holds that many, it fetches no other delayed message of the queue. So one process with the
# default of 8 threads stops at 8,000. Also, the option `max_age` counts from the sending: a message with a `delay` that
# is longer than its `max_age` is dropped with a warning when it is due.
#
# Consequence: a batch of reminders for tomorrow blocks retries too, which are delayed messages.
# Remedy: a queue of its own for long delays, or `dramatiq_delay_queue_prefetch`; no `max_age` beside a delay.
#
# Output: Redis server v=7.0.15
#         2.2.1 Python 3.11.7
#         behind 900 messages due in 1 h: due in 1 s, ran
#         behind 1000 messages due in 1 h: due in 1 s, did not run within 15 s
#         delay 2 s, max_age 1 s: did not run within 15 s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
. "$(dirname "$0")/redis.sh"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check dramatiq==2.2.1 redis==7.1.0
"$folder/venv/bin/python" - "$folder/redis.sock" <<'PROGRAM'
import logging
import platform
import sys
from importlib.metadata import version
from queue import Empty, Queue

import dramatiq
from dramatiq.brokers.redis import RedisBroker

LIMIT_S = 15
logging.disable(logging.WARNING)
ran: Queue[str] = Queue()


def ran_in_time(text: str) -> bool:
    try:
        assert ran.get(timeout=LIMIT_S) == text
    except Empty:
        return False
    return True


def worker_and_actor(name: str, max_age: int | None = None) -> tuple[dramatiq.Worker, dramatiq.Actor]:
    broker = RedisBroker(url=f"unix://{sys.argv[1]}", namespace=name)
    options = {"max_age": max_age} if max_age else {}
    actor = dramatiq.actor(ran.put, broker=broker, actor_name="note", **options)
    return dramatiq.Worker(broker, worker_threads=1), actor


def behind(count: int) -> bool:
    """Whether a message due in 1 s runs in time, sent after `count` messages that are due in 1 h."""
    worker, actor = worker_and_actor(f"behind-{count}")
    for _ in range(count):
        actor.send_with_options(args=("far",), delay=3_600_000)
    actor.send_with_options(args=("near",), delay=1_000)
    worker.start()
    in_time = ran_in_time("near")
    worker.stop()
    print(f"behind {count} messages due in 1 h: due in 1 s,", "ran" if in_time else f"did not run within {LIMIT_S} s")
    return in_time


print(version("dramatiq"), "Python", platform.python_version())
few, many = behind(900), behind(1_000)
worker, actor = worker_and_actor("age", max_age=1_000)
actor.send_with_options(args=("aged",), delay=2_000)
worker.start()
aged = ran_in_time("aged")
worker.stop()
print("delay 2 s, max_age 1 s:", "ran" if aged else f"did not run within {LIMIT_S} s")
assert (few, many, aged) == (True, False, False), "changed"
PROGRAM
