"""The waiters for messages of each (group, topic).

Waiters of one (group, topic) form a line. An arrival wakes the first; a waiter that got something and left more wakes
the next. So one message costs one wake-up, regardless of the number of waiters.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from duetime_store.groups.precedence import Precedence
from duetime_store.queues.consumequeue import ConsumeQueue


@dataclass(eq=False, slots=True)
class Waiter:
    future: "asyncio.Future[None]"

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


@dataclass(eq=False, slots=True)
class Line:
    """The waiters of one (group, topic), and the next turn."""

    waiters: deque[Waiter] = field(default_factory=deque)
    # Determines the first queue.
    turn: int = 0
    fresh_first: bool = False
    filter_text: str = ""
    filter_used_ms: int | None = None
    queues: set[ConsumeQueue] = field(default_factory=set)
    # Used for topics with priorities.
    precedence: Precedence = field(default_factory=Precedence)
    # The group or the topic was deleted.
    is_over: bool = False

    @property
    def is_waking(self) -> bool:
        """Whether a waiter was woken and has not fetched yet."""
        return bool(self.waiters) and self.waiters[0].future.done()

    def wake(self) -> None:
        """Wakes the first waiter."""
        if self.waiters:
            self.waiters[0].wake()

    def listen(self, queue: ConsumeQueue) -> None:
        """Makes arrivals in the queue wake the line."""
        if queue not in self.queues:
            self.queues.add(queue)
            queue.listen(self.wake)


class Lines:
    """The lines of a shard."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], Line] = {}

    def of(self, group: str, topic: str) -> Line:
        return self._lines.setdefault((group, topic), Line())

    def wake(self, group: str, topic: str) -> None:
        """Wakes the line, if there is one, for messages returned to the group."""
        line = self._lines.get((group, topic))
        if line is not None:
            line.wake()

    def end(self, group: str) -> None:
        """Ends the lines of a deleted group: they stop listening, and waiters get an empty answer. The next call
        recreates the group."""
        self._end([key for key in self._lines if key[0] == group])

    def end_topic(self, topic: str) -> None:
        """As `end`, for a deleted topic; its waiters get an error."""
        self._end([key for key in self._lines if key[1] == topic])

    def _end(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            line = self._lines.pop(key)
            for queue in line.queues:
                queue.unlisten(line.wake)
            line.is_over = True
            for waiter in line.waiters:
                waiter.wake()
