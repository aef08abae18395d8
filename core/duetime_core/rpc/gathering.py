"""Answers many questions at a time: questions that arrive during a round share the next one.

A single caller waits for one round, and 10,000 concurrent ones cost some rounds instead of 10,000. The number of
questions per round is limited, so that callers with few questions wait behind few.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, Overloaded, Unavailable
from duetime_core.limits.seats import Seats
from duetime_core.telemetry.defects import outcome

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Question(Generic[V]):
    __slots__ = ("answer", "asking")

    def __init__(self) -> None:
        self.answer: asyncio.Future[V | DueTimeError] = asyncio.get_running_loop().create_future()
        # Number of waiting callers.
        self.asking = 0


class QuestionGatherer(Generic[K, V]):
    """Combines equal questions that arrive at the same time."""

    def __init__(
        self,
        what: str,
        answer: Callable[[list[K]], Awaitable[Mapping[K, V | DueTimeError]]],
        clock: Clock,
        *,
        round_max: int,
        waiting_max: int,
        sharer: Callable[[K], str] | None = None,
    ) -> None:
        """`answer` answers each question of a round, or raises a DueTimeError for all of them; `what` names the
        questions in rejections. `sharer` names the caller of a waiting question; each may have half of `waiting_max`.
        None: no shares."""
        self._what = what
        self._answer = answer
        self._clock = clock
        self._round_max = round_max
        self._waiting_max = waiting_max
        self._sharer = sharer
        self._seats = Seats(waiting_max, f"{what} are waiting")
        self._waiting: dict[K, _Question[V]] = {}
        self._running: dict[K, _Question[V]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._rounds: asyncio.Task[None] | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Runs rounds as tasks of `tasks` until `stop`."""
        self._tasks = tasks

    def stop(self) -> None:
        self._tasks = None

    async def ask(self, keys: Iterable[K], wait_ms: float | None = None) -> dict[K, V | DueTimeError]:
        """The answers; those not received within `wait_ms` are missing."""
        asked = {key: self._join(key) for key in keys}
        try:
            self._wake()
            futures = [one.answer for one in asked.values() if isinstance(one, _Question)]
            everything = asyncio.gather(*futures)
            if wait_ms is None:
                # The caller's end must not cancel the questions: others may have asked the same.
                await asyncio.shield(everything)
            else:
                await self._clock.wait_for(everything, wait_ms)
            return {
                key: one if isinstance(one, DueTimeError) else one.answer.result()
                for key, one in asked.items()
                if isinstance(one, DueTimeError) or one.answer.done()
            }
        finally:
            for key, one in asked.items():
                if isinstance(one, _Question):
                    self._leave(key, one)

    def _join(self, key: K) -> "_Question[V] | DueTimeError":
        question = self._running.get(key) or self._waiting.get(key)
        if question is None:
            if self._tasks is None:
                return _stopping()
            if len(self._waiting) >= self._waiting_max:
                return Overloaded(f"{len(self._waiting)} {self._what} are waiting; the limit is {self._waiting_max}")
            if self._sharer is not None:
                try:
                    self._seats.take(self._sharer(key))
                except Overloaded as error:
                    return error
            question = self._waiting[key] = _Question()
        question.asking += 1
        return question

    def _leave(self, key: K, question: "_Question[V]") -> None:
        question.asking -= 1
        if not question.asking and self._waiting.get(key) is question:
            # The last caller has left.
            self._pop(key)

    def _pop(self, key: K) -> "_Question[V]":
        if self._sharer is not None:
            self._seats.give(self._sharer(key))
        return self._waiting.pop(key)

    def _wake(self) -> None:
        if self._tasks is not None and self._waiting and (self._rounds is None or self._rounds.done()):
            self._rounds = self._tasks.create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            keys = list(islice(self._waiting, self._round_max))
            self._running = {key: self._pop(key) for key in keys}
            answers: Mapping[K, V | DueTimeError] | None = None
            error: DueTimeError | None = _stopping()
            try:
                answers, error = await outcome(partial(self._answer, keys), self._what)
            finally:
                running, self._running = self._running, {}
                for key, question in running.items():
                    question.answer.set_result(error if error is not None else (answers or {})[key])


def _stopping() -> DueTimeError:
    return Unavailable("the process is stopping", reason="STOPPING")
