"""The border of a server: the only place where errors become statuses, and callers are admitted or rejected."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any

import grpc
from duetime_format.errors import DamagedBytes
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from duetime_core.access.callers import Callers, MethodCallers, meant_for, named
from duetime_core.access.gatekeeping import CallGatekeeper
from duetime_core.access.principal import current
from duetime_core.audit.audit import Audit, MethodAudit
from duetime_core.clock import SystemClock
from duetime_core.errors import DOMAIN, DataLoss, DueTimeError, InvalidArgument, Violation
from duetime_core.limits.bounds import brief
from duetime_core.limits.inflight import InFlightCalls
from duetime_core.limits.traffic import COUNTED_BYTES_MIN, Traffic, TrafficLimits
from duetime_core.limits.turns import RequestTurns, Turn
from duetime_core.rpc.decoding import Parse, decode, decoded
from duetime_core.telemetry import tracing
from duetime_core.telemetry.defects import defect
from duetime_core.telemetry.meter import CallMeter, MethodMeter

_Serve = Callable[["grpc.aio.ServicerContext[Any, Any]"], Awaitable[Any]]
_Read = Callable[[], Awaitable[Any]]

# Streams whose readers give credit.
PROMISED = frozenset({"Subscribe"})
# Streams with one answer per request, in order.
ANSWERED = frozenset({"SendStream"})


def status_of(error: DueTimeError) -> grpc.Status:
    """The gRPC status of an error, with ErrorInfo, BadRequest for bad input, and RetryInfo if it has a retry time:
    below 4 KiB in total."""
    short = brief(error)
    details = [error_details_pb2.ErrorInfo(reason=short.reason, domain=DOMAIN, metadata=short.metadata)]
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


@dataclass(frozen=True, slots=True)
class BorderParts:
    """The parts of a process that its borders use."""

    traffic: Traffic = field(default_factory=lambda: Traffic(TrafficLimits(), None))
    # The default only logs rejections.
    audit: Audit = field(default_factory=lambda: Audit(SystemClock()))
    # Checks each call before its request is read. None: every caller is admitted.
    gatekeeper: CallGatekeeper | None = None
    # Orders requests after reading, to share work between users.
    turns: RequestTurns | None = None


class ServerBorder:
    """Converts errors to statuses, rejects calls above the limit of calls in flight, and counts their bytes.

    It wraps each method once, at its first call; a server interceptor would do so for every call. To gRPC every method
    takes a stream of requests, and one with several answers writes them itself: only then can the border decide when to
    read a request, and know whether an answer was taken. On the wire there is no difference.
    """

    def __init__(self, calls_in_flight_max: int, meter: CallMeter, callers: Callers, parts: BorderParts) -> None:
        """`callers`: checks each call before its request is read."""
        self._callers = callers
        self._gatekeeper = parts.gatekeeper
        self._turns = parts.turns
        self._in_flight = InFlightCalls(calls_in_flight_max)
        self._meter = meter
        self._traffic = parts.traffic
        self._audit = parts.audit

    def wrap(self, method: str, handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        meter, audited = self._meter.of(method), self._audit.of(method)
        if handler.response_streaming:
            name = _name_of(method)
            serve = self._streamed(handler, audited, promised=name in PROMISED, answered=name in ANSWERED)
            call = self._call(serve, meter, audited, method, streams=True)
            # Behaviours that write answers themselves return messages, all others bytes.
            serializer = handler.response_serializer if _writes(handler) else None
            return grpc.stream_stream_rpc_method_handler(call, response_serializer=serializer)
        call = self._call(self._single(handler, audited), meter, audited, method, streams=False)
        return grpc.stream_unary_rpc_method_handler(call)

    def _call(
        self,
        serve: _Serve,
        meter: MethodMeter,
        audited: MethodAudit,
        method: str,
        *,
        streams: bool,
    ) -> Any:
        callers, gatekeeper, is_inner = self._callers, self._gatekeeper, meant_for(method) is MethodCallers.CLUSTER

        async def call(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            started, code, reason, host = perf_counter(), "CANCELLED", "", ""
            meter.running += 1
            try:
                role = callers.check(method, context)
                host = self._in_flight.enter(context.peer(), named(context) if is_inner else "")
                if gatekeeper is not None:
                    audited.began(context)
                    await gatekeeper.admit(method, context, role)
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
            except asyncio.CancelledError as ended:
                lost = gatekeeper.ended() if gatekeeper is not None else None
                if lost is None:
                    raise
                code, reason = lost.status.name, lost.reason
                await _refuse(context, lost, ended)
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
        """Serves a method with several answers. `promised`: its readers give credit for them. `answered`: one answer
        per request."""
        behaviour, parse = _behaviour(handler), handler.request_deserializer
        compose = handler.response_serializer or _as_is
        traffic, is_stream, writes = self._traffic, handler.request_streaming, _writes(handler)
        turns = self._turns if answered else None
        reader = _reader(parse, audited)

        async def serve(context: grpc.aio.ServicerContext[Any, Any]) -> None:
            connection = traffic.connection(context.peer())
            begun: deque[Turn] = deque()
            read: _Read = partial(traffic.read, connection, context, stream=True)
            if turns is not None:
                request: Any = decoded(parse, partial(_in_turn, turns, begun, read))
            elif is_stream:
                request = decoded(parse, context.read if connection.within else read)
            else:
                request = reader(await traffic.read(connection, context))
            if writes:
                await behaviour(request, context)
                return
            # Close the answers before the call ends: its bytes are then freed, even if the answer was not taken.
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
    """`Subscribe` from `/duetime.v1.Store/Subscribe`."""
    return method.rpartition("/")[2]


def _behaviour(handler: grpc.RpcMethodHandler[Any, Any]) -> Any:
    return handler.stream_stream if handler.request_streaming else handler.unary_stream


def _writes(handler: grpc.RpcMethodHandler[Any, Any]) -> bool:
    """Whether it writes its answers to the context itself, as gRPC's health service does."""
    return iscoroutinefunction(_behaviour(handler))


def _as_is(data: bytes) -> bytes:
    return data


def _size(data: Any) -> int:
    """The size of a request; 0 at the end."""
    return 0 if data is grpc.aio.EOF else len(data)


async def _in_turn(turns: RequestTurns, begun: deque[Turn], read: _Read) -> Any:
    """Returns the next request of a stream when its caller's turn comes, and adds the turn to `begun`."""
    data = await read()
    if data is not grpc.aio.EOF:
        begun.append(await turns.enter(current().name, len(data)))
    return data


def _reader(parse: Parse | None, audited: MethodAudit) -> Callable[[Any], Any]:
    """Returns a reader for the request of a call with one request. The reader raises InvalidArgument."""
    is_audited = audited.is_read

    def read(data: Any) -> Any:
        if data is grpc.aio.EOF:
            raise InvalidArgument([Violation("request", "is missing: the call ended before it")])
        if is_audited:
            audited.read(data)
        return data if parse is None else decode(parse, data)

    return read


def _status_name(error: Exception) -> str:
    known = _known(error)
    return known.status.name if known is not None else "INTERNAL"


def _known(error: Exception) -> DueTimeError | None:
    """The error as one of ours; None: a defect."""
    if isinstance(error, DueTimeError):
        return error
    return DataLoss(error.text) if isinstance(error, DamagedBytes) else None


def _code_name(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The status with which the service itself ended a call."""
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"


async def _refuse(context: grpc.aio.ServicerContext[Any, Any], error: DueTimeError, raised: BaseException) -> None:
    """Ends a call with the status of an error, while handling the exception, and drops the exception's frames.

    gRPC stores the exception of `abort` in the call. It refers to `raised`, whose frames refer to the call and to all
    bytes of its request and answer: a cycle that would keep them until the garbage collector's full run.
    """
    status = status_of(error)
    raised.__traceback__ = raised.__cause__ = raised.__context__ = None
    await context.abort_with_status(status)


async def _end(method: str, context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    """Ends a call with the status of its error; an unknown error is a defect, and is logged."""
    await _refuse(context, _known(error) or defect(error, method), error)


def code_of(status: grpc.StatusCode) -> int:
    """google.rpc.Code of a gRPC status."""
    return int(code_pb2.Code.Value(status.name))
