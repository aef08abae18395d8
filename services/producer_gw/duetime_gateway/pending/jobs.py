"""Long jobs on all shards at once, page by page.

CancelMatching, RetryNow and DiscardRetries are such jobs.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError
from duetime_core.limits.seats import Seats

from duetime_gateway.answers import raise_first
from duetime_gateway.errors import stopping
from duetime_gateway.shards.shard import Shard

PROGRESS_MS = 1_000
# Concurrent jobs of one kind per gateway: each keeps all shards busy.
JOBS_MAX = 16


@dataclass(slots=True)
class Part:
    """A shard's part of a job."""

    shard: Shard
    token: bytes = b""
    done: bool = False
    error: DueTimeError | None = None

    def turn(self, next_page_token: bytes) -> None:
        """Moves to the next page."""
        self.token = next_page_token
        self.done = not next_page_token


P = TypeVar("P", bound=Part)
T = TypeVar("T")


class ShardJobs:
    """The jobs of one kind."""

    def __init__(self, clock: Clock, what: str, *, reason: str) -> None:
        """`what`, `reason`: see Seats."""
        self._clock = clock
        self._seats = Seats(JOBS_MAX, what, reason=reason)
        self._ending = False

    def end(self) -> None:
        """Ends all jobs after their current pages; a repeated call continues."""
        self._ending = True

    async def run(
        self,
        caller: str,
        parts: Sequence[P],
        step: Callable[[P], Awaitable[None]],
        progress_of: Callable[[Sequence[P]], T],
    ) -> AsyncGenerator[T, None]:
        """Yields the progress, about once a second and at the end. `step`: one page of a part.

        Raises:
            DueTimeError: too many jobs; or a shard's error, once the others are done.
        """
        with self._seats.seat(caller):
            told_ms = self._clock.monotonic_ms()
            while left := [part for part in parts if not part.done and part.error is None]:
                if self._ending:
                    yield progress_of(parts)
                    raise stopping()
                raise_first(await asyncio.gather(*(_advance(part, step) for part in left), return_exceptions=True))
                now_ms = self._clock.monotonic_ms()
                if now_ms - told_ms >= PROGRESS_MS:
                    told_ms = now_ms
                    yield progress_of(parts)
            yield progress_of(parts)
            raise_first([part.error for part in parts])


async def _advance(part: P, step: Callable[[P], Awaitable[None]]) -> None:
    """Runs one page; an error ends this part."""
    try:
        await step(part)
    except DueTimeError as error:
        part.error = error
