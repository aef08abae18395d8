"""One call: the state shared by its two ends, and its end.

begun ──▶ (messages both ways) ──▶ finished: the status is known ──▶ settled: the caller has taken everything
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import grpc
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

from duetime_core.within.flow import Flow

Metadata = Sequence[tuple[str, Any]]

LOCALLY_CANCELLED = "Locally cancelled by application!"
DEADLINE_EXCEEDED = "Deadline Exceeded"


class Rpc:
    """The state of one call."""

    # gRPC's facts about a caller with TLS.
    auth_context: Mapping[str, Sequence[bytes]] = MappingProxyType({})

    __slots__ = (
        "_begun",
        "_callbacks",
        "_deadline",
        "_one_answer",
        "_timer",
        "_waiters",
        "answers",
        "code",
        "details",
        "initial_metadata",
        "locally_cancelled",
        "loop",
        "metadata",
        "method",
        "requests",
        "serving",
        "settled",
        "trailing_metadata",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        method: str,
        metadata: tuple[tuple[str, Any], ...],
        timeout_s: float | None,
        *,
        one_answer: bool,
    ) -> None:
        """`one_answer`: the call is settled with its answer, even if that is not taken."""
        self.loop = loop
        self._one_answer = one_answer
        self.method = method
        self.metadata = metadata
        self.requests, self.answers = self._make_flows(loop)
        self.initial_metadata: Metadata = ()
        self.trailing_metadata: Metadata = ()
        # None: running.
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.locally_cancelled = False
        self.settled = False
        # The task that serves the call and ends with it.
        self.serving: asyncio.Task[None] | None = None
        self._begun = False
        self._waiters: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[], object]] = []
        self._deadline = None if timeout_s is None else loop.time() + timeout_s
        self._timer = None if timeout_s is None else loop.call_later(max(timeout_s, 0), self._expire)

    def _make_flows(self, loop: asyncio.AbstractEventLoop) -> tuple[Flow, Flow]:
        """The flows of requests and answers."""
        return Flow(loop), Flow(loop)

    @property
    def time_remaining_s(self) -> float | None:
        """Seconds until the deadline; None: no deadline."""
        return None if self._deadline is None else max(self._deadline - self.loop.time(), 0.0)

    def begin(self, initial_metadata: Metadata | None = None) -> None:
        """Sets the initial metadata; the first answer sets an empty one."""
        if self._begun:
            return
        self._begun = True
        self.initial_metadata = initial_metadata or ()
        if self._waiters:
            self._wake()

    @property
    def begun(self) -> bool:
        return self._begun

    def send(self, flow: Flow, data: bytes) -> None:
        """Adds a message to one of the flows; a message above gRPC's limit ends the call."""
        if len(data) <= GRPC_MESSAGE_BYTES_MAX:
            flow.put(data)
            return
        text = f"Sent message larger than max ({len(data)} vs. {GRPC_MESSAGE_BYTES_MAX})"
        self.break_off(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    async def take_answer(self) -> Any:
        """The next answer; `grpc.aio.EOF`: no more, and the status is known."""
        data = await self.answers.take()
        if self.code is not None and self.answers.is_empty:
            self._settle()
        return data

    def finish(self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata = ()) -> None:
        """Ends the call on the server's side; answers in transit can still be taken. The first end counts."""
        if self.code is not None:
            return
        self.code, self.details, self.trailing_metadata = code, details, trailing_metadata
        if self._timer is not None:
            self._timer.cancel()
        self.begin()
        if self._waiters:
            self._wake()
        self.requests.drop()
        self.answers.end()
        if self._one_answer or self.answers.is_empty:
            self._settle()

    async def delivered(self) -> None:
        """Returns when answers that count have been taken, or dropped; those within the process are their caller's."""

    def break_off(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the call at once, both ways."""
        if self.settled:
            return
        self.answers.drop()
        if self.code is None:
            self.finish(code, details)
        else:
            self._settle()
        if self.serving is not None:
            self.serving.cancel()

    def cancel(self, details: str = LOCALLY_CANCELLED) -> bool:
        """Ends the call on the caller's side. Returns False if it had already ended."""
        if self.settled:
            return False
        self.locally_cancelled = True
        self.break_off(grpc.StatusCode.CANCELLED, details)
        return True

    def _expire(self) -> None:
        self.break_off(grpc.StatusCode.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)

    def _settle(self) -> None:
        if self.settled:
            return
        self.settled = True
        if self._waiters:
            self._wake()
        for callback in self._callbacks:
            callback()

    def when_settled(self, callback: Callable[[], object]) -> None:
        """Runs the callback once the call is settled; at once if it is."""
        if self.settled:
            callback()
        else:
            self._callbacks.append(callback)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Returns once the condition holds, as a result of `begin` or of the call's end."""
        while not reached():
            waiter = self.loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
