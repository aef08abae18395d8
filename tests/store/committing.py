"""A store node whose commits take time (delayed.py), and a client of it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from duetime.v1 import pending_pb2, store_pb2

from tests.store.conftest import restored
from tests.store.delayed import Delayed
from tests.store.groups.running import Consuming

T = TypeVar("T")
DEADLINE_S = 60


class Committing(Consuming):
    """Calls of it wait until the test commits."""

    committer: Delayed

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(root, **settings)
        self.committer = Delayed()

    async def __aenter__(self) -> "Committing":
        self.committer.is_free = True
        await super().__aenter__()
        self.committer.is_free = False
        return self

    async def begin(self) -> "Committing":
        """Starts the node, for a test that stops it."""
        await self.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.committer.release()
        await super().__aexit__()

    async def until(self, happened: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not happened():
                await self.stub.Describe(store_pb2.DescribeRequest())

    async def held(self, call: Awaitable[T], groups: int = 1) -> "asyncio.Task[T]":
        """The call, once it waits for the commit of its group; `groups`: those that wait in all."""
        task = asyncio.ensure_future(call)
        store = self.node.store
        await self.until(lambda: task.done() or (len(self.committer.waiting) >= groups and not store.staged.count))
        assert not task.done(), "answered before its commit"
        return task  # type: ignore[return-value]

    async def asking(self, call: Awaitable[T]) -> "asyncio.Task[T]":
        """A call, once it is answered or waits for a commit, of its own or of others."""
        before, task = self._waiting_count, asyncio.ensure_future(call)
        await self.until(lambda: task.done() or self._waiting_count > before)
        return task  # type: ignore[return-value]

    @property
    def _waiting_count(self) -> int:
        store = self.node.store
        waiters = [store.journal.waiters, store._publish_waiters]
        waiters += [one for batch in store.unpublished for one in (batch.done, batch.event_waiters)]
        return sum(map(len, waiters))

    async def committed(self, call: Awaitable[T]) -> T:
        """The answer of a call whose groups are committed as they come."""
        task = asyncio.ensure_future(call)

        def commit() -> bool:
            self.committer.commit()
            return task.done()

        await self.until(commit)
        return await task

    async def backlog(self) -> int:
        request = pending_pb2.BacklogRequest(topic="orders", all_lanes_together=True)
        return (await self.stub.Backlog(request, timeout=DEADLINE_S)).pending_count

    async def listed(self) -> list[str]:
        page = await self.stub.ListPending(pending_pb2.ListPendingRequest(max_count=100), timeout=DEADLINE_S)
        return [one.message.id for one in page.messages]

    async def cancel(self, message_id: str, lane: int = 1, entry: int = 0) -> int:
        ref = pending_pb2.PendingRef(message_id=message_id, topic="orders", lane=lane, entry=entry)
        answer = await self.stub.Cancel(pending_pb2.CancelRequest(messages=[ref]), timeout=DEADLINE_S)
        return answer.results[0].status

    async def restore(self, lane: int, first: int, count: int) -> store_pb2.RestoreResponse:
        return await self.put_entries(restored(self.node.store, lane, first, count), lane=lane, first_entry=first)

    async def max_offset(self) -> int:
        return (await self.pull()).max_offset

    async def checkpoint(self) -> bool:
        return await self.node.parts.checkpointer.write()
