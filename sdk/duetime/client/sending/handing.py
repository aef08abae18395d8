"""Hands single messages of threads to the event loop together; each thread waits for its own message.

    thread ──▶ handed ──▶ one call of the loop for all of them ──▶ gatherer ──▶ outcome ──▶ the thread's lock

A coroutine, a task and a wake-up of the loop for each message would take most of its time.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from duetime.client.errors import Closed, DueTimeError, Overloaded
from duetime.client.message import Message, Receipt
from duetime.client.process import connections
from duetime.client.sending.calls import Calls
from duetime.client.sending.capacity import Capacity
from duetime.client.sending.gatherer import SendGatherer
from duetime.client.sending.letters import MessageEncoder, OutgoingMessage
from duetime.client.sending.outcomes import Outcome

# Calls a function in the loop's thread.
Call = Callable[[Callable[[], None]], None]


class _ThreadWaiter:
    """A message of a waiting thread; the gatherer uses it as a future.

    The lock is held until the outcome arrives. It is one of the interpreter's own locks: an interrupt can't leave it
    half acquired.
    """

    __slots__ = ("_answered", "_outcome", "given_up", "leave", "letter")

    def __init__(self, letter: OutgoingMessage) -> None:
        self.letter = letter
        # True: its thread was interrupted.
        self.given_up = False
        # Releases the message's capacity once the outcome is known.
        self.leave: Callable[[int], None] | None = None
        self._outcome: Outcome | Exception | None = None
        self._answered = threading.Lock()
        self._answered.acquire()

    def wait(self) -> Outcome | Exception:
        """Waits for the outcome, in the message's thread."""
        self._answered.acquire()
        assert self._outcome is not None
        return self._outcome

    def done(self) -> bool:
        return self._outcome is not None

    def set_result(self, outcome: Outcome) -> None:
        self._settle(outcome)

    def set_exception(self, error: Exception) -> None:
        self._settle(error)

    def cancel(self) -> None:
        if self._outcome is None:
            self._settle(Closed("the producer's event loop has ended", reason="CLOSED"))

    def _settle(self, outcome: Outcome | Exception) -> None:
        self._outcome = outcome
        if self.leave is not None:
            self.leave(len(self.letter))
        self._answered.release()


class ThreadBridge:
    """The path of one producer's single messages from any thread to its event loop."""

    def __init__(
        self, timeout: float, capacity: Capacity, calls: Calls, letters: MessageEncoder, gatherer: SendGatherer[Receipt]
    ) -> None:
        self._timeout = timeout
        self._capacity = capacity
        self._calls = calls
        self._letters = letters
        self._gatherer = gatherer
        # Threads append to the list, and set the flag before they call the loop: it takes the whole list.
        self._handed: deque[_ThreadWaiter] = deque()
        self._called = False
        # Tasks of messages that wait for capacity.
        self._waiting: set[asyncio.Task[None]] = set()

    def send(self, message: Message, call: Call) -> Outcome:
        """Sends a message and waits for its outcome. Called in any thread but the loop's. Raises: Forked."""
        if connections.lost:
            # Nobody finishes the work that other threads of the parent had started here.
            connections.check()
        one = _ThreadWaiter(self._letters.letter(message))
        try:
            self._handed.append(one)
            if not self._called:
                self._called = True
                call(self._take)
            outcome = one.wait()
        except BaseException:
            one.given_up = True
            # The interrupt may have come between the flag and the call, which no other thread would make.
            call(self._take)
            raise
        if isinstance(outcome, Receipt | DueTimeError):
            return outcome
        raise outcome

    def _take(self) -> None:
        """Gathers the handed messages, in the loop."""
        self._called = False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while self._handed:
            one = self._handed.popleft()
            if one.given_up:
                continue
            try:
                self._calls.enter()
            except DueTimeError as error:
                one.set_result(error)
                continue
            if self._capacity.try_acquire(1, len(one.letter)):
                self._gather(one, deadline)
            else:
                waiting = loop.create_task(self._wait(one, deadline))
                self._waiting.add(waiting)
                waiting.add_done_callback(self._waiting.discard)

    async def _wait(self, one: _ThreadWaiter, deadline: float) -> None:
        """Gathers a message once capacity is free."""
        try:
            await self._capacity.acquire_within(1, len(one.letter), deadline, self._timeout)
        except Overloaded as error:
            self._calls.leave()
            one.set_result(error.about(one.letter.message_id))
        except BaseException:
            self._calls.leave()
            one.cancel()
            raise
        else:
            self._gather(one, deadline)

    def _gather(self, one: _ThreadWaiter, deadline: float) -> None:
        one.leave = self._leave
        self._gatherer.add(one.letter, deadline, one)

    def _leave(self, size: int) -> None:
        self._capacity.release(1, size)
        self._calls.leave()
