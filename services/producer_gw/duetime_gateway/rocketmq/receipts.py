"""The calls of consumers with handles: acknowledgements, changes of leases, and messages given up."""

import asyncio

from duetime.v1 import consumer_pb2
from duetime_core.access.callers import sharer
from duetime_core.clock import Clock
from duetime_core.metadata import GroupTable
from duetime_core.rpc.calls import refused
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing
from duetime_format import limits
from duetime_format.levels import DelayLevels

from duetime_gateway.consuming.leases import LeaseRouter
from duetime_gateway.queries import Extension
from duetime_gateway.rocketmq import codes, settings
from duetime_gateway.rocketmq.acking import Acks
from duetime_gateway.rocketmq.callers import ClientCall
from duetime_gateway.rocketmq.handles import Handle, parse_handle
from duetime_gateway.rocketmq.moments import duration_ms
from duetime_gateway.rocketmq.names import stored
from duetime_gateway.rocketmq.renewing import Renewals
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from duetime_gateway.rules import check_group
from duetime_gateway.shards.retry import RetryClient

log = sparing()

# A suspended message is returned by this gateway; if the gateway dies, its lease expires so much later, as an attempt.
SUSPEND_REST_MS = 2_000
# Error type of a message that its client gave up.
FORWARDED = "ForwardedToDeadLetterQueue"


class HandleCalls:
    """Converts these calls into the gateway's own terms."""

    def __init__(
        self,
        leases: LeaseRouter,
        acks: Acks,
        renewals: Renewals,
        groups: GroupTable,
        retry: RetryClient,
        levels: DelayLevels,
        clock: Clock,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`tasks`: runs returns of suspended messages."""
        self._leases = leases
        self._acks = acks
        self._renewals = renewals
        self._groups = groups
        self._retry = retry
        self._levels = levels
        self._clock = clock
        self._tasks = tasks

    async def ack(self, request: pb.AckMessageRequest, call: ClientCall) -> pb.AckMessageResponse:
        if not request.entries:
            raise codes.RocketMQError(pb.BAD_REQUEST, "entries: is empty")
        statuses: list[pb.Status | None] = []
        receipts: list[bytes] = []
        for entry in request.entries:
            try:
                receipts.append(parse_handle(entry.receipt_handle).receipt)
                statuses.append(None)
            except codes.RocketMQError as error:
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
        self, request: pb.ChangeInvisibleDurationRequest, call: ClientCall
    ) -> pb.ChangeInvisibleDurationResponse:
        handle, group = parse_handle(request.receipt_handle), stored(request.group)
        check_group("group", group)
        length_ms = duration_ms(request.invisible_duration)
        if not 0 <= length_ms <= limits.INVISIBLE_MS_MAX:
            raise no_length(length_ms, 0)
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
        retry = settings.POLICY if known is None else known.retry
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
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, call: ClientCall
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


def no_length(length_ms: int, least_ms: int) -> codes.RocketMQError:
    """The error of a lease that is too short or too long."""
    bounds = f"{least_ms} and {limits.INVISIBLE_MS_MAX} ms (12 h)"
    return codes.RocketMQError(pb.ILLEGAL_INVISIBLE_TIME, f"invisible_duration: {length_ms} ms is not within {bounds}")
