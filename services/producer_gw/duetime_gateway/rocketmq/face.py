"""`apache.rocketmq.v2.MessagingService` on the gateway's port: serves every call, and answers with codes.

    headers ─▶ client and user ─▶ namespace of its names ─▶ rights ─▶ quotas ─▶ the call ─▶ a status

gRPC's own statuses are for calls rejected before this point, and for defects.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from duetime_core.access.principal import current
from duetime_core.audit.audit import tell_refused_part
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, PermissionDenied, Unauthenticated

from duetime_gateway.access import permit
from duetime_gateway.access.headers import read_headers
from duetime_gateway.access.rules import Rule
from duetime_gateway.face.callers import Context
from duetime_gateway.face.guards import Refused
from duetime_gateway.quotas.charges import Charge
from duetime_gateway.quotas.quotas import Quotas
from duetime_gateway.rocketmq import codes
from duetime_gateway.rocketmq.callers import ClientCall, check_headers, put_namespace
from duetime_gateway.rocketmq.charges import CHARGES
from duetime_gateway.rocketmq.checking import CheckForwarder
from duetime_gateway.rocketmq.clients import Clients
from duetime_gateway.rocketmq.consuming import Consumers
from duetime_gateway.rocketmq.lites import LiteSubscriptions
from duetime_gateway.rocketmq.metrics import RocketMQMetrics
from duetime_gateway.rocketmq.moments import put_ms
from duetime_gateway.rocketmq.permissions import ROCKETMQ_RULES, SERVICE_NAME
from duetime_gateway.rocketmq.queues import QueueCalls
from duetime_gateway.rocketmq.receipts import HandleCalls
from duetime_gateway.rocketmq.renewing import Renewals
from duetime_gateway.rocketmq.sending import Producers
from duetime_gateway.rocketmq.telemetry import Telemetry
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

Behaviour = Callable[[Any, ClientCall], Awaitable[Any]]


@dataclass(frozen=True)
class RocketMQParts:
    """The parts that serve calls; the node runs the renewals."""

    clients: Clients
    producers: Producers
    consumers: Consumers
    handles: HandleCalls
    queues: QueueCalls
    lites: LiteSubscriptions
    renewals: Renewals
    telemetry: Telemetry
    checking: CheckForwarder
    quotas: Quotas
    metrics: RocketMQMetrics
    clock: Clock


class RocketMQFace:
    """All calls of clients."""

    def __init__(self, parts: RocketMQParts) -> None:
        self._parts = parts
        self._refused: Refused | None = None

    def add_to(self, server: grpc.aio.Server, refused: Refused | None) -> None:
        """Registers all calls. `refused`: see `face.face`."""
        self._refused = refused
        handlers = self._handlers()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    def end_streams(self) -> None:
        """Ends streams of Telemetry."""
        self._parts.telemetry.end()

    def _handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        producers, handles, queues = self._parts.producers, self._parts.handles, self._parts.queues
        unary: Mapping[str, Behaviour] = {
            "QueryRoute": queues.query_route,
            "Heartbeat": self._heartbeat,
            "SendMessage": producers.send,
            "QueryAssignment": queues.query_assignment,
            "AckMessage": handles.ack,
            "ChangeInvisibleDuration": handles.change,
            "ForwardMessageToDeadLetterQueue": handles.forward,
            "EndTransaction": producers.end_transaction,
            "NotifyClientTermination": self._terminate,
            "RecallMessage": producers.recall,
            "SyncLiteSubscription": self._parts.lites.sync,
        }
        found: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._unary(name, behaviour), getattr(pb, f"{name}Request").FromString, _encoded
            )
            for name, behaviour in unary.items()
        }
        found["ReceiveMessage"] = grpc.unary_stream_rpc_method_handler(
            self._receive, pb.ReceiveMessageRequest.FromString, _encoded
        )
        found["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry, pb.TelemetryCommand.FromString, _encoded
        )
        return found

    # --- each call --------------------------------------------------------------------------------------------------

    def _enter(self, request: Any, context: Context, rule: Rule) -> ClientCall:
        """Raises: DueTimeError: the call is rejected before it is served."""
        permit.check_admitted()
        headers = read_headers(context.invocation_metadata())
        check_headers(headers)
        call = ClientCall(context, headers, self._parts.clients.called(current().name, headers.client_id))
        if request is not None:
            put_namespace(request, headers.namespace)
            if self._refused is not None:
                try:
                    rule.check(permit.current(), request)
                except PermissionDenied as error:
                    self._refused(error)
                    raise
        if self._parts.quotas.active:
            self._parts.quotas.connect(call.user, call.peer)
        return call

    def _unary(self, name: str, behaviour: Behaviour) -> Any:
        rule, answer_class = ROCKETMQ_RULES[f"/{SERVICE_NAME}/{name}"], getattr(pb, f"{name}Response")
        metrics = self._parts.metrics

        async def serve(request: Any, context: Context) -> Any:
            try:
                call = self._enter(request, context, rule)
                with self._counted(name, request, call):
                    answer = await behaviour(request, call)
            except DueTimeError as error:
                answer = answer_class(status=self._status(error, context))
                if name == "ChangeInvisibleDuration":
                    # Clients keep this handle before they check the status.
                    answer.receipt_handle = request.receipt_handle
            metrics.answered(name, answer.status.code)
            return answer

        return serve

    async def _receive(self, request: pb.ReceiveMessageRequest, context: Context) -> AsyncIterator[Any]:
        rule = ROCKETMQ_RULES[f"/{SERVICE_NAME}/ReceiveMessage"]
        try:
            call = self._enter(request, context, rule)
            with self._stream(call), self._counted("ReceiveMessage", request, call):
                given = await self._parts.consumers.receive(request, call)
        except DueTimeError as error:
            status = self._status(error, context, receives=True)
            self._parts.metrics.answered("ReceiveMessage", status.code)
            yield pb.ReceiveMessageResponse(status=status)
            return
        status = codes.ok() if given.responses else codes.status(pb.MESSAGE_NOT_FOUND, "no message arrived")
        self._parts.metrics.answered("ReceiveMessage", status.code)
        whole = False
        try:
            yield pb.ReceiveMessageResponse(status=status)
            for response in given.responses:
                yield response
            if given.responses:
                last = pb.ReceiveMessageResponse()
                put_ms(last.delivery_timestamp, self._parts.clock.now_ms())
                yield last
            whole = True
        finally:
            if not whole:
                given.give_back()

    async def _telemetry(self, requests: AsyncIterator[pb.TelemetryCommand], context: Context) -> AsyncIterator[Any]:
        # Some clients wait for the answer's headers before their first message.
        await context.send_initial_metadata(())
        try:
            call = self._enter(None, context, ROCKETMQ_RULES[f"/{SERVICE_NAME}/Telemetry"])
            with self._stream(call):
                async with aclosing(self._parts.telemetry.serve(requests, call)) as commands:
                    async for command in commands:
                        yield command
        except DueTimeError as error:
            yield pb.TelemetryCommand(status=self._status(error, context))

    @contextmanager
    def _counted(self, name: str, request: Any, call: ClientCall) -> Iterator[None]:
        """Counts the data stored by a call. Raises: QuotaExceeded."""
        charge, quotas = CHARGES[name], self._parts.quotas
        if not quotas.active or not isinstance(charge, Charge):
            yield
            return
        with charge.counted(quotas, call.user, call.peer, request) as stored:
            yield
            stored([call.stored_bytes])

    @contextmanager
    def _stream(self, call: ClientCall) -> Iterator[None]:
        """Counts a stream or a long poll while it lasts. Raises: QuotaExceeded."""
        if not self._parts.quotas.active:
            yield
            return
        with self._parts.quotas.stream(call.user, call.peer):
            yield

    def _status(self, error: DueTimeError, context: Context, *, receives: bool = False) -> pb.Status:
        if isinstance(error, PermissionDenied | Unauthenticated):
            tell_refused_part("", error)
        remaining = context.time_remaining()
        return codes.status_of(error, None if remaining is None else remaining * 1000.0, receives=receives)

    # --- heartbeats and terminations --------------------------------------------------------------------------------

    async def _heartbeat(self, request: pb.HeartbeatRequest, call: ClientCall) -> pb.HeartbeatResponse:
        return pb.HeartbeatResponse(status=codes.ok())

    async def _terminate(
        self, request: pb.NotifyClientTerminationRequest, call: ClientCall
    ) -> pb.NotifyClientTerminationResponse:
        parts, client = self._parts, call.client
        parts.clients.gone(call.user, client)
        parts.checking.goes(client)
        await parts.renewals.give_back(client, call.remaining_ms)
        return pb.NotifyClientTerminationResponse(status=codes.ok())


def _encoded(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
