"""The waiters for messages of each (group, topic).

Waiters of one (group, topic) form a line. An arrival wakes the first; a waiter that got something and left more wakes
the next. So one message costs one wake-up, regardless of the number of waiters. A waiter that only looked comes back to
take its messages: they are offered to it for a moment, and wake no other.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from duetime_core.clock import Clock, Timer
from duetime_format.names import lite_key

from duetime_store.groups.precedence import Precedence
from duetime_store.queues.consumequeue import ConsumeQueue

# Longer than a gateway takes to come for messages that it has seen.
OFFER_MS = 50


@dataclass(eq=False, slots=True)
class MessageWaiter:
    future: "asyncio.Future[None]"

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


@dataclass(eq=False, slots=True)
class WaiterLine:
    """The waiters of one (group, topic), and the next turn."""

    waiters: deque[MessageWaiter] = field(default_factory=deque)
    # Determines the first queue.
    turn: int = 0
    fresh_first: bool = False
    filter_text: str = ""
    filter_used_ms: int | None = None
    queues: set[ConsumeQueue] = field(default_factory=set)
    # Used for topics with priorities.
    precedence: Precedence = field(default_factory=Precedence)
    # Messages of waiters that looked; the alarm ends their offer.
    offered: int = 0
    alarm: Timer | None = None
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

    def offer(self, count: int, clock: Clock) -> None:
        """Keeps messages for a waiter that looked; if none comes for them, they wake the first waiter."""
        self.offered += count
        if self.alarm is None:
            self.alarm = clock.call_later(OFFER_MS, self._end_offer)

    def accept(self, count: int) -> None:
        """A receiver comes for messages."""
        self.offered = max(self.offered - count, 0)
        if not self.offered and self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None

    def _end_offer(self) -> None:
        self.offered, self.alarm = 0, None
        self.wake()

    def listen(self, queue: ConsumeQueue) -> None:
        """Makes arrivals in the queue wake the line."""
        if queue not in self.queues:
            self.queues.add(queue)
            queue.listen(self.wake)


@dataclass(eq=False, slots=True)
class LiteWaiter(MessageWaiter):
    """A waiter of a group for messages of some lite topics."""

    group: str
    # Lite topics, by key, that have something for it since its last fetch.
    ready: set[str] = field(default_factory=set)
    # The group or the topic was deleted.
    is_over: bool = False


class LiteLines:
    """Waiters by lite topic. Something for a lite topic wakes one waiter of each group, and names the lite topic."""

    def __init__(self) -> None:
        self._waiters: dict[str, list[LiteWaiter]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def join(self, waiter: LiteWaiter, keys: Iterable[str]) -> None:
        for key in keys:
            self._waiters.setdefault(key, []).append(waiter)

    def leave(self, waiter: LiteWaiter, keys: Iterable[str]) -> None:
        for key in keys:
            waiters = self._waiters[key]
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[key]

    def wake(self, key: str, group: str = "") -> None:
        """Wakes the first waiter of the group for the lite topic; without a group, the first of each."""
        woken = set()
        for waiter in self._waiters.get(key, ()):
            if waiter.group not in woken and group in ("", waiter.group):
                woken.add(waiter.group)
                waiter.ready.add(key)
                waiter.wake()

    def end(self, chosen: Callable[[str, LiteWaiter], bool]) -> None:
        """Ends the waiters chosen by lite topic and waiter."""
        for key, waiters in self._waiters.items():
            for waiter in waiters:
                if chosen(key, waiter):
                    waiter.is_over = True
                    waiter.wake()


class WaiterLines:
    """The lines of a shard."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], WaiterLine] = {}
        self.lites = LiteLines()

    def of(self, group: str, topic: str) -> WaiterLine:
        return self._lines.setdefault((group, topic), WaiterLine())

    def wake(self, group: str, topic: str) -> None:
        """Wakes the line, if there is one, for messages returned to the group."""
        line = self._lines.get((group, topic))
        if line is not None:
            line.wake()
        elif self.lites:
            self.lites.wake(topic, group)

    def end(self, group: str) -> None:
        """Ends the lines of a deleted group: they stop listening, and waiters get an empty answer. The next call
        recreates the group."""
        self._end([key for key in self._lines if key[0] == group])
        self.lites.end(lambda key, waiter: waiter.group == group)

    def end_topic(self, topic: str) -> None:
        """As `end`, for a deleted topic; its waiters get an error."""
        self._end([key for key in self._lines if key[1] == topic])
        self.lites.end(lambda key, waiter: key.startswith(lite_key(topic, "")))

    def _end(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            line = self._lines.pop(key)
            for queue in line.queues:
                queue.unlisten(line.wake)
            line.is_over = True
            for waiter in line.waiters:
                waiter.wake()
