"""The console's connections: a limited number, shared between hosts, and time limits for both directions.

accept ──share──▶ handshake ──▶ head ──▶ body ──▶ answer ──▶ idle ──▶ head ...
A sweep each second ends the connections that exceed the time of their phase.

A full server ends the oldest quiet connection of the host with the most, so that a newcomer finds a place.
"""

import asyncio
import errno
import resource
import socket
import ssl
from asyncio import sslproto
from typing import Any

import h11
from duetime_core.clock import Clock
from duetime_core.limits.shares import Shares
from duetime_core.telemetry.logs import sparing
from prometheus_client import CollectorRegistry, Counter, Gauge
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from duetime_console.border import REQUEST_BYTES_MAX

# The logger of lines that callers can trigger.
often = sparing()

# The part of the process's descriptors that connections use.
DESCRIPTORS_SHARE = 0.8
# Time for a handshake, and for the head of a request.
HEAD_MS = 10_000
# Bodies and answers may stall for this time, and must move at this rate otherwise.
STILL_MS, BYTES_PER_MS_MIN = 10_000, 16
# Total bytes of a body, including those read after the answer that rejects it.
BODY_BYTES_MAX = 2 * REQUEST_BYTES_MAX
# A chunked body has this number of chunks, and one more for each of these bytes.
CHUNKS_FREE, CHUNK_BYTES_MIN = 1_024, 64
# Bytes of a request's line and headers.
HEAD_BYTES_MAX = 32 * 1024
# The buffer of each TLS connection, also of a silent one. asyncio's 256 KiB are 500 MB for all connections.
TLS_BUFFER_BYTES = sslproto.SSLProtocol.max_size = 32 * 1024
SWEEP_MS = 1_000
ACCEPT_PAUSE_MS = 100
_LASTING = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)


class _Parser(h11.Connection):
    """h11's parser, which also rejects a body of tiny chunks: each costs as much as a large one."""

    def __init__(self, head_bytes_max: int) -> None:
        super().__init__(h11.SERVER, head_bytes_max)
        self._chunks = self._bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._bytes > BODY_BYTES_MAX or self._chunks > CHUNKS_FREE + self._bytes // CHUNK_BYTES_MIN:
                raise h11.RemoteProtocolError("the body is too large, or its chunks are too small")
        return event


class ConsoleConnection(H11Protocol):
    """A connection that knows its phase and the time since its beginning."""

    def __init__(
        self,
        connections: "ConsoleConnections",
        peer: socket.socket,
        host: str,
        config: Config,
        state: ServerState,
        app: Any,
    ) -> None:
        super().__init__(config, state, app)
        self.conn = _Parser(HEAD_BYTES_MAX)
        self.host = host
        self._connections = connections
        self._peer = peer
        self._received = 0
        # The state at the last sweep: phase and request, its beginning, and the bytes by then.
        self._phase: tuple[str, object] = ("", None)
        self._since_ms = 0.0
        self._received_before = 0
        # Since when an answer waits for the peer, and the most bytes since; None: none waits.
        self._waits_since_ms: float | None = None
        self._waiting_bytes = 0

    @property
    def is_quiet(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.release(self)
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._waits_since_ms = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        # An answer has begun: another one would become a part of it.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def end(self) -> None:
        """Ends it now, even during a handshake; a waiting answer is lost."""
        if self.transport is not None:
            self.transport.abort()
        else:
            self._peer.shutdown(socket.SHUT_RDWR)

    def is_late(self, now_ms: float) -> bool:
        """Whether the peer took too much time for the current phase."""
        if self.transport is None:
            # asyncio limits the handshake.
            return False
        return self._sends_late(now_ms) or self._takes_late(now_ms)

    def _sends_late(self, now_ms: float) -> bool:
        phase = self._present()
        if phase != self._phase:
            self._phase, self._since_ms, self._received_before = phase, now_ms, self._received
        length_ms = now_ms - self._since_ms
        if phase[0] == "body":
            return length_ms > STILL_MS + (self._received - self._received_before) / BYTES_PER_MS_MIN
        return phase[0] == "head" and length_ms > HEAD_MS

    def _present(self) -> tuple[str, object]:
        if self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused:
            return "body", self.cycle
        if self.cycle is None or (self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]):
            return "head", self.cycle
        return "", self.cycle

    def _takes_late(self, now_ms: float) -> bool:
        waiting = self.transport.get_write_buffer_size()
        if not waiting:
            self._waits_since_ms = None
            return False
        if self._waits_since_ms is None:
            self._waits_since_ms, self._waiting_bytes = now_ms, 0
        self._waiting_bytes = max(self._waiting_bytes, waiting)
        return now_ms - self._waits_since_ms > STILL_MS + self._waiting_bytes / BYTES_PER_MS_MIN


class ConsoleConnections:
    """All connections of one console."""

    def __init__(self, most: int, clock: Clock, registry: CollectorRegistry) -> None:
        """`most`: fewer if the process may have fewer descriptors."""
        most = min(most, int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * DESCRIPTORS_SHARE))
        self._clock = clock
        # Behind a proxy all callers are one host, which may have all but the last tenth.
        self._shares: Shares[str] = Shares(most, most)
        # Connections by host, oldest first.
        self._held: dict[str, dict[ConsoleConnection, None]] = {}
        self._ended = Counter(
            "duetime_console_connections_ended_total",
            "Connections ended because they were slow, or to admit others.",
            ["reason"],
            registry=registry,
        )
        gauge = Gauge("duetime_console_connections", "Connections to the page port.", registry=registry)
        gauge.set_function(lambda: self._shares.used)
        Gauge("duetime_console_connections_max", "Maximum connections.", registry=registry).set(most)

    async def accept(self, listener: socket.socket, config: Config, state: ServerState, app: Any) -> None:
        """Serves the connections to a listener until it is cancelled."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as greetings:
            while True:
                try:
                    peer, address = await loop.sock_accept(listener)
                except OSError as error:
                    if error.errno in _LASTING:
                        raise
                    # The client is gone, or descriptors or memory are short.
                    await self._clock.sleep(ACCEPT_PAUSE_MS)
                    continue
                made = ConsoleConnection(self, peer, address[0], config, state, app)
                if self._admit(made):
                    greetings.create_task(self._greet(made, peer, config.ssl))
                else:
                    peer.close()

    async def sweep(self) -> None:
        """Ends slow connections until it is cancelled."""
        while True:
            await self._clock.sleep(SWEEP_MS)
            now_ms = self._clock.monotonic_ms()
            for one in [each for held in self._held.values() for each in held if each.is_late(now_ms)]:
                self._end(one, "slow")

    def release(self, one: ConsoleConnection) -> None:
        """Idempotent."""
        held = self._held.get(one.host, {})
        if one in held:
            del held[one]
            if not held:
                del self._held[one.host]
            self._shares.give(one.host)

    def _admit(self, one: ConsoleConnection) -> bool:
        """Counts a connection; another one may have to end for it."""
        if not self._shares.may_take(one.host):
            greediest = max(self._held.values(), key=len, default={})
            quiet = next((each for each in greediest if each.is_quiet), None)
            if quiet is None:
                self._ended.labels("refused").inc()
                often.warning("connection rejected: too many", host=one.host, count=self._shares.used)
                return False
            self._end(quiet, "crowded")
        self._shares.take(one.host)
        self._held.setdefault(one.host, {})[one] = None
        return True

    def _end(self, one: ConsoleConnection, reason: str) -> None:
        self._ended.labels(reason).inc()
        often.warning("connection ended", reason=reason, host=one.host, count=self._shares.used)
        self.release(one)
        one.end()

    async def _greet(self, one: ConsoleConnection, peer: socket.socket, context: ssl.SSLContext | None) -> None:
        limits = {"ssl_handshake_timeout": HEAD_MS / 1_000, "ssl_shutdown_timeout": STILL_MS / 1_000}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: one, peer, ssl=context, **(limits if context else {})
            )
        except OSError:
            # The peer is gone, does not speak TLS, or took too long.
            self.release(one)
            peer.close()
