"""The calls of consumers: leases as messages with handles, and their ends."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from duetime.v1 import consumer_pb2
from duetime_core.access.callers import sharer
from duetime_core.clock import Clock
from duetime_core.errors import AlreadyExists, NotFound
from duetime_core.limits.room import Room
from duetime_core.limits.seats import Seats
from duetime_core.metadata import Groups
from duetime_core.rpc.calls import refused
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing
from duetime_format import limits
from duetime_format.levels import DelayLevels
from duetime_format.receipts import by_shard
from duetime_format.view import quickest_split

from duetime_gateway.consuming.admission import check_receive
from duetime_gateway.consuming.leases import Leases
from duetime_gateway.face.answering import room_for
from duetime_gateway.queries import Encoding, Extension, Receive, Selection
from duetime_gateway.rocketmq import codes, settings
from duetime_gateway.rocketmq.acking import Acks
from duetime_gateway.rocketmq.callers import Call
from duetime_gateway.rocketmq.clients import Client
from duetime_gateway.rocketmq.handles import Handle, handle_of, parse_handle
from duetime_gateway.rocketmq.lites import LiteSubscriptions
from duetime_gateway.rocketmq.metrics import RocketMQMetrics
from duetime_gateway.rocketmq.moments import duration_ms
from duetime_gateway.rocketmq.names import stored
from duetime_gateway.rocketmq.outbound import Delivery, received
from duetime_gateway.rocketmq.renewing import LEASE_MS, Renewals
from duetime_gateway.rocketmq.routes import assigned, endpoints_of, queues_of
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from duetime_gateway.routing.places import Places
from duetime_gateway.rules import check_group, check_group_reads
from duetime_gateway.shards.retry import RetryClient

log = sparing()

BATCH_MAX = 32
# Time before the caller's deadline at which a long poll ends: clients treat a late answer as an error.
POLL_REST_MS = 300
# A suspended message is returned by this gateway; if the gateway dies, its lease expires so much later, as an attempt.
SUSPEND_REST_MS = 2_000
# Error type of a message that its client gave up.
FORWARDED = "ForwardedToDeadLetterQueue"


class Given:
    """Leases of a receive whose answer may not have reached its client."""

    def __init__(self, leases: Leases, renewals: Renewals, group: str, receipts: Sequence[bytes]) -> None:
        self._leases = leases
        self._renewals = renewals
        self._group = group
        self.receipts = receipts
        self.messages: list[pb.Message] = []

    def give_back(self) -> None:
        """Returns the leases: the answer was not delivered."""
        self._renewals.forget(self.receipts)
        places, _ = by_shard(self.receipts)
        for shard, mine in places.items():
            self._leases.give_back(self._group, shard, [self.receipts[place] for place in mine])


class Consumers:
    """Converts the calls of consumers into the gateway's own terms."""

    def __init__(
        self,
        leases: Leases,
        groups: Groups,
        places: Places,
        retry: RetryClient,
        renewals: Renewals,
        acks: Acks,
        lites: LiteSubscriptions,
        answers: Room,
        levels: DelayLevels,
        clock: Clock,
        metrics: RocketMQMetrics,
        tasks: asyncio.TaskGroup,
        *,
        endpoint: str,
        polls_max: int,
    ) -> None:
        """`tasks`: runs returns of suspended messages."""
        self._leases = leases
        self._groups = groups
        self._places = places
        self._retry = retry
        self._renewals = renewals
        self._acks = acks
        self._lites = lites
        self._answers = answers
        self._levels = levels
        self._clock = clock
        self._metrics = metrics
        self._tasks = tasks
        self._endpoint = endpoint
        self._polls = Seats(polls_max, "receives are waiting", used=metrics.polls, most=metrics.polls_max)

    async def query_assignment(self, request: pb.QueryAssignmentRequest, call: Call) -> pb.QueryAssignmentResponse:
        topic, group = stored(request.topic), stored(request.group)
        check_group_reads("topic", topic)
        check_group("group", group)
        endpoints = endpoints_of(request.endpoints, self._endpoint)
        places, known = await self._places.of(topic), await self._groups.find(group)
        ordered = known is not None and known.ordered and not self._places.is_lite(topic)
        numbers = assigned(len(places), ordered=ordered)
        queues = queues_of(request.topic, numbers, endpoints, ())
        return pb.QueryAssignmentResponse(
            status=codes.ok(), assignments=[pb.Assignment(message_queue=queue) for queue in queues]
        )

    # --- leases -----------------------------------------------------------------------------------------------------

    async def receive(self, request: pb.ReceiveMessageRequest, call: Call) -> Given:
        """Messages for a consumer, as soon as there are any. Raises: DueTimeError."""
        receive = self._receive_of(request, call)
        try:
            answer = await self._leased(request, receive, call)
        except NotFound:
            self._lites.topic_gone(call.client, receive.group, receive.topic)
            raise
        return self._given(request, receive, call.client, answer)

    async def _leased(self, request: pb.ReceiveMessageRequest, receive: Receive, call: Call) -> bytes:
        """The stores' encoded answer. Raises: DueTimeError."""
        await self._ensure(receive, call.peer)
        await self._take_back(call.client, request, receive.group, call.remaining_ms)
        selection, peer = receive.selection, call.peer
        with self._poll(selection.wait_ms, peer), await room_for(self._answers, peer, selection, call.remaining_ms):
            if self._places.is_lite(receive.topic):
                return await self._lites.receive(receive, call)
            return await self._leases.receive(receive, call.remaining_ms, peer)

    def _receive_of(self, request: pb.ReceiveMessageRequest, call: Call) -> Receive:
        """Raises: DueTimeError: an invalid field."""
        if request.batch_size < 1:
            raise codes.Refused(pb.BAD_REQUEST, f"batch_size: {request.batch_size} is not within 1 and {BATCH_MAX}")
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
            raise codes.Refused(pb.ILLEGAL_FILTER_EXPRESSION, f"filter type: {wanted.type} is not TAG (1) or SQL (2)")
        receive = Receive(stored(request.group), stored(request.message_queue.topic), selection, _invisible_ms(request))
        receive.member = call.client.id[: limits.MEMBER_CHARS_MAX]
        check_receive(receive)
        return receive

    async def _ensure(self, receive: Receive, peer: str) -> None:
        """Creates the group if needed, with RocketMQ's retry policy. Raises: DueTimeError: no such topic."""
        await self._places.of(receive.topic)
        if await self._groups.find(receive.group) is None:
            made = consumer_pb2.Group(name=receive.group, retry=settings.policy())
            try:
                await self._groups.create(made, sharer(peer))
            except AlreadyExists:
                # Another caller has just created it.
                return

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

    def _given(self, request: pb.ReceiveMessageRequest, receive: Receive, client: Client, answer: bytes) -> Given:
        runs = consumer_pb2.ReceiveResponse.FromString(answer).runs
        given = Given(self._leases, self._renewals, receive.group, [one for run in runs for one in run.receipts])
        try:
            for run in runs:
                records = quickest_split(run.records)
                for data, receipt, attempt in zip(records, run.receipts, run.attempts, strict=True):
                    handle = handle_of(receipt, attempt, is_renewed=request.auto_renew)
                    topic, length_ms = request.message_queue.topic, receive.invisible_ms
                    given.messages.append(received(data, Delivery(topic, run.queue, handle, attempt, length_ms)))
        except BaseException:
            given.give_back()
            raise
        if given.receipts:
            if request.auto_renew:
                self._renewals.add(client, receive.group, given.receipts)
            if request.attempt_id:
                client.attempted(request.attempt_id, given.receipts)
        return given

    async def ack(self, request: pb.AckMessageRequest, call: Call) -> pb.AckMessageResponse:
        if not request.entries:
            raise codes.Refused(pb.BAD_REQUEST, "entries: is empty")
        statuses: list[pb.Status | None] = []
        receipts: list[bytes] = []
        for entry in request.entries:
            try:
                receipts.append(parse_handle(entry.receipt_handle).receipt)
                statuses.append(None)
            except codes.Refused as error:
                statuses.append(codes.status_of(error))
        group = stored(request.group)
        check_group("group", group)
        answer = await self._acks.ack(group, receipts, call.remaining_ms) if receipts else ()
        self._renewals.forget(receipts)
        found = iter(answer or [0] * len(receipts))
        told = [one if one is not None else codes.of_receipt(next(found)) for one in statuses]
        response = pb.AckMessageResponse(status=codes.together(told))
        for entry, status in zip(request.entries, told, strict=True):
            response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
        return response

    async def change(
        self, request: pb.ChangeInvisibleDurationRequest, call: Call
    ) -> pb.ChangeInvisibleDurationResponse:
        handle, group = parse_handle(request.receipt_handle), stored(request.group)
        check_group("group", group)
        length_ms = duration_ms(request.invisible_duration)
        if not 0 <= length_ms <= limits.INVISIBLE_MS_MAX:
            raise _no_length(length_ms, 0)
        length_ms = max(length_ms, limits.INVISIBLE_MS_MIN, await self._backoff_ms(handle, group))
        rest_ms = SUSPEND_REST_MS if request.suspend else 0
        lease_ms = min(length_ms + rest_ms, limits.INVISIBLE_MS_MAX)
        self._renewals.forget([handle.receipt])
        statuses = await self._leases.extend(Extension(group, [handle.receipt], lease_ms), call.remaining_ms)
        status = codes.of_receipt(statuses[0] if statuses else 0)
        if status.code == pb.OK and request.suspend:
            self._clock.call_later(length_ms, lambda: self._resume(group, handle.receipt))
        return pb.ChangeInvisibleDurationResponse(status=status, receipt_handle=request.receipt_handle)

    async def _backoff_ms(self, handle: Handle, group: str) -> int:
        """Shortest wait of a push consumer's message: some clients ask for 0, an immediate redelivery."""
        if not handle.is_renewed:
            return 0
        known = await self._groups.find(group)
        retry = settings.policy() if known is None else known.retry
        return settings.delay_after(handle.attempt, retry, self._levels)

    def _resume(self, group: str, receipt: bytes) -> None:
        """Returns a suspended message without counting an attempt."""

        async def resume() -> None:
            extension = Extension(group, [receipt], 0, not_attempted=True)
            _, error = await outcome(lambda: self._leases.extend(extension, None), "resume")
            if error is not None:
                log.warning("cannot return a suspended message", group=group, why=error.text)

        self._tasks.create_task(resume())

    async def forward(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, call: Call
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        handle, group = parse_handle(request.receipt_handle), stored(request.group)
        check_group("group", group)
        text = f"given up by its client after delivery {request.delivery_attempt} of {request.max_delivery_attempts}"
        error = consumer_pb2.HandlerError(type=FORWARDED, message=text)
        nack = consumer_pb2.Nack(receipt=handle.receipt, reject=True, error=error)
        data = consumer_pb2.NackRequest(group=group, nacks=[nack]).SerializeToString()
        answer = await self._retry.forward("Nack", data, call.remaining_ms, sharer(call.peer))
        result = consumer_pb2.NackResponse.FromString(answer).results[0]
        if result.HasField("fault"):
            raise refused(result.fault)
        call.stored_bytes = result.stored_bytes
        self._renewals.forget([handle.receipt])
        return pb.ForwardMessageToDeadLetterQueueResponse(status=codes.of_receipt(result.status))


def _wait_ms(request: pb.ReceiveMessageRequest, remaining_ms: float | None) -> int:
    """Longest wait for the first message: the client's polling time, limited by its deadline.

    Raises:
        Refused: negative.
    """
    wait_ms = limits.WAIT_MS_MAX
    if request.HasField("long_polling_timeout"):
        asked_ms = duration_ms(request.long_polling_timeout)
        if asked_ms < 0:
            raise codes.Refused(pb.ILLEGAL_POLLING_TIME, f"long_polling_timeout: {asked_ms} ms is below 0")
        wait_ms = min(asked_ms, wait_ms)
    if remaining_ms is not None:
        wait_ms = min(wait_ms, int(remaining_ms) - POLL_REST_MS)
    return max(wait_ms, 0)


def _invisible_ms(request: pb.ReceiveMessageRequest) -> int:
    """Raises: Refused: out of range, or missing where the client owns the lease."""
    if request.auto_renew:
        return LEASE_MS
    if not request.HasField("invisible_duration"):
        raise codes.Refused(pb.ILLEGAL_INVISIBLE_TIME, "invisible_duration: is missing, and auto_renew is not set")
    length_ms = duration_ms(request.invisible_duration)
    if not limits.INVISIBLE_MS_MIN <= length_ms <= limits.INVISIBLE_MS_MAX:
        raise _no_length(length_ms, limits.INVISIBLE_MS_MIN)
    return length_ms


def _no_length(length_ms: int, least_ms: int) -> codes.Refused:
    bounds = f"{least_ms} and {limits.INVISIBLE_MS_MAX} ms (12 h)"
    return codes.Refused(pb.ILLEGAL_INVISIBLE_TIME, f"invisible_duration: {length_ms} ms is not within {bounds}")
