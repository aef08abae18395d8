"""A delayed job runner: functions are called later, in another process, and retried if they fail.

python examples/jobs.py work            in one terminal or several: runs jobs until Ctrl-C
python examples/jobs.py enqueue         in another one: plans three jobs
python examples/jobs.py                 both, until the three jobs are done
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from duetime import Consumer, LeasedMessage, Producer, Receipt, Reject, Retry

TOPIC = "jobs"
JOBS: dict[str, Callable[..., None]] = {}
# Unfinished jobs of this demonstration.
waiting = {"send_mail", "resize", "close_account"}


def job(function: Callable[..., None]) -> Callable[..., None]:
    """Makes a function callable by its name."""
    JOBS[function.__name__] = function
    return function


def enqueue(
    producer: Producer,
    function: Callable[..., None],
    *,
    delay: str | None = None,
    retry: str | None = None,
    **arguments: Any,
) -> Receipt:
    """Plans a call. The receipt cancels or reschedules it; `retry` is the job's own policy."""
    body = json.dumps(arguments).encode()
    return producer.send(TOPIC, body, tags=function.__name__, delay=delay, retry=retry)


def run_job(message: LeasedMessage) -> None:
    function = JOBS.get(message.tags)
    if function is None:
        raise Reject(f"unknown job {message.tags!r}")
    arguments = json.loads(message.body)
    if message.tags == "resize":
        arguments["attempt"] = message.attempt
    function(**arguments)
    waiting.discard(message.tags)


@job
def send_mail(to: str) -> None:
    print(f"mail to {to}", flush=True)


@job
def resize(picture: str, attempt: int) -> None:
    if attempt < 3:
        print(f"{picture}: attempt {attempt} fails", flush=True)
        raise Retry(reason="the disk is busy")
    print(f"{picture}: attempt {attempt} works", flush=True)


@job
def close_account(number: int) -> None:
    print(f"account {number} is closed", flush=True)


def plan() -> None:
    with Producer() as producer:
        enqueue(producer, send_mail, to="ann@example.com")
        enqueue(producer, resize, picture="cat.png", retry="exponential:1s..10s,max=5")
        enqueue(producer, close_account, number=42, delay="1m")


def work(*, until_done: bool) -> None:
    consumer = Consumer(group="workers")

    @consumer.handler(TOPIC, concurrency=16, backoff="exponential:1s..10m", max_attempts=8)
    def handle(message: LeasedMessage) -> None:
        run_job(message)
        if until_done and not waiting:
            consumer.stop()

    consumer.run()


if __name__ == "__main__":
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command != "work":
        plan()
    if command != "enqueue":
        work(until_done=command != "work")
