"""An executor without threads: work is done when it is handed over, so that a test decides when."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class Here(Executor):
    """Runs work immediately on the caller's thread, after `before`."""

    def __init__(self) -> None:
        self.before: Callable[[], None] | None = None

    def submit(self, function: Callable[..., T], /, *args: Any, **options: Any) -> "Future[T]":
        before, self.before = self.before, None
        if before is not None:
            before()
        done: Future[T] = Future()
        try:
            done.set_result(function(*args, **options))
        except Exception as error:
            done.set_exception(error)
        return done
