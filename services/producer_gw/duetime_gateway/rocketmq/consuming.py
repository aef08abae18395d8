"""Receives of consumers: leases as messages with handles."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from duetime.v1 import consumer_pb2
from duetime_core.access.callers import sharer
from duetime_core.errors import NotFound
from duetime_core.limits.room import Room
from duetime_core.limits.seats import Seats
from duetime_core.metadata import GroupTable
from duetime_format import limits
from duetime_format.receipts import by_shard
from duetime_format.view import quickest_split

from duetime_gateway.consuming.admission import check_receive
from duetime_gateway.consuming.leases import LeaseRouter
from duetime_gateway.face.answering import room_for
from duetime_gateway.queries import Encoding, Extension, Receive, Selection
from duetime_gateway.rocketmq import codes, settings
from duetime_gateway.rocketmq.callers import ClientCall
from duetime_gateway.rocketmq.clients import Client
from duetime_gateway.rocketmq.handles import handle_of
from duetime_gateway.rocketmq.lites import LiteSubscriptions
from duetime_gateway.rocketmq.metrics import RocketMQMetrics
from duetime_gateway.rocketmq.moments import duration_ms
from duetime_gateway.rocketmq.names import stored
from duetime_gateway.rocketmq.outbound import DeliveryFields, received
from duetime_gateway.rocketmq.receipts import no_length
from duetime_gateway.rocketmq.renewing import LEASE_MS, Renewals
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from duetime_gateway.routing.places import QueueLocator

BATCH_MAX = 32
# Time before the caller's deadline at which a long poll ends: clients treat a late answer as an error.
POLL_REST_MS = 300


class UnconfirmedLeases:
    """Leases of a receive whose answer may not have reached its client."""

    def __init__(self, leases: LeaseRouter, renewals: Renewals, group: str, receipts: Sequence[bytes]) -> None:
        self._leases = leases
        self._renewals = renewals
        self._group = group
        self.receipts = receipts
        # One message in each.
        self.responses: list[pb.ReceiveMessageResponse] = []

    def give_back(self) -> None:
        """Returns the leases: the answer was not delivered."""
        self._renewals.forget(self.receipts)
        places, _ = by_shard(self.receipts)
        for shard, mine in places.items():
            self._leases.give_back(self._group, shard, [self.receipts[place] for place in mine])


class Consumers:
    """Converts receives into the gateway's own terms."""

    def __init__(
        self,
        leases: LeaseRouter,
        groups: GroupTable,
        places: QueueLocator,
        renewals: Renewals,
        lites: LiteSubscriptions,
        answers: Room,
        metrics: RocketMQMetrics,
        *,
        polls_max: int,
    ) -> None:
        self._leases = leases
        self._groups = groups
        self._places = places
        self._renewals = renewals
        self._lites = lites
        self._answers = answers
        self._polls = Seats(polls_max, "receives are waiting", used=metrics.polls, most=metrics.polls_max)

    async def receive(self, request: pb.ReceiveMessageRequest, call: ClientCall) -> UnconfirmedLeases:
        """Messages for a consumer, as soon as there are any. Raises: DueTimeError."""
        receive = self._receive_of(request, call)
        try:
            answer = await self._leased(request, receive, call)
        except NotFound:
            self._lites.topic_gone(call.client, receive.group, receive.topic)
            raise
        return self._given(request, receive, call.client, answer)

    async def _leased(self, request: pb.ReceiveMessageRequest, receive: Receive, call: ClientCall) -> bytes:
        """The stores' encoded answer. Raises: DueTimeError."""
        await self._places.of(receive.topic)
        await self._take_back(call.client, request, receive.group, call.remaining_ms)
        selection, peer = receive.selection, call.peer
        with self._poll(selection.wait_ms, peer), await room_for(self._answers, peer, selection, call.remaining_ms):
            if self._places.is_lite(receive.topic):
                # Its client may have no subscription yet.
                await self._groups.ensure(receive.group, sharer(peer), settings.POLICY)
                return await self._lites.receive(receive, call)
            return await self._leases.take(receive, call.remaining_ms, peer, settings.POLICY)

    def _receive_of(self, request: pb.ReceiveMessageRequest, call: ClientCall) -> Receive:
        """Raises: DueTimeError: an invalid field."""
        if request.batch_size < 1:
            raise codes.RocketMQError(
                pb.BAD_REQUEST, f"batch_size: {request.batch_size} is not within 1 and {BATCH_MAX}"
            )
        selection = Selection(
            max_count=min(request.batch_size, BATCH_MAX),
            wait_ms=_wait_ms(request, call.remaining_ms),
            encoding=Encoding.RECORDS,
        )
        wanted = request.filter_expression
        if wanted.type == pb.SQL:
            selection.sql = wanted.expression
        elif wanted.type in (pb.TAG, pb.FILTER_TYPE_UNSPECIFIED):
            selection.tags = wanted.expression
        else:
            raise codes.RocketMQError(
                pb.ILLEGAL_FILTER_EXPRESSION, f"filter type: {wanted.type} is not TAG (1) or SQL (2)"
            )
        receive = Receive(stored(request.group), stored(request.message_queue.topic), selection, _invisible_ms(request))
        receive.member = call.client.id[: limits.MEMBER_CHARS_MAX]
        check_receive(receive)
        return receive

    async def _take_back(
        self, client: Client, request: pb.ReceiveMessageRequest, group: str, remaining_ms: float | None
    ) -> None:
        """Returns the leases of the receive that this one repeats: its client did not get them."""
        receipts = client.repeated(request.attempt_id) if request.attempt_id else ()
        if receipts:
            self._renewals.forget(receipts)
            await self._leases.extend(Extension(group, list(receipts), 0, not_attempted=True), remaining_ms)

    def _poll(self, wait_ms: int, peer: str) -> AbstractContextManager[None]:
        """Takes a seat for a waiting receive. Entering raises Overloaded."""
        return self._polls.seat(sharer(peer)) if wait_ms > 0 else nullcontext()

    def _given(
        self, request: pb.ReceiveMessageRequest, receive: Receive, client: Client, answer: bytes
    ) -> UnconfirmedLeases:
        runs = consumer_pb2.ReceiveResponse.FromString(answer).runs
        given = UnconfirmedLeases(
            self._leases, self._renewals, receive.group, [one for run in runs for one in run.receipts]
        )
        try:
            for run in runs:
                records = quickest_split(run.records)
                for data, receipt, attempt in zip(records, run.receipts, run.attempts, strict=True):
                    handle = handle_of(receipt, attempt, is_renewed=request.auto_renew)
                    topic, length_ms = request.message_queue.topic, receive.invisible_ms
                    given.responses.append(received(data, DeliveryFields(topic, run.queue, handle, attempt, length_ms)))
        except BaseException:
            given.give_back()
            raise
        if given.receipts:
            if request.auto_renew:
                self._renewals.add(client, receive.group, given.receipts)
            if request.attempt_id:
                client.attempted(request.attempt_id, given.receipts)
        return given


def _wait_ms(request: pb.ReceiveMessageRequest, remaining_ms: float | None) -> int:
    """Longest wait for the first message: the client's polling time, limited by its deadline.

    Raises:
        Refused: negative.
    """
    wait_ms = limits.WAIT_MS_MAX
    if request.HasField("long_polling_timeout"):
        asked_ms = duration_ms(request.long_polling_timeout)
        if asked_ms < 0:
            raise codes.RocketMQError(pb.ILLEGAL_POLLING_TIME, f"long_polling_timeout: {asked_ms} ms is below 0")
        wait_ms = min(asked_ms, wait_ms)
    if remaining_ms is not None:
        wait_ms = min(wait_ms, int(remaining_ms) - POLL_REST_MS)
    return max(wait_ms, 0)


def _invisible_ms(request: pb.ReceiveMessageRequest) -> int:
    """Raises: Refused: out of range, or missing where the client owns the lease."""
    if request.auto_renew:
        return LEASE_MS
    if not request.HasField("invisible_duration"):
        raise codes.RocketMQError(
            pb.ILLEGAL_INVISIBLE_TIME, "invisible_duration: is missing, and auto_renew is not set"
        )
    length_ms = duration_ms(request.invisible_duration)
    if not limits.INVISIBLE_MS_MIN <= length_ms <= limits.INVISIBLE_MS_MAX:
        raise no_length(length_ms, limits.INVISIBLE_MS_MIN)
    return length_ms
