"""The gRPC border: servers, channels, and the one place where errors become statuses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from typing import Any, cast

import grpc
import structlog
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from duetime_core.errors import DOMAIN, DueTimeError, Overloaded, StartupError
from duetime_core.limits import GRPC_MESSAGE_BYTES_MAX

log = structlog.get_logger()

_MESSAGE_OPTIONS = (
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
)
# Without SO_REUSEPORT a second process on the same port fails instead of taking half of the calls.
SERVER_OPTIONS = (*_MESSAGE_OPTIONS, ("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0))
CHANNEL_OPTIONS = (
    *_MESSAGE_OPTIONS,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # What one attempt may take, for all its name: a peer whose machine is busy is slow to shake hands.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def status_of(error: DueTimeError) -> grpc.Status:
    """The gRPC status of an error, with ErrorInfo and, for bad input, BadRequest details."""
    details = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)]
    if error.violations:
        fields = [
            error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
            for v in error.violations
        ]
        details.append(error_details_pb2.BadRequest(field_violations=fields))
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    code = error.status.value[0]
    status: grpc.Status = rpc_status.to_status(status_pb2.Status(code=code, message=error.text, details=packed))
    return status


class _Border:
    """Turns errors into statuses, and refuses calls past the limit of calls in flight.

    It wraps each method once, when it is first called. A server interceptor would do the same anew for every call.
    """

    def __init__(self, calls_in_flight_max: int) -> None:
        self._free = calls_in_flight_max
        self._limit = calls_in_flight_max

    def wrap(self, handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        make = {
            (False, False): (grpc.unary_unary_rpc_method_handler, self._unary, handler.unary_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, self._stream, handler.stream_stream),
            (False, True): (grpc.unary_stream_rpc_method_handler, self._stream, handler.unary_stream),
        }[handler.request_streaming, handler.response_streaming]
        factory, wrap, behaviour = make
        return factory(
            wrap(behaviour),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _enter(self) -> None:
        if self._free <= 0:
            raise Overloaded(f"{self._limit} calls are in flight, the most this process takes")
        self._free -= 1

    def _unary(self, behaviour: Any) -> Any:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            entered = False
            try:
                self._enter()
                entered = True
                return await behaviour(request, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await _end(context, error)
            finally:
                self._free += entered

        return call

    def _stream(self, behaviour: Any) -> Any:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            entered = False
            try:
                self._enter()
                entered = True
                async for response in behaviour(request, context):
                    yield response
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await _end(context, error)
            finally:
                self._free += entered

        return call


async def _end(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    """Ends a call with the status of its error; what is no error of ours is a defect, and the log has it."""
    if isinstance(error, DueTimeError):
        await context.abort_with_status(status_of(error))
    log.exception("call failed", error=repr(error))
    await context.abort(grpc.StatusCode.INTERNAL, "internal error; the process's log has it")


class _Bordered(grpc.GenericRpcHandler):
    """The methods of one service, wrapped."""

    def __init__(self, inner: grpc.GenericRpcHandler, border: _Border) -> None:
        self._inner = inner
        self._border = border
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        if method not in self._handlers:
            handler = self._inner.service(handler_call_details)
            if handler is None:
                return None
            self._handlers[method] = self._border.wrap(handler)
        return self._handlers[method]


class _Registrar:
    """What generated code adds servicers to: as grpc.aio.Server has it, with the border in between."""

    def __init__(self, server: grpc.aio.Server, border: _Border) -> None:
        self._server = server
        self._border = border

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers([_Bordered(handler, self._border) for handler in handlers])

    def add_registered_method_handlers(self, service_name: str, handlers: Any) -> None:
        """The same methods again, for servers that look them up by name; grpc.aio does not."""


def _probe(host: str, port: int) -> None:
    """Binds and lets go: says why a port can't be had, where gRPC would only log it.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


class Server:
    """A gRPC server with health and reflection. `port` is known after `start`."""

    def __init__(self, service_names: Sequence[str], calls_in_flight_max: int) -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._registrar = _Registrar(self._server, _Border(calls_in_flight_max))
        self._health = health.aio.HealthServicer()
        self._names = ["", *service_names]
        self._stopping = asyncio.Event()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        self.port = 0

    @property
    def grpc(self) -> grpc.aio.Server:
        """The server to add servicers to, before `start`."""
        return cast("grpc.aio.Server", self._registrar)

    async def start(self, host: str, port: int) -> None:
        """Listens and reports SERVING.

        Raises:
            StartupError: the port is taken or the address is not this machine's.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            _probe(host, port)
            self.port = self._server.add_insecure_port(address)
        except (OSError, RuntimeError) as error:
            cause = error.strerror if isinstance(error, OSError) and error.strerror else "the port is taken"
            raise StartupError(f"can't listen on {address}: {cause.lower()}") from error
        await self._server.start()
        await self.report(serving=True)

    async def report(self, *, serving: bool) -> None:
        """Sets the health of all services."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, status)

    async def stop(self, drain_ms: int) -> None:
        """NOT_SERVING first, so that callers turn away; then calls in flight end, within `drain_ms`."""
        await self.report(serving=False)
        await self._server.stop(drain_ms / 1000.0)


def make_channel(address: str) -> grpc.aio.Channel:
    """A channel to another process of the cluster."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def code_of(status: grpc.StatusCode) -> int:
    """google.rpc.Code of a gRPC status."""
    return int(code_pb2.Code.Value(status.name))
