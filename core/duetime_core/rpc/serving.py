"""Creates all gRPC servers, with the border between them and their services."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from duetime_core.access.credentials import NO_CREDENTIALS, ClusterCredentials
from duetime_core.clock import SystemClock
from duetime_core.limits.shedding import ConnectionShedder
from duetime_core.limits.traffic import Traffic, TrafficLimits
from duetime_core.rpc.border import BorderParts, ServerBorder, code_of, status_of
from duetime_core.rpc.channels import CHANNEL_OPTIONS, make_channel
from duetime_core.rpc.fronts import METADATA_BYTES_MAX, SERVER_OPTIONS, FrontKind, make_front
from duetime_core.rpc.listening import NO_PORT, Front, address_of, listen
from duetime_core.rpc.probes import Health, Stuck, never_stuck
from duetime_core.telemetry.meter import CallMeter
from duetime_core.within.places import InProcessAddress, place_of
from duetime_core.within.server import InProcessServer

__all__ = [
    "CHANNEL_OPTIONS",
    "METADATA_BYTES_MAX",
    "SERVER_OPTIONS",
    "FrontKind",
    "Server",
    "code_of",
    "make_channel",
    "status_of",
]

# Limit of health and reflection calls, separate so that no other limit can block them.
PROBES_IN_FLIGHT_MAX = 1_024
# Connections to the plain port for health checks only.
PROBE_CONNECTIONS_MAX = 256


Handlers = list[grpc.GenericRpcHandler]


class _BorderHandler(grpc.GenericRpcHandler):
    """The wrapped methods of one service."""

    def __init__(self, inner: grpc.GenericRpcHandler, border: ServerBorder) -> None:
        self._inner = inner
        self._border = border
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        if method not in self._handlers:
            handler = self._inner.service(handler_call_details)
            if handler is None:
                return None
            self._handlers[method] = self._border.wrap(method, handler)
        return self._handlers[method]


class _Registrar:
    """Replaces grpc.aio.Server where generated code adds servicers, and inserts the border."""

    def __init__(self, added: list[grpc.GenericRpcHandler], border: ServerBorder) -> None:
        """`added` gets the handlers."""
        self._added = added
        self._border = border

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._added += [_BorderHandler(handler, self._border) for handler in handlers]

    def add_registered_method_handlers(self, service_name: str, handlers: Any) -> None:
        """Ignores the same methods, passed again for servers that look them up by name; grpc.aio does not."""


class Server:
    """A gRPC server with health and reflection. `port` is known after `start`.

    With certificates it accepts only TLS. If its address is a place within this process (duetime_core.within), its
    calls come without sockets, and it need not listen.
    """

    def __init__(
        self,
        service_names: Sequence[str],
        calls_in_flight_max: int,
        registry: CollectorRegistry | None = None,
        stuck: Stuck = never_stuck,
        credentials: ClusterCredentials = NO_CREDENTIALS,
        parts: BorderParts | None = None,
        descriptors: Any = None,
        *,
        asked: bool = True,
    ) -> None:
        """`parts`: health and reflection use no gatekeeper and no turns. `descriptors`: the source of reflection; None:
        all. `asked`: whether clients of the port must have a certificate, if the process has one."""
        parts = parts or BorderParts(Traffic(TrafficLimits(), registry))
        self._traffic, self._audit = parts.traffic, parts.audit
        self._registry = registry
        self._streams_max = calls_in_flight_max + PROBES_IN_FLIGHT_MAX
        self._shedding = ConnectionShedder(self._traffic, SystemClock(), registry=registry)
        self._certificates, self._asked = credentials.certificates, asked
        callers = self._callers = credentials.callers()
        meter = CallMeter(calls_in_flight_max, registry)
        border = ServerBorder(calls_in_flight_max, meter, callers, parts)
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._registrar = _Registrar(self._handlers, border)
        self.health = Health(list(service_names), stuck)
        self._stopping = asyncio.Event()
        unlimited = CallMeter(PROBES_IN_FLIGHT_MAX, None)
        public_parts = BorderParts(parts.traffic, parts.audit)
        self._probes = ServerBorder(PROBES_IN_FLIGHT_MAX, unlimited, callers, public_parts)
        public = _Registrar(self._handlers, self._probes)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, public)
        names = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflected = reflection.aio.ReflectionServicer(names, descriptors)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, public)
        self.port = 0
        # Ports of the listener that always requires certificates, and of the plain one for health checks only.
        self.certified_port = self.probe_port = NO_PORT
        # Accept calls by sockets.
        self._fronts: list[Front] = []
        self._place: InProcessAddress | None = None
        self._within: InProcessServer | None = None

    @property
    def grpc(self) -> grpc.aio.Server:
        """The server for adding servicers, before `start`."""
        return cast("grpc.aio.Server", self._registrar)

    async def start(
        self,
        host: str,
        port: int,
        *,
        certified_port: int = NO_PORT,
        probe_port: int = NO_PORT,
        front: FrontKind = FrontKind.GRPCIO,
    ) -> None:
        """Accepts calls and reports SERVING.

        Raises:
            StartupError: a port is taken, the address is not this machine's, or the front is not installed.
        """
        self.port = port
        self._place = place_of(address_of(host, port))
        if self._place is None or self._place.listens:
            await self._listen(front, host, port, certified_port)
        if probe_port != NO_PORT:
            await self._listen_for_probes(front, host, probe_port)
        if self._place is not None:
            self._within = InProcessServer(self._handlers)
            self._place.open(self._within)
        await self.report(serving=True)

    async def _listen(self, kind: FrontKind, host: str, port: int, certified_port: int) -> None:
        certificates = self._certificates
        self._callers.asks = self._asked or certified_port != NO_PORT
        most = self._traffic.connections_max
        bounds = {"connections_max": most, "streams_max": self._streams_max}
        front = self._make_front(kind, self._handlers, self._registry, **bounds)
        self.port = listen(front, host, port, certificates, asked=self._asked)
        ports = [self.port]
        if certificates is not None and certified_port != NO_PORT:
            self.certified_port = listen(front, host, certified_port, certificates, asked=True)
            ports.append(self.certified_port)
        await front.start()
        self._shedding.start(*ports)

    async def _listen_for_probes(self, kind: FrontKind, host: str, port: int) -> None:
        handlers: list[grpc.GenericRpcHandler] = []
        health_pb2_grpc.add_HealthServicer_to_server(self.health, _Registrar(handlers, self._probes))
        bounds = {"connections_max": PROBE_CONNECTIONS_MAX, "streams_max": PROBES_IN_FLIGHT_MAX}
        front = self._make_front(kind, handlers, None, **bounds)
        self.probe_port = listen(front, host, port, None, asked=False)
        await front.start()

    def _make_front(
        self, kind: FrontKind, handlers: Handlers, registry: CollectorRegistry | None, **bounds: int
    ) -> Front:
        front = make_front(kind, registry=registry, **bounds)
        self._fronts.append(front)
        front.add_generic_rpc_handlers(handlers)
        return front

    async def report(self, *, serving: bool) -> None:
        """Sets the health of all services."""
        await self.health.report(serving=serving)

    async def stop(self, drain_ms: int) -> None:
        """Reports NOT_SERVING first, so that callers turn away; then ends calls in flight, within `drain_ms`."""
        await self.report(serving=False)
        if self._place is not None:
            self._place.close()
        ends = [front.stop(drain_ms / 1000.0) for front in self._fronts]
        if self._within is not None:
            ends.append(self._within.stop(drain_ms / 1000.0))
        await asyncio.gather(*ends)
        self._shedding.stop()
        self._traffic.stop()
        self._audit.stop()
