"""Lite topics to which clients subscribe.

    SyncLiteSubscription ──▶ the client's lite topics, here alone ──▶ each of its receives names them to the stores

A client sends its whole set every 30 s. So another gateway, or this one after a restart, knows it by then.
"""

import asyncio
from functools import partial
from typing import Any, NamedTuple

from duetime_core.access.callers import sharer
from duetime_core.clock import Clock
from duetime_core.limits.seats import Seats
from duetime_core.telemetry.defects import outcome
from duetime_format.limits import LITE_SUBSCRIPTIONS_MAX

from duetime_gateway.consuming.leases import LeaseRouter
from duetime_gateway.queries import Receive
from duetime_gateway.rocketmq import codes
from duetime_gateway.rocketmq.callers import ClientCall
from duetime_gateway.rocketmq.clients import Client
from duetime_gateway.rocketmq.metrics import RocketMQMetrics
from duetime_gateway.rocketmq.names import check_lite_topic, stored
from duetime_gateway.rocketmq.sessions import Session
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.rules import check_group, check_group_reads


class LiteBinding(NamedTuple):
    """A client's group and the parent of its lite topics."""

    client: Client
    group: str
    topic: str


class ClientLiteTopics:
    """The lite topics of a client, and the seats that they take."""

    __slots__ = ("caller", "changed", "names")

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.names: dict[str, None] = {}
        # Done when the names change; None: nobody waits.
        self.changed: asyncio.Future[None] | None = None

    def wait(self) -> "asyncio.Future[None]":
        if self.changed is None or self.changed.done():
            self.changed = asyncio.get_running_loop().create_future()
        return self.changed


class LiteSubscriptions:
    """All subscriptions of clients at this gateway."""

    def __init__(
        self,
        leases: LeaseRouter,
        places: QueueLocator,
        clock: Clock,
        metrics: RocketMQMetrics,
        tasks: asyncio.TaskGroup,
        *,
        subscriptions_max: int,
    ) -> None:
        self._leases = leases
        self._places = places
        self._clock = clock
        self._tasks = tasks
        self._seats = Seats(
            subscriptions_max,
            "lite topics are subscribed to",
            reason="LITE_SUBSCRIPTIONS_EXHAUSTED",
            used=metrics.lites,
            most=metrics.lites_max,
        )
        self._subscribed: dict[LiteBinding, ClientLiteTopics] = {}
        self._of_client: dict[Client, list[LiteBinding]] = {}
        self._sessions: dict[Client, set[Session]] = {}

    # --- subscriptions ----------------------------------------------------------------------------------------------

    async def sync(self, request: pb.SyncLiteSubscriptionRequest, call: ClientCall) -> pb.SyncLiteSubscriptionResponse:
        """Raises: DueTimeError."""
        bound = LiteBinding(call.client, stored(request.group), stored(request.topic))
        check_group("group", bound.group)
        check_group_reads("topic", bound.topic)
        if request.HasField("offset_option") and request.offset_option != pb.OffsetOption(policy=pb.OffsetOption.LAST):
            text = "offset_option: a subscription continues at the group's offset, LAST; others are not supported"
            raise codes.RocketMQError(pb.UNSUPPORTED, text)
        for name in request.lite_topic_set:
            check_lite_topic(name)
        await self._places.of(bound.topic)
        if not self._places.is_lite(bound.topic):
            raise codes.RocketMQError(pb.ILLEGAL_TOPIC, f"topic: {bound.topic} is not of type lite")
        self._change(bound, request, sharer(call.peer))
        return pb.SyncLiteSubscriptionResponse(status=codes.ok())

    def _change(self, bound: LiteBinding, request: pb.SyncLiteSubscriptionRequest, caller: str) -> None:
        """Raises: Refused, Overloaded: too many; nothing is changed."""
        known = self._subscribed.get(bound)
        names: dict[str, None] = {} if known is None else dict(known.names)
        asked = dict.fromkeys(request.lite_topic_set)
        if request.action == pb.PARTIAL_ADD:
            names |= asked
        elif request.action == pb.PARTIAL_REMOVE:
            names = {name: None for name in names if name not in asked}
        elif request.action in (pb.COMPLETE_ADD, pb.COMPLETE_REMOVE):
            names = asked if request.action == pb.COMPLETE_ADD else {}
        else:
            raise codes.RocketMQError(pb.BAD_REQUEST, f"action: {request.action} is not known")
        before = 0 if known is None else len(known.names)
        others = sum(len(self._subscribed[one].names) for one in self._of_client.get(bound.client, ()) if one != bound)
        if len(names) > before and others + len(names) > LITE_SUBSCRIPTIONS_MAX:
            text = (
                f"lite_topic_set: {others + len(names)} lite topics exceed a client's limit, {LITE_SUBSCRIPTIONS_MAX}"
            )
            raise codes.RocketMQError(pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, text)
        self._put(bound, names, caller)

    def _put(self, bound: LiteBinding, names: dict[str, None], caller: str) -> None:
        found = self._subscribed.get(bound)
        if found is None:
            found = ClientLiteTopics(caller)
        more = len(names) - len(found.names)
        if more > 0:
            self._seats.take(found.caller, more)
        elif more < 0:
            self._seats.give(found.caller, -more)
        if bound not in self._subscribed:
            self._subscribed[bound] = found
            self._of_client.setdefault(bound.client, []).append(bound)
        if names.keys() != found.names.keys():
            found.names = names
            if found.changed is not None and not found.changed.done():
                found.changed.set_result(None)

    def gone(self, client: Client) -> None:
        """Ends the subscriptions of a client that is gone, or silent for long."""
        for bound in self._of_client.pop(client, ()):
            found = self._subscribed.pop(bound)
            self._seats.give(found.caller, len(found.names))

    # --- receives ---------------------------------------------------------------------------------------------------

    async def receive(self, receive: Receive, call: ClientCall) -> bytes:
        """The stores' encoded answer for the client's lite topics, also for those that it adds in the meantime.

        Raises:
            DueTimeError: see `LeaseRouter.receive`.
        """
        bound, clock = LiteBinding(call.client, receive.group, receive.topic), self._clock
        if bound not in self._subscribed:
            self._put(bound, {}, sharer(call.peer))
        subscribed, selection = self._subscribed[bound], receive.selection
        give_up_ms = clock.monotonic_ms() + selection.wait_ms
        while True:
            selection.wait_ms = max(int(give_up_ms - clock.monotonic_ms()), 0)
            changed = subscribed.wait()
            if not subscribed.names:
                if not selection.wait_ms or not await clock.wait_for(changed, selection.wait_ms):
                    return b""
                continue
            receive.lite_topics = tuple(subscribed.names)
            answer, is_changed = await self._until(changed, receive, call)
            if not is_changed:
                return answer

    async def _until(self, changed: "asyncio.Future[None]", receive: Receive, call: ClientCall) -> tuple[bytes, bool]:
        """(the answer, False), or (nothing, True) if the subscriptions change first. Raises: DueTimeError."""
        work = partial(self._leases.receive, receive, call.remaining_ms, call.peer)
        task = self._tasks.create_task(outcome(work, "receive of lite topics"))
        first: set[asyncio.Future[Any]] = {task, changed}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return b"", True
        finally:
            # Messages leased meanwhile are returned, uncounted.
            task.cancel()
        answer, error = task.result()
        if error is not None:
            raise error
        assert answer is not None, "a call without an error has an answer"
        return answer, False

    # --- telling clients --------------------------------------------------------------------------------------------

    def enter(self, session: Session) -> None:
        """A stream of Telemetry on which a client learns of ends of its subscriptions."""
        self._sessions.setdefault(session.client, set()).add(session)

    def leave(self, session: Session) -> None:
        found = self._sessions.get(session.client, set())
        found.discard(session)
        if not found:
            self._sessions.pop(session.client, None)

    def topic_gone(self, client: Client, group: str, topic: str) -> None:
        """Ends a client's subscriptions in a deleted topic, and notifies it: a missed notice shows at its next sync."""
        bound = LiteBinding(client, group, topic)
        names = self._subscribed[bound].names if bound in self._subscribed else {}
        for name in names:
            command = pb.NotifyUnsubscribeLiteCommand(lite_topic=name)
            for session in self._sessions.get(bound.client, ()):
                session.put_if_room(pb.TelemetryCommand(notify_unsubscribe_lite_command=command))
        if names:
            self._put(bound, {}, "")
