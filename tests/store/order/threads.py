"""Threads that work when a test says so."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Held(Executor):
    """Runs submitted work one by one when `work` is called; with `at_once`, on submission."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            future.set_running_or_notify_cancel()
            try:
                future.set_result(call(*args, **named))
            except Exception as error:
                future.set_exception(error)

        self._waiting.append(run)
        if self.at_once:
            self.work()
        return future

    def work(self, count: int = 1_000_000) -> None:
        while self._waiting and count:
            self._waiting.popleft()()
            count -= 1
