"""Telemetry: answers clients' settings, and sends the server's commands."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

from duetime.v1 import consumer_pb2
from duetime_core.access.callers import sharer
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError
from duetime_core.limits.seats import Seats
from duetime_core.metadata import GroupTable
from duetime_format.admission import group_violations
from duetime_format.levels import DelayLevels

from duetime_gateway.access import permit
from duetime_gateway.access.grants import Kind, Right
from duetime_gateway.errors import stopping
from duetime_gateway.rocketmq import codes, settings
from duetime_gateway.rocketmq.callers import ClientCall
from duetime_gateway.rocketmq.checking import CheckForwarder
from duetime_gateway.rocketmq.lites import LiteSubscriptions
from duetime_gateway.rocketmq.metrics import RocketMQMetrics
from duetime_gateway.rocketmq.names import stored
from duetime_gateway.rocketmq.routes import endpoints_of
from duetime_gateway.rocketmq.sessions import Session
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

# Delay of a second copy: the Node client misses settings that come before its last route, and then waits forever.
AGAIN_MS = 1_000


class SettingsAnswerer:
    """Answers clients' settings, and learns their topics and groups from them."""

    def __init__(
        self, groups: GroupTable, checking: CheckForwarder, lites: LiteSubscriptions, levels: DelayLevels, endpoint: str
    ) -> None:
        """`endpoint`: HOST:PORT sent to clients; empty: each client's own."""
        self._groups = groups
        self._checking = checking
        self._lites = lites
        self._levels = levels
        self._endpoint = endpoint

    async def answer(self, asked: pb.Settings, session: Session) -> pb.Settings:
        """Raises: DueTimeError."""
        if asked.client_type not in settings.CLIENT_TYPES:
            text = f"client_type: {asked.client_type} is not supported; use a producer, or a push or simple consumer"
            raise codes.RocketMQError(pb.UNRECOGNIZED_CLIENT_TYPE, text)
        if asked.WhichOneof("pub_sub") is None:
            raise codes.RocketMQError(pb.BAD_REQUEST, "pub_sub: neither publishing nor subscription is set")
        endpoints = endpoints_of(asked.access_point, self._endpoint)
        group = None
        if asked.client_type == pb.PRODUCER:
            self._announce(asked.publishing, session)
        else:
            group = await self._group(asked.subscription, session)
            if asked.client_type in settings.LITE_TYPES:
                self._lites.enter(session)
        retry = settings.POLICY if group is None else group.retry
        return settings.answer(asked, endpoints, retry, self._levels, ordered=group is not None and group.ordered)

    def _announce(self, publishing: pb.Publishing, session: Session) -> None:
        access = permit.current()
        names = [_stored(topic, session) for topic in publishing.topics]
        self._checking.announce(session, [one for one in names if one and access.may(Right.SEND, Kind.GROUP, one)])

    async def _group(self, subscription: pb.Subscription, session: Session) -> consumer_pb2.Group | None:
        """The group; None: not created yet, or the database does not answer."""
        name = _stored(subscription.group, session)
        if violations := list(group_violations("group", name)):
            raise codes.RocketMQError(pb.ILLEGAL_CONSUMER_GROUP, f"group: {violations[0].description}")
        # A client starts with the defaults if the database fails.
        with suppress(DueTimeError):
            return await self._groups.find(name)
        return None


class Telemetry:
    """All streams of Telemetry."""

    def __init__(
        self,
        answerer: SettingsAnswerer,
        checking: CheckForwarder,
        lites: LiteSubscriptions,
        clock: Clock,
        metrics: RocketMQMetrics,
        tasks: asyncio.TaskGroup,
        *,
        streams_max: int,
    ) -> None:
        """`tasks`: runs the readers of streams."""
        self._answerer = answerer
        self._checking = checking
        self._lites = lites
        self._clock = clock
        self._metrics = metrics
        self._tasks = tasks
        self._seats = Seats(
            streams_max,
            "client streams are open",
            reason="STREAMS_EXHAUSTED",
            used=metrics.streams,
            most=metrics.streams_max,
        )
        self._sessions: set[Session] = set()
        self._ending = False

    def end(self) -> None:
        """Ends streams: clients reopen them elsewhere."""
        self._ending = True
        for session in self._sessions:
            session.end()

    async def serve(
        self, requests: AsyncIterator[pb.TelemetryCommand], call: ClientCall
    ) -> AsyncGenerator[pb.TelemetryCommand, None]:
        """Raises: DueTimeError: too many streams, in total or of this caller, or the gateway is stopping."""
        if self._ending:
            raise stopping()
        caller = sharer(call.peer)
        self._seats.take(caller)
        session = Session(call.client, call.namespace, self._clock, caller)
        self._sessions.add(session)
        self._checking.enter(session)
        reader = self._tasks.create_task(self._read(requests, session))
        try:
            async for command in session.commands():
                yield command
        finally:
            reader.cancel()
            session.end()
            self._checking.leave(session)
            self._lites.leave(session)
            self._sessions.discard(session)
            self._seats.give(caller)

    async def _read(self, requests: "AsyncIterator[pb.TelemetryCommand]", session: Session) -> None:
        try:
            async for request in requests:
                if request.WhichOneof("command") == "settings":
                    await self._take(request.settings, session)
        except Exception as error:
            # The stream raises it again and ends with a status; raised here, it would end the process.
            await session.finish(error)
        else:
            await session.finish()

    async def _take(self, asked: pb.Settings, session: Session) -> None:
        try:
            answer = await self._answerer.answer(asked, session)
        except DueTimeError as error:
            self._metrics.answered("Telemetry", codes.code_of(error))
            # Send only the status, so that a starting client fails at once.
            await session.put(pb.TelemetryCommand(status=codes.status_of(error)))
            return
        self._metrics.answered("Telemetry", pb.OK)
        command = pb.TelemetryCommand(status=codes.ok(), settings=answer)
        await session.put(command)
        session.put_again(command, AGAIN_MS)


def _stored(resource: pb.Resource, session: Session) -> str:
    named = pb.Resource(resource_namespace=resource.resource_namespace or session.namespace, name=resource.name)
    return stored(named)
