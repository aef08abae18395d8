"""The jobs by name: the functions that run them, and the lists of their results written as tables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from duetime_spark.jobs import auditing, backlog, dead_letters, lateness, retries
from duetime_spark.jobs.context import JobContext


class Result(Protocol):
    """A dataclass of plain values."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class SparkJob:
    """`tables`: lists of the result written by `--out`. `reads_all`: the job reads every record anyway. `is_brief`:
    workers sum the rows, so that few go through the JVM."""

    run: Callable[[JobContext], Result]
    tables: tuple[str, ...]
    reads_all: bool = False
    is_brief: bool = False


_AUDIT = (
    *("lanes", "violations", "transactions", "transaction_violations"),
    *("schedules", "schedule_violations"),
)
JOBS = {
    "backlog": SparkJob(backlog.run, ("lanes", "pending", "due_minutes", "due_hours"), is_brief=True),
    "lateness": SparkJob(lateness.run, ("topics", "minutes"), reads_all=True),
    "audit": SparkJob(auditing.run, _AUDIT, reads_all=True),
    "dead_letters": SparkJob(dead_letters.run, ("groups",), reads_all=True),
    "retries": SparkJob(retries.run, ("groups",)),
}
