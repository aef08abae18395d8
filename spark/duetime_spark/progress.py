"""Progress of Spark's tasks, for a person at a terminal."""

import threading
from types import TracebackType
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_POLL_S = 0.2


class TaskBars:
    """A bar of the running stages' tasks on standard error; nothing if that is not a terminal."""

    def __init__(self, spark: SparkSession, words: str) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        console = Console(stderr=True)
        columns = (TextColumn(words), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="spark-progress", daemon=True)

    def __enter__(self) -> "TaskBars":
        if self._progress is not None:
            self._progress.start()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._is_over.set()
            self._thread.join()
            self._progress.stop()

    def _watch(self) -> None:
        progress: Any = self._progress
        bar = progress.add_task("", total=None)
        while not self._is_over.wait(_POLL_S):
            stages = [self._tracker.getStageInfo(number) for number in self._tracker.getActiveStageIds()]
            there = [stage for stage in stages if stage is not None]
            if there:
                done = sum(stage.numCompletedTasks for stage in there)
                progress.update(bar, completed=done, total=sum(stage.numTasks for stage in there))
