"""The two gRPC servers that a process can have: grpcio's, and the compiled front."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import grpc
from prometheus_client import CollectorRegistry

from duetime_core.access.certificates import Certificates
from duetime_core.rpc.channels import MESSAGE_OPTIONS
from duetime_core.rpc.compiled import CompiledFront
from duetime_core.rpc.listening import Front, address_of, server_credentials

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


class FrontKind(StrEnum):
    """The values of the setting `front`."""

    GRPCIO = "grpcio"
    COMPILED = "compiled"


class GrpcioFront:
    """grpcio's server."""

    def __init__(self, *, connections_max: int, streams_max: int) -> None:
        bounds = (
            ("grpc.max_allowed_incoming_connections", connections_max),
            # The limit makes gRPC also count streams opened and reset at once.
            ("grpc.max_concurrent_streams", streams_max),
        )
        self._server = grpc.aio.server(options=(*SERVER_OPTIONS, *bounds))

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def listen(self, host: str, port: int, certificates: Certificates | None, *, asked: bool) -> int:
        address = address_of(host, port)
        if certificates is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, server_credentials(certificates, asked=asked))

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, drain_s: float) -> None:
        await self._server.stop(drain_s)


def make_front(
    kind: FrontKind, *, connections_max: int, streams_max: int, registry: CollectorRegistry | None = None
) -> Front:
    """Raises: StartupError: the compiled front is not installed."""
    if kind is FrontKind.COMPILED:
        return CompiledFront(
            connections_max=connections_max,
            streams_max=streams_max,
            metadata_bytes_max=METADATA_BYTES_MAX,
            registry=registry,
        )
    return GrpcioFront(connections_max=connections_max, streams_max=streams_max)
