"""The jobs by name: the functions that run them, and the lists of their results written as tables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from duetime_spark.jobs import auditing, backlog, dead_letters, lateness, retries
from duetime_spark.jobs.context import Context


class Result(Protocol):
    """A dataclass of plain values."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Job:
    """`tables`: lists of the result written by `--out`. `reads_all`: the job reads every record anyway. `is_brief`:
    workers sum the rows, so that few go through the JVM."""

    run: Callable[[Context], Result]
    tables: tuple[str, ...]
    reads_all: bool = False
    is_brief: bool = False


JOBS = {
    "backlog": Job(backlog.run, ("lanes", "pending", "due_minutes", "due_hours"), is_brief=True),
    "lateness": Job(lateness.run, ("topics", "minutes"), reads_all=True),
    "audit": Job(auditing.run, ("lanes", "violations", "transactions", "transaction_violations"), reads_all=True),
    "dead_letters": Job(dead_letters.run, ("groups",), reads_all=True),
    "retries": Job(retries.run, ("groups",)),
}
