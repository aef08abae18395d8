"""Redrives and discards that run in the console, while people watch their progress.

A job is a streaming call to the gateway with one result for each dead letter. It ends with the console: its results
remain, and another job on the same dead letters continues with the rest.
"""

import asyncio
import secrets
from collections import Counter, OrderedDict
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from duetime.v1 import consumer_pb2
from duetime_core.clock import Clock

from duetime_console.gateway import Gateway, GatewayError
from duetime_console.session import Viewer

Action = Literal["redrive", "discard"]

# Running and remembered jobs of one console.
RUNNING_MAX = 4
KEPT_MAX = 100
# Failures shown by a job, in addition to their number.
FAULTS_SHOWN_MAX = 20

_METHODS = {"redrive": "RedriveDeadLetters", "discard": "DiscardDeadLetters"}
_OUTCOMES = {
    consumer_pb2.DEAD_LETTER_OUTCOME_REDRIVEN: "redriven",
    consumer_pb2.DEAD_LETTER_OUTCOME_DISCARDED: "discarded",
    consumer_pb2.DEAD_LETTER_OUTCOME_GONE: "gone",
    consumer_pb2.DEAD_LETTER_OUTCOME_MATCHED: "matched",
    consumer_pb2.DEAD_LETTER_OUTCOME_FAILED: "failed",
}


class TooManyJobs(Exception):
    """RUNNING_MAX jobs run already."""


@dataclass(slots=True)
class DeadLetterJob:
    """The action of a job, its dead letters, and its progress."""

    id: str
    action: Action
    filter: consumer_pb2.DeadLetterFilter
    rate: float
    # The count of the dry run: the job takes no more.
    expected: int
    viewer: Viewer
    started_at_ms: int
    ended_at_ms: int = 0
    # `running`, `done`, `stopped` or `failed`.
    state: str = "running"
    # The error of a failed job.
    text: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, str]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def done_count(self) -> int:
        return self.outcomes.total()

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    def take(self, result: consumer_pb2.DeadLetterResult) -> None:
        self.outcomes[_OUTCOMES.get(result.outcome, "unknown")] += 1
        if result.HasField("fault") and len(self.faults) < FAULTS_SHOWN_MAX:
            self.faults.append((result.message_id, result.fault.message))


class DeadLetterJobs:
    """The jobs of one console; each is visible to the user who started it."""

    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock
        self._jobs: OrderedDict[str, DeadLetterJob] = OrderedDict()

    def start(
        self,
        tasks: asyncio.TaskGroup,
        action: Action,
        wanted: consumer_pb2.DeadLetterFilter,
        rate: float,
        expected: int,
        viewer: Viewer,
    ) -> DeadLetterJob:
        """Raises: TooManyJobs."""
        if self.running_count() >= RUNNING_MAX:
            raise TooManyJobs(f"{RUNNING_MAX} redrives and discards are running: wait for one to end, or stop it")
        job = DeadLetterJob(secrets.token_urlsafe(12), action, wanted, rate, expected, viewer, self._clock.now_ms())
        self._jobs[job.id] = job
        while len(self._jobs) > KEPT_MAX:
            self._jobs.pop(next(one.id for one in self._jobs.values() if not one.is_running))
        job.task = tasks.create_task(self._run(job))
        return job

    def running_count(self) -> int:
        return sum(job.is_running for job in self._jobs.values())

    def of(self, viewer: Viewer, group: str) -> list[DeadLetterJob]:
        """A user's jobs for a group, the latest first."""
        mine = [job for job in self._jobs.values() if _is_of(job, viewer) and job.filter.group == group]
        return mine[::-1]

    def get(self, job_id: str, viewer: Viewer) -> DeadLetterJob | None:
        job = self._jobs.get(job_id)
        return job if job is not None and _is_of(job, viewer) else None

    def stop(self, job: DeadLetterJob) -> None:
        """Stops a job; finished work remains. Idempotent."""
        if job.is_running and job.task is not None:
            job.state = "stopped"
            job.task.cancel()

    def stop_all(self) -> None:
        """Stops all jobs at the console's end."""
        for job in self._jobs.values():
            self.stop(job)

    async def _run(self, job: DeadLetterJob) -> None:
        make: Any = consumer_pb2.RedriveRequest if job.action == "redrive" else consumer_pb2.DiscardRequest
        request = make(filter=job.filter, rate=job.rate, max_count=job.expected)
        try:
            async with aclosing(self._gateway.stream(_METHODS[job.action], request, job.viewer.token)) as results:
                async for result in results:
                    job.take(result)
            job.state = "done"
        except GatewayError as error:
            job.state, job.text = "failed", error.text
        finally:
            job.ended_at_ms = self._clock.now_ms()


def _is_of(job: DeadLetterJob, viewer: Viewer) -> bool:
    return (job.viewer.token, job.viewer.user) == (viewer.token, viewer.user)


async def count(
    gateway: Gateway, action: Action, wanted: consumer_pb2.DeadLetterFilter, token: str, timeout: float
) -> tuple[int, bool]:
    """A dry run: the number of dead letters, and whether it is final: False if `timeout` (s) passed first.

    Raises:
        GatewayError: the gateway rejects the call, or does not answer.
    """
    make: Any = consumer_pb2.RedriveRequest if action == "redrive" else consumer_pb2.DiscardRequest
    request = make(filter=wanted, dry_run=True)
    found = 0
    try:
        async with aclosing(gateway.stream(_METHODS[action], request, token, timeout)) as results:
            async for result in results:
                found += result.outcome == consumer_pb2.DEAD_LETTER_OUTCOME_MATCHED
    except GatewayError as error:
        if error.code != "DEADLINE_EXCEEDED" or not found:
            raise
        return found, False
    return found, True
