"""Checks of open transactions: any live producer of the topic gets them, on any gateway.

RocketMQ 5's producers have no group: the topic's name serves as one. A gateway watches a topic while it has streams of
producers that announced it or sent half messages to it. One watcher serves them all; they get checks in turn.
"""

import asyncio
from collections.abc import Iterable
from functools import partial

from duetime_core.clock import Clock
from duetime_core.errors import NotFound
from duetime_core.telemetry.defects import outcome

from duetime_gateway.rocketmq.clients import Client
from duetime_gateway.rocketmq.names import shown
from duetime_gateway.rocketmq.outbound import half
from duetime_gateway.rocketmq.sessions import Session
from duetime_gateway.rocketmq.transactions import TransactionIds
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from duetime_gateway.transactions.checks import CheckWatcher, TransactionQuestion
from duetime_gateway.transactions.producers import ProducerGroups
from duetime_gateway.transactions.watching import WatcherRegistry

# Retry intervals: for a topic without transactions, and after watching failed.
UNKNOWN_MS, FAILED_MS = 5_000, 2_000
# Timeout for writing a check to a producer; then another one gets it.
TOLD_MS = 3_000
# Watched topics per stream.
TOPICS_MAX = 256


class _UnheardCheck(Exception):
    """The check was written to no producer."""


class _Topic:
    """The producers of one topic, and their watcher."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Producers in order of their turns.
        self.sessions: dict[Session, None] = {}
        self.watcher: CheckWatcher | None = None
        # Done when a producer has sent a half message, or all have left.
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.changed.done():
            self.changed.set_result(None)


class CheckForwarder:
    """All watched topics."""

    def __init__(
        self,
        watching: WatcherRegistry,
        groups: ProducerGroups,
        ids: TransactionIds,
        clock: Clock,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._watching = watching
        self._ids = ids
        self._groups = groups
        self._clock = clock
        self._tasks = tasks
        self._topics: dict[str, _Topic] = {}
        self._of_session: dict[Session, set[str]] = {}
        self._of_client: dict[Client, set[Session]] = {}

    def enter(self, session: Session) -> None:
        """Adds a stream."""
        session.client.stream_count += 1
        self._of_client.setdefault(session.client, set()).add(session)
        self._of_session[session] = set()

    def prepared(self, client: Client, topic: str) -> None:
        """Notes that a client has sent a half message."""
        for session in self._of_client.get(client, ()):
            self.announce(session, [topic], has_transactions=True)

    def goes(self, client: Client) -> None:
        """Notes that a client has announced its end: checks go to others, while its streams remain."""
        for session in self._of_client.get(client, ()):
            self._drop(session)

    def leave(self, session: Session) -> None:
        """Removes a stream; its checks go to others."""
        self._drop(session)
        del self._of_session[session]
        client = session.client
        client.stream_count -= 1
        self._of_client[client].discard(session)
        if not self._of_client[client]:
            del self._of_client[client]

    def announce(self, session: Session, topics: Iterable[str], *, has_transactions: bool = False) -> None:
        """Subscribes a producer's stream to checks of these topics. `has_transactions`: it has just prepared one."""
        if session.ended:
            return
        mine = self._of_session[session]
        for name in topics:
            topic = self._topics.get(name)
            if topic is None:
                if len(mine) >= TOPICS_MAX:
                    return
                topic = self._topics[name] = _Topic(name)
                self._tasks.create_task(self._watch(topic))
            if name not in mine and len(mine) < TOPICS_MAX:
                mine.add(name)
                topic.sessions[session] = None
            if has_transactions:
                topic.wake()

    def _drop(self, session: Session) -> None:
        mine = self._of_session[session]
        while mine:
            name = mine.pop()
            topic = self._topics[name]
            del topic.sessions[session]
            if not topic.sessions:
                del self._topics[name]
                topic.wake()
                if topic.watcher is not None:
                    topic.watcher.end()

    async def _watch(self, topic: _Topic) -> None:
        """Watches until the topic has no stream."""
        desk = self._watching.desk
        while topic.sessions and not desk.ending:
            if topic.changed.done():
                topic.changed = asyncio.get_running_loop().create_future()
            watcher, error = await outcome(lambda: self._join(topic), "join")
            if watcher is not None:
                _, error = await outcome(lambda one=watcher: self._serve(topic, one), "checks")  # type: ignore[misc]
            if isinstance(error, NotFound):
                await self._until_known(topic)
            elif error is not None:
                await self._pause(topic, FAILED_MS)

    async def _join(self, topic: _Topic) -> CheckWatcher:
        """Raises: DueTimeError."""
        # Several callers share the watcher; the first one's seat counts.
        first = next(iter(topic.sessions))
        return await self._watching.join(topic.name, first.caller)

    async def _until_known(self, topic: _Topic) -> None:
        """Waits until the topic has transactions; most have none. Asks the database, together with other questions, but
        no shard."""
        while topic.sessions and not self._watching.desk.ending:
            caller = next(iter(topic.sessions)).caller
            if await self._pause(topic, UNKNOWN_MS):
                return
            is_known, _ = await outcome(partial(self._groups.find, topic.name, caller, UNKNOWN_MS), "find")
            if is_known:
                return

    async def _pause(self, topic: _Topic, length_ms: int) -> bool:
        """Whether a change came within this time."""
        return await self._clock.wait_for(topic.changed, length_ms)

    async def _serve(self, topic: _Topic, watcher: CheckWatcher) -> None:
        desk = self._watching.desk
        topic.watcher = watcher
        try:
            if not topic.sessions:
                return
            while checks := await desk.fetch(watcher):
                for check in checks:
                    try:
                        with desk.handing([check]):
                            await self._hand(topic, check)
                    except _UnheardCheck:
                        continue
        finally:
            topic.watcher = None
            desk.leave(watcher)

    async def _hand(self, topic: _Topic, check: TransactionQuestion) -> None:
        """Raises: _UnheardCheck."""
        self._ids.note(topic.name, check.name)
        for session in list(topic.sessions):
            if session not in topic.sessions:
                continue
            del topic.sessions[session]
            topic.sessions[session] = None
            message = half(check.found, shown(topic.name, session.namespace))
            command = pb.RecoverOrphanedTransactionCommand(message=message, transaction_id=check.name.message_id)
            if await session.tell(pb.TelemetryCommand(recover_orphaned_transaction_command=command), TOLD_MS):
                return
        raise _UnheardCheck
