"""Puts in a stream: each is staged on arrival, and answered once it is durable or rejected.

    requests ──(one task reads)──▶ staged ──(flush)──▶ answered ──▶ the stream's answers

A put makes no task: the flush that makes it durable delivers its answer.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial

from duetime.v1 import store_pb2
from duetime_core.errors import DueTimeError, Unavailable
from duetime_core.telemetry.defects import defect

from duetime_store.writing.flusher import Flusher
from duetime_store.writing.staging import PutOutcome
from duetime_store.writing.store import Store

# Maximum puts of a stream that are staged, or answered and not read by the caller. A gateway has three in flight.
PUTS_UNDER_WAY_MAX = 64

# A request's number and its result.
Answer = tuple[int, PutOutcome | DueTimeError]


class PutStreams:
    """All streams of one store."""

    def __init__(self, store: Store, flusher: Flusher) -> None:
        self._store = store
        self._flusher = flusher
        self._ending = False
        self._readers: set[asyncio.Task[None]] = set()

    def end(self) -> None:
        """Ends each stream once its accepted requests are answered; new streams are rejected."""
        self._ending = True
        for reader in self._readers:
            reader.cancel()

    async def answers(self, requests: AsyncIterator[store_pb2.PutRequest]) -> AsyncGenerator[Answer, None]:
        """The answers to a stream of requests.

        Raises:
            Unavailable: the store stops.
            DueTimeError: a request can't be read.
        """
        if self._ending:
            raise _stopping()
        stream = _PutStream(self._store, self._flusher, requests)
        reader = asyncio.create_task(stream.read())
        self._readers.add(reader)
        try:
            while (answer := await stream.next()) is not None:
                yield answer
        finally:
            self._readers.discard(reader)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


class _PutStream:
    """One stream: its reader stages, and its answers wait for the caller."""

    def __init__(self, store: Store, flusher: Flusher, requests: AsyncIterator[store_pb2.PutRequest]) -> None:
        self._store = store
        self._flusher = flusher
        self._requests = requests
        # The last one may be None: there are no more.
        self._answers: deque[Answer | None] = deque()
        # Staged, and staged or answered but not read by the caller.
        self._staged_count = self._under_way_count = 0
        # The caller waits for an answer, and the reader for room.
        self._answered: asyncio.Future[None] | None = None
        self._freed: asyncio.Future[None] | None = None
        self._is_read = False
        # The reason reading stopped. None: the requests ended.
        self._error: DueTimeError | None = None

    async def next(self) -> Answer | None:
        """The next answer; None: there are no more. Raises: DueTimeError: the reason reading stopped."""
        while not self._answers:
            self._answered = asyncio.get_running_loop().create_future()
            await self._answered
        answer = self._answers.popleft()
        self._under_way_count -= 1
        _wake(self._freed)
        if answer is None and self._error is not None:
            raise self._error
        return answer

    async def read(self) -> None:
        """Stages requests on arrival while there is room. Never raises."""
        try:
            async for request in self._requests:
                self._under_way_count += 1
                self._begin(request)
                while self._under_way_count >= PUTS_UNDER_WAY_MAX:
                    self._freed = asyncio.get_running_loop().create_future()
                    await self._freed
        except asyncio.CancelledError:
            self._error = _stopping()
        except DueTimeError as error:
            self._error = error
        except Exception as error:
            # Raised here, it would be lost with its task.
            self._error = defect(error, "PutStream")
        finally:
            self._is_read = True
            self._end_if_answered()

    def _begin(self, request: store_pb2.PutRequest) -> None:
        try:
            outcome = self._store.put(request.records, request.batches)
        except Exception as error:
            refusal = error if isinstance(error, DueTimeError) else defect(error, "PutStream")
            self._answer((request.number, refusal))
            return
        self._flusher.wake()
        durable = self._store.when_durable()
        if durable is None:
            self._answer((request.number, outcome))
            return
        self._staged_count += 1
        durable.add_done_callback(partial(self._flushed, request.number, outcome))

    def _flushed(self, number: int, outcome: PutOutcome, done: "asyncio.Future[None]") -> None:
        error = _stopping() if done.cancelled() else done.exception()
        assert error is None or isinstance(error, DueTimeError), "flushes fail with errors of the store"
        self._answer((number, error or outcome))
        self._staged_count -= 1
        self._end_if_answered()

    def _end_if_answered(self) -> None:
        if self._is_read and not self._staged_count:
            self._answer(None)

    def _answer(self, answer: Answer | None) -> None:
        self._answers.append(answer)
        _wake(self._answered)


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _stopping() -> Unavailable:
    return Unavailable("the store is stopping", reason="STOPPING")
