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
from duetime_core.rpc.channels import CHANNEL_OPTIONS, MESSAGE_OPTIONS, make_channel
from duetime_core.rpc.listening import NO_PORT, address_of, listen, server_credentials
from duetime_core.rpc.probes import Health, Stuck, never_stuck
from duetime_core.telemetry.meter import CallMeter
from duetime_core.within.places import InProcessAddress, place_of
from duetime_core.within.server import InProcessServer

__all__ = ["CHANNEL_OPTIONS", "SERVER_OPTIONS", "Server", "code_of", "make_channel", "status_of"]

# Limit of the names and values of one call's metadata, plus 32 bytes for each.
METADATA_BYTES_MAX = 32 * 1024
SERVER_OPTIONS = (
    *MESSAGE_OPTIONS,
    # Without SO_REUSEPORT a second process on the same port fails instead of taking half of the calls.
    ("grpc.so_reuseport", 0),
    # Answer pings at any rate: gRPC's remedy, the end of the connection, costs more than the pings. Each ping read
    # after the limit copies the errors of all earlier ones: 4,000 take 34 ms of processor time instead of 2. While many
    # answers are unread, gRPC reads no more of a connection.
    ("grpc.http2.max_ping_strikes", 0),
    # Pings peers without running calls too: otherwise the loss of an idle peer is not detected.
    ("grpc.keepalive_permit_without_calls", 1),
    # Above the first limit a call may be rejected, above the second it is: RESOURCE_EXHAUSTED, before any handler runs.
    ("grpc.max_metadata_size", METADATA_BYTES_MAX // 2),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    # Probing would grow windows to some MiB of unread requests. These hold most batches in one frame: the defaults
    # without probing, windows of 64 KiB and frames of 16, cost 8 % more processor time per batch.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 512 * 1024),
    ("grpc.http2.max_frame_size", 1024 * 1024),
    # Limits the time of a client that connects and sends nothing, and takes a descriptor (default 2 min).
    ("grpc.server_handshake_timeout_ms", 5_000),
    # Detects a lost or hanging peer (default 2 h): its calls end, and their bytes are freed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
# Limit of health and reflection calls, separate so that no other limit can block them.
PROBES_IN_FLIGHT_MAX = 1_024
# Connections to the plain port for health checks only.
PROBE_CONNECTIONS_MAX = 256


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

    def __init__(self, server: grpc.aio.Server, added: list[grpc.GenericRpcHandler], border: ServerBorder) -> None:
        """`added` also gets the handlers."""
        self._server = server
        self._added = added
        self._border = border

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        bordered = [_BorderHandler(handler, self._border) for handler in handlers]
        self._server.add_generic_rpc_handlers(bordered)
        self._added += bordered

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
        bounds = (
            ("grpc.max_allowed_incoming_connections", self._traffic.connections_max),
            # The limit makes gRPC also count streams opened and reset at once.
            ("grpc.max_concurrent_streams", calls_in_flight_max + PROBES_IN_FLIGHT_MAX),
        )
        self._server = grpc.aio.server(options=(*SERVER_OPTIONS, *bounds))
        self._shedding = ConnectionShedder(self._traffic, SystemClock(), registry=registry)
        self._certificates, self._asked = credentials.certificates, asked
        callers = self._callers = credentials.callers()
        meter = CallMeter(calls_in_flight_max, registry)
        border = ServerBorder(calls_in_flight_max, meter, callers, parts)
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._registrar = _Registrar(self._server, self._handlers, border)
        self.health = Health(list(service_names), stuck)
        self._stopping = asyncio.Event()
        unlimited = CallMeter(PROBES_IN_FLIGHT_MAX, None)
        public_parts = BorderParts(parts.traffic, parts.audit)
        self._probes = ServerBorder(PROBES_IN_FLIGHT_MAX, unlimited, callers, public_parts)
        public = _Registrar(self._server, self._handlers, self._probes)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, public)
        names = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflected = reflection.aio.ReflectionServicer(names, descriptors)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, public)
        self.port = 0
        # Ports of the listener that always requires certificates, and of the plain one for health checks only.
        self.certified_port = self.probe_port = NO_PORT
        self._probe_server: grpc.aio.Server | None = None
        self._place: InProcessAddress | None = None
        self._within: InProcessServer | None = None

    @property
    def grpc(self) -> grpc.aio.Server:
        """The server for adding servicers, before `start`."""
        return cast("grpc.aio.Server", self._registrar)

    async def start(self, host: str, port: int, *, certified_port: int = NO_PORT, probe_port: int = NO_PORT) -> None:
        """Accepts calls and reports SERVING.

        Raises:
            StartupError: a port is taken or the address is not this machine's.
        """
        self.port = port
        self._place = place_of(address_of(host, port))
        if self._place is None or self._place.listens:
            await self._listen(host, port, certified_port)
        if probe_port != NO_PORT:
            await self._listen_for_probes(host, probe_port)
        if self._place is not None:
            self._within = InProcessServer(self._handlers)
            self._place.open(self._within)
        await self.report(serving=True)

    async def _listen(self, host: str, port: int, certified_port: int) -> None:
        certificates = self._certificates
        self._callers.asks = self._asked or certified_port != NO_PORT
        credentials = server_credentials(certificates, asked=self._asked) if certificates is not None else None
        self.port = listen(self._server, host, port, credentials)
        ports = [self.port]
        if certificates is not None and certified_port != NO_PORT:
            asking = server_credentials(certificates, asked=True)
            self.certified_port = listen(self._server, host, certified_port, asking)
            ports.append(self.certified_port)
        await self._server.start()
        self._shedding.start(*ports)

    async def _listen_for_probes(self, host: str, port: int) -> None:
        bound = ("grpc.max_allowed_incoming_connections", PROBE_CONNECTIONS_MAX)
        server = self._probe_server = grpc.aio.server(options=(*SERVER_OPTIONS, bound))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, _Registrar(server, [], self._probes))
        self.probe_port = listen(server, host, port, None)
        await server.start()

    async def report(self, *, serving: bool) -> None:
        """Sets the health of all services."""
        await self.health.report(serving=serving)

    async def stop(self, drain_ms: int) -> None:
        """Reports NOT_SERVING first, so that callers turn away; then ends calls in flight, within `drain_ms`."""
        await self.report(serving=False)
        if self._place is not None:
            self._place.close()
        ends = [self._server.stop(drain_ms / 1000.0)]
        if self._probe_server is not None:
            ends.append(self._probe_server.stop(drain_ms / 1000.0))
        if self._within is not None:
            ends.append(self._within.stop(drain_ms / 1000.0))
        await asyncio.gather(*ends)
        self._shedding.stop()
        self._traffic.stop()
        self._audit.stop()
