"""The gRPC border: servers are made only here, and only here errors become statuses."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, cast

import grpc
from duetime_format.errors import Damaged
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from duetime_core import tracing
from duetime_core.audit.audit import Audit, MethodAudit
from duetime_core.bounds import brief
from duetime_core.callers import Callers, ClusterSecret
from duetime_core.channels import CHANNEL_OPTIONS, MESSAGE_OPTIONS, make_channel
from duetime_core.clock import SystemClock
from duetime_core.decoding import Parse, decode, decoded
from duetime_core.defects import defect
from duetime_core.errors import (
    DOMAIN,
    DataLoss,
    DueTimeError,
    InvalidArgument,
    StartupError,
    Unauthenticated,
    Violation,
)
from duetime_core.gatekeeping import Gatekeeper
from duetime_core.inflight import InFlight
from duetime_core.meter import CallMeter, MethodMeter
from duetime_core.principal import current
from duetime_core.probes import Health, Stuck, never_stuck
from duetime_core.shedding import Shedding
from duetime_core.traffic import COUNTED_BYTES_MIN, Traffic, TrafficLimits
from duetime_core.turns import Turn, Turns
from duetime_core.within.places import Place, place_of
from duetime_core.within.server import Within

__all__ = ["CHANNEL_OPTIONS", "SERVER_OPTIONS", "Server", "code_of", "make_channel", "status_of"]

_Serve = Callable[["grpc.aio.ServicerContext[Any, Any]"], Awaitable[Any]]

# Of the names and values of one call's metadata, 32 bytes more for each.
METADATA_BYTES_MAX = 32 * 1024
PING_INTERVAL_MS_MIN = 5_000
SERVER_OPTIONS = (
    *MESSAGE_OPTIONS,
    # Without SO_REUSEPORT a second process on the same port fails instead of taking half of the calls.
    ("grpc.so_reuseport", 0),
    # A client that pings more often than this, three times in a row, is a flood. The SDK pings after 20 s of silence,
    # and what other clients may set is 10 s at least.
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
    # Also where no call runs: else a ping an hour is too many there, and a peer that is gone is not noticed.
    ("grpc.keepalive_permit_without_calls", 1),
    # Above the first a call may be refused, above the second it is: with RESOURCE_EXHAUSTED, before anybody sees it.
    ("grpc.max_metadata_size", METADATA_BYTES_MAX // 2),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    # With probing, windows grow to some MiB of a request that is not read yet. These hold most batches, in one frame:
    # with windows of 64 KiB and frames of 16, the defaults without probing, a batch cost 8 % more processor time.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 512 * 1024),
    ("grpc.http2.max_frame_size", 1024 * 1024),
    # A client that connects and sends nothing takes a descriptor (for 2 min by default).
    ("grpc.server_handshake_timeout_ms", 5_000),
    # A peer that is gone or hangs is noticed (after 2 h by default): its calls end, and their bytes are free.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
# Limit of health and reflection calls, which no other limit may shut out.
PROBES_IN_FLIGHT_MAX = 1_024
# Streams whose readers give credit for what they are sent.
PROMISED = frozenset({"Subscribe"})
# Streams with an answer for each request, in their order.
ANSWERED = frozenset({"SendStream"})


def status_of(error: DueTimeError) -> grpc.Status:
    """The gRPC status of an error, with ErrorInfo, for bad input BadRequest, and RetryInfo where it says when to come
    back: below 4 KiB in all."""
    short = brief(error)
    details = [error_details_pb2.ErrorInfo(reason=short.reason, domain=DOMAIN)]
    if short.violations:
        fields = [
            error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
            for v in short.violations
        ]
        details.append(error_details_pb2.BadRequest(field_violations=fields))
    if error.retry_after_ms:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(error.retry_after_ms)
        details.append(retry)
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    code = error.status.value[0]
    status: grpc.Status = rpc_status.to_status(status_pb2.Status(code=code, message=short.text, details=packed))
    return status


class _Border:
    """Turns errors into statuses, refuses calls past the limit of calls in flight, and counts their bytes.

    It wraps each method once, when it is first called. A server interceptor would do the same anew for every call.
    For gRPC every method takes a stream of requests, and one with several answers writes them itself: only so do we
    decide when a request is read, and know whether an answer was taken. On the wire there is no difference.
    """

    def __init__(
        self,
        calls_in_flight_max: int,
        meter: CallMeter,
        traffic: Traffic,
        audit: Audit,
        gatekeeper: Gatekeeper | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`gatekeeper`: asked about each call before its request is read. `turns`: for each request once it is read."""
        self._gatekeeper = gatekeeper
        self._turns = turns
        self._in_flight = InFlight(calls_in_flight_max)
        self._meter = meter
        self._traffic = traffic
        self._audit = audit

    def wrap(
        self, method: str, handler: grpc.RpcMethodHandler[Any, Any], refusal: DueTimeError | None = None
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """With a `refusal` the request is not read at all."""
        meter, audited = self._meter.of(method), self._audit.of(method)
        if handler.response_streaming:
            name = _name_of(method)
            serve = self._streamed(handler, audited, promised=name in PROMISED, answered=name in ANSWERED)
            call = self._call(serve, meter, audited, method, refusal, streams=True)
            # Behaviours that write answers themselves give messages, all others bytes.
            serializer = handler.response_serializer if _writes(handler) else None
            return grpc.stream_stream_rpc_method_handler(call, response_serializer=serializer)
        call = self._call(self._single(handler, audited), meter, audited, method, refusal, streams=False)
        return grpc.stream_unary_rpc_method_handler(call)

    def _call(
        self,
        serve: _Serve,
        meter: MethodMeter,
        audited: MethodAudit,
        method: str,
        refusal: DueTimeError | None,
        *,
        streams: bool,
    ) -> Any:
        gatekeeper = self._gatekeeper

        async def call(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            started, code, reason, host = perf_counter(), "CANCELLED", "", ""
            meter.running += 1
            try:
                if refusal is not None:
                    raise refusal
                host = self._in_flight.enter(context.peer())
                if gatekeeper is not None:
                    audited.began(context)
                    await gatekeeper.admit(method, context)
                if tracing.active is None or streams:
                    answer = await serve(context)
                else:
                    with tracing.active.server_span(method, context.invocation_metadata()):
                        answer = await serve(context)
                code = "OK"
                return answer
            except grpc.aio.AbortError:
                code = _code_name(context)
                raise
            except asyncio.CancelledError:
                lost = gatekeeper.ended() if gatekeeper is not None else None
                if lost is None:
                    raise
                code, reason = lost.status.name, lost.reason
                await _refuse(context, lost)
            except Exception as error:
                code, reason = _status_name(error), getattr(error, "reason", "")
                await _end(method, context, error)
            finally:
                if host:
                    self._in_flight.leave(host)
                if gatekeeper is not None:
                    gatekeeper.left()
                meter.running -= 1
                meter.ended(perf_counter() - started, code)
                audited.ended(context, code, reason)

        return call

    def _single(self, handler: grpc.RpcMethodHandler[Any, Any], audited: MethodAudit) -> _Serve:
        """Serves a method with one answer. Keeps no reference to the request."""
        behaviour: Any = handler.unary_unary
        parse = handler.request_deserializer
        compose = handler.response_serializer or _as_is
        reader = _reader(parse, audited)
        traffic, turns = self._traffic, self._turns

        async def serve(context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            connection = traffic.connection(context.peer())
            if turns is None:
                answer = compose(await behaviour(reader(await traffic.read(connection, context)), context))
            else:
                data: Any = await traffic.read(connection, context)
                with await turns.enter(current().name, _size(data)) as turn:
                    request = reader(data)
                    if getattr(request, "wait_ms", 0) > 0:
                        turn.leave_soon()
                    begun = behaviour(request, context)
                    del data, request
                    answer = compose(await begun)
            if len(answer) > COUNTED_BYTES_MIN:
                traffic.answer(connection.peer, len(answer))
            return answer

        return serve

    def _streamed(
        self, handler: grpc.RpcMethodHandler[Any, Any], audited: MethodAudit, *, promised: bool, answered: bool
    ) -> _Serve:
        """Serves a method with several answers. `promised`: its readers give credit for them. `answered`: there is one
        for each request."""
        behaviour, parse = _behaviour(handler), handler.request_deserializer
        compose = handler.response_serializer or _as_is
        traffic, is_stream, writes = self._traffic, handler.request_streaming, _writes(handler)
        turns = self._turns if answered else None
        reader = _reader(parse, audited)

        async def serve(context: grpc.aio.ServicerContext[Any, Any]) -> None:
            connection = traffic.connection(context.peer())
            begun: deque[Turn] = deque()
            if turns is not None:
                request: Any = decoded(parse, _in_turn(turns, begun, traffic.requests(connection, context)))
            elif is_stream:
                request = decoded(parse, traffic.requests(connection, context))
            else:
                request = reader(await traffic.read(connection, context))
            if writes:
                await behaviour(request, context)
                return
            # Closed before the call ends: its bytes are free then, whether the answer was taken or not.
            try:
                async with aclosing(behaviour(request, context)) as answers:
                    async for answer in answers:
                        if begun:
                            begun.popleft().leave()
                        await traffic.write(connection.peer, context, compose(answer), promised=promised)
            finally:
                for turn in begun:
                    turn.leave()

        return serve


def _name_of(method: str) -> str:
    """`Subscribe` of `/duetime.v1.Store/Subscribe`."""
    return method.rpartition("/")[2]


def _behaviour(handler: grpc.RpcMethodHandler[Any, Any]) -> Any:
    return handler.stream_stream if handler.request_streaming else handler.unary_stream


def _writes(handler: grpc.RpcMethodHandler[Any, Any]) -> bool:
    """Whether it gives its answers to the context itself, as gRPC's health service does."""
    return iscoroutinefunction(_behaviour(handler))


def _as_is(data: bytes) -> bytes:
    return data


def _size(data: Any) -> int:
    """Of a request, or of none."""
    return 0 if data is grpc.aio.EOF else len(data)


async def _in_turn(turns: Turns, begun: deque[Turn], requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The requests of a stream, each once its caller's turn has come, which `begun` has then."""
    async for data in requests:
        begun.append(await turns.enter(current().name, len(data)))
        yield data


def _reader(parse: Parse | None, audited: MethodAudit) -> Callable[[Any], Any]:
    """What makes the request of a call with one request of its bytes. It raises InvalidArgument."""
    is_audited = audited.is_read

    def read(data: Any) -> Any:
        if data is grpc.aio.EOF:
            raise InvalidArgument([Violation("request", "there is none: the call ended before it")])
        if is_audited:
            audited.read(data)
        return data if parse is None else decode(parse, data)

    return read


def _status_name(error: Exception) -> str:
    known = _known(error)
    return known.status.name if known is not None else "INTERNAL"


def _known(error: Exception) -> DueTimeError | None:
    """The error as one of ours; None: it is a defect."""
    if isinstance(error, DueTimeError):
        return error
    return DataLoss(error.text) if isinstance(error, Damaged) else None


def _code_name(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The status with which the service itself has ended a call."""
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"


async def _refuse(context: grpc.aio.ServicerContext[Any, Any], error: DueTimeError) -> None:
    await context.abort_with_status(status_of(error))


async def _end(method: str, context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    """Ends a call with the status of its error; an error that is not ours is a defect, and the log has it."""
    await _refuse(context, _known(error) or defect(error, method))


class _Bordered(grpc.GenericRpcHandler):
    """The methods of one service, wrapped."""

    def __init__(self, inner: grpc.GenericRpcHandler, border: _Border, callers: Callers) -> None:
        self._inner = inner
        self._border = border
        self._callers = callers
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        if method not in self._handlers:
            handler = self._inner.service(handler_call_details)
            if handler is None:
                return None
            self._handlers[method] = self._border.wrap(method, handler)
        handler = self._handlers[method]
        fault = self._callers.fault(method, handler_call_details.invocation_metadata)
        if not fault:
            return handler
        return self._border.wrap(method, handler, Unauthenticated(fault))


class _Registrar:
    """Stands in for grpc.aio.Server where generated code adds servicers, with the border in between."""

    def __init__(
        self,
        server: grpc.aio.Server,
        added: list[grpc.GenericRpcHandler],
        border: _Border,
        callers: Callers,
    ) -> None:
        """`added` gets the handlers too."""
        self._server = server
        self._added = added
        self._border = border
        self._callers = callers

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        bordered = [_Bordered(handler, self._border, self._callers) for handler in handlers]
        self._server.add_generic_rpc_handlers(bordered)
        self._added += bordered

    def add_registered_method_handlers(self, service_name: str, handlers: Any) -> None:
        """Ignores the same methods, given again for servers that look them up by name; grpc.aio does not."""


def _probe(host: str, port: int) -> None:
    """Binds the port and lets go, to learn why it can't be had: gRPC would only log that.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


class Server:
    """A gRPC server with health and reflection. `port` is known after `start`.

    Where its address is a place within this process (duetime_core.within), its calls come without sockets, and it need
    not listen.
    """

    def __init__(
        self,
        service_names: Sequence[str],
        calls_in_flight_max: int,
        registry: CollectorRegistry | None = None,
        stuck: Stuck = never_stuck,
        secret: ClusterSecret | None = None,
        traffic: Traffic | None = None,
        audit: Audit | None = None,
        gatekeeper: Gatekeeper | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`gatekeeper`: decides who may call; health and reflection are for anybody. Without an `audit`, refusals are
        told as log lines. `turns`: shares work out between users."""
        self._traffic = traffic or Traffic(TrafficLimits(), registry)
        bounds = (
            ("grpc.max_allowed_incoming_connections", self._traffic.connections_max),
            # A limit makes gRPC also count streams that a client opens and resets at once.
            ("grpc.max_concurrent_streams", calls_in_flight_max + PROBES_IN_FLIGHT_MAX),
        )
        self._server = grpc.aio.server(options=(*SERVER_OPTIONS, *bounds))
        self._shedding = Shedding(self._traffic, SystemClock(), registry=registry)
        self._audit = audit or Audit(SystemClock())
        callers = Callers(secret)
        meter = CallMeter(calls_in_flight_max, registry)
        border = _Border(calls_in_flight_max, meter, self._traffic, self._audit, gatekeeper, turns)
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._registrar = _Registrar(self._server, self._handlers, border, callers)
        self.health = Health(list(service_names), stuck)
        self._stopping = asyncio.Event()
        probes = _Border(PROBES_IN_FLIGHT_MAX, CallMeter(PROBES_IN_FLIGHT_MAX, None), self._traffic, self._audit)
        unlimited = _Registrar(self._server, self._handlers, probes, callers)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, unlimited)
        reflected = reflection.aio.ReflectionServicer((*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, unlimited)
        self.port = 0
        self._place: Place | None = None
        self._within: Within | None = None

    @property
    def grpc(self) -> grpc.aio.Server:
        """The server to add servicers to, before `start`."""
        return cast("grpc.aio.Server", self._registrar)

    async def start(self, host: str, port: int) -> None:
        """Takes calls and reports SERVING.

        Raises:
            StartupError: the port is taken or the address is not this machine's.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.port = port
        self._place = place_of(address)
        if self._place is None or self._place.listens:
            await self._listen(address, host, port)
        if self._place is not None:
            self._within = Within(self._handlers)
            self._place.open(self._within)
        await self.report(serving=True)

    async def _listen(self, address: str, host: str, port: int) -> None:
        try:
            _probe(host, port)
            self.port = self._server.add_insecure_port(address)
        except (OSError, RuntimeError) as error:
            cause = error.strerror if isinstance(error, OSError) and error.strerror else "the port is taken"
            raise StartupError(f"can't listen on {address}: {cause.lower()}") from error
        await self._server.start()
        self._shedding.start(self.port)

    async def report(self, *, serving: bool) -> None:
        """Sets the health of all services."""
        await self.health.report(serving=serving)

    async def stop(self, drain_ms: int) -> None:
        """NOT_SERVING first, so that callers turn away; then calls in flight end, within `drain_ms`."""
        await self.report(serving=False)
        if self._place is not None:
            self._place.close()
        ends = [self._server.stop(drain_ms / 1000.0)]
        if self._within is not None:
            ends.append(self._within.stop(drain_ms / 1000.0))
        await asyncio.gather(*ends)
        self._shedding.stop()
        self._traffic.stop()
        self._audit.stop()


def code_of(status: grpc.StatusCode) -> int:
    """google.rpc.Code of a gRPC status."""
    return int(code_pb2.Code.Value(status.name))
