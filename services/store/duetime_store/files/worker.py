"""A thread that works on the files of a shard's directory, for the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple

from duetime_store.files.directory import StoreDirectory

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class FileWorker:
    """The directory, and an executor of one thread, which does one work after the other."""

    def __init__(self, directory: StoreDirectory, executor: Executor) -> None:
        self.directory = directory
        self._executor = executor

    def run(self, work: Callable[[*Arguments], T], *arguments: *Arguments) -> "asyncio.Future[T]":
        """Done with the result of the work, or with its error."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
