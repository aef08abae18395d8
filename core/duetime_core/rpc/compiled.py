"""The compiled front: a gRPC server in Rust (native/front) whose calls enter as those from within the process.

    client ──▶ HTTP/2 on the front's thread ──events──▶ WireRpc ──▶ Within ──▶ handlers, with the border around them
                                          ◀─commands──

Events and commands pass in batches, with one wake-up each (docs/adr/0090). A request waits in HTTP/2's window until its
reader has room; an answer that counts is reported when HTTP/2 has taken it.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final

import grpc
import structlog
from duetime.tls import Pems
from duetime_format.compiled import check_fits
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from duetime_core.access.certificates import Certificates
from duetime_core.errors import StartupError
from duetime_core.within.flow import Flow
from duetime_core.within.rpc import Metadata, Rpc
from duetime_core.within.server import InProcessServer

log = structlog.get_logger()

# Bytes of answers of one call that the front holds without a report.
UNREPORTED_BYTES_MAX: Final = 64 * 1024
# Bytes of requests, and requests, that a reader takes between two notes to the front. It hands over 64 ahead.
RELEASED_BYTES: Final = 128 * 1024
RELEASED_REQUESTS: Final = 32
# Answers that a stream writes in one turn of the loop: it must not stop all others.
TURN_ANSWERS_MAX: Final = 16
# Kinds of events.
CALL, MESSAGE, END, TAKEN, LOST, FAULT = range(6)
CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class _WireRequests(Flow):
    """Requests of a call; tells the front when its reader has room."""

    __slots__ = ("_bytes_taken", "_count", "_front", "_noted", "_number")

    def __init__(self, loop: asyncio.AbstractEventLoop, front: CompiledFront, number: int) -> None:
        super().__init__(loop)
        self._front = front
        self._number = number
        # Requests taken, those at the last note to the front, and bytes since then.
        self._count = self._noted = self._bytes_taken = 0

    async def take(self) -> Any:
        if self.is_empty and not self.ended:
            self._front.native.read(self._number, self._count)
            self._front.flush_soon()
            self._noted = self._count
        return await super().take()

    def pop(self) -> bytes:
        data = super().pop()
        self._count += 1
        self._bytes_taken += len(data)
        if self._bytes_taken >= RELEASED_BYTES or self._count - self._noted >= RELEASED_REQUESTS:
            self._front.native.release(self._number, self._bytes_taken, self._count)
            self._front.flush_soon()
            self._noted, self._bytes_taken = self._count, 0
        return data


class _WireAnswers(Flow):
    """Answers of a call: passed to the front at once."""

    __slots__ = ("_front", "_held", "_number", "_turn", "_written", "is_dropped")

    def __init__(self, loop: asyncio.AbstractEventLoop, front: CompiledFront, number: int) -> None:
        super().__init__(loop)
        self._front = front
        self._number = number
        # Bytes since the last report.
        self._held = 0
        # Answers written in one turn of the loop, and its number.
        self._written = self._turn = 0
        # Answers that were not taken are not worth sending.
        self.is_dropped = False

    def put(self, data: bytes) -> None:
        self._held += len(data)
        self._front.native.message(self._number, data, self._held > UNREPORTED_BYTES_MAX)
        self._front.flush_soon()

    def has_room(self, size: int) -> bool:
        """Not known in advance."""
        return False

    async def room(self) -> None:
        """Returns once HTTP/2 has taken the answers that count, after some answers a turn of the loop later."""
        if self._turn != self._front.turn:
            self._turn, self._written = self._front.turn, 0
        self._written += 1
        if self._written >= TURN_ANSWERS_MAX:
            await _next_turn()
        while self._held > UNREPORTED_BYTES_MAX and not self.ended:
            await self._wait()

    async def taken(self) -> None:
        """As `room`, after the end of the call too."""
        while self._held > UNREPORTED_BYTES_MAX and not self.is_dropped:
            await self._wait()

    async def _wait(self) -> None:
        self._writer = self._loop.create_future()
        try:
            await self._writer
        except asyncio.CancelledError:
            self.is_dropped = True
            raise
        finally:
            self._writer = None

    def note_taken(self) -> None:
        self._held = 0
        self._wake_writer()

    def drop(self) -> None:
        self.is_dropped = True
        super().drop()

    @property
    def is_reported(self) -> bool:
        """Whether a report is due."""
        return self._held > UNREPORTED_BYTES_MAX


class WireRpc(Rpc):
    """A call of a client of the compiled front."""

    __slots__ = ("_front", "_number", "auth_context")

    requests: _WireRequests
    answers: _WireAnswers

    def __init__(
        self,
        front: CompiledFront,
        number: int,
        method: str,
        metadata: tuple[tuple[str, Any], ...],
        timeout_s: float | None,
        auth_context: Mapping[str, Sequence[bytes]],
    ) -> None:
        self._front = front
        self._number = number
        self.auth_context = auth_context
        super().__init__(front.loop, method, metadata, timeout_s, one_answer=True)

    def _make_flows(self, loop: asyncio.AbstractEventLoop) -> tuple[_WireRequests, _WireAnswers]:
        return _WireRequests(loop, self._front, self._number), _WireAnswers(loop, self._front, self._number)

    def begin(self, initial_metadata: Metadata | None = None) -> None:
        if initial_metadata and not self.begun:
            self._front.native.begin(self._number, list(initial_metadata))
        super().begin(initial_metadata)

    def finish(self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata = ()) -> None:
        if self.code is not None:
            return
        answers = self.answers
        self._front.native.finish(self._number, code.value[0], details, list(trailing_metadata), answers.is_dropped)
        self._front.flush_soon()
        if answers.is_dropped or not answers.is_reported:
            self._front.forget(self._number)
        super().finish(code, details, trailing_metadata)

    async def delivered(self) -> None:
        if self.answers.is_reported:
            try:
                await self.answers.taken()
            finally:
                self._front.forget(self._number)

    def break_off(self, code: grpc.StatusCode, details: str) -> None:
        if self.settled:
            # Only its answer is still in transit.
            self.answers.drop()
        super().break_off(code, details)


class CompiledFront(Collector):
    """A server of the compiled front, with the interface of duetime_core.rpc.fronts."""

    def __init__(
        self,
        *,
        connections_max: int,
        streams_max: int,
        metadata_bytes_max: int,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Raises: StartupError: the package is not installed, or does not fit."""
        try:
            import duetime_front

            check_fits(duetime_front)
        except ImportError as error:
            raise StartupError(f"front=compiled requires the package duetime-front: {error}") from error
        self.native = duetime_front.Front(
            connections_max=connections_max,
            streams_max=streams_max,
            metadata_bytes_max=metadata_bytes_max,
            message_bytes_max=GRPC_MESSAGE_BYTES_MAX,
        )
        self.loop = asyncio.get_running_loop()
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._within: InProcessServer | None = None
        self._calls: dict[int, WireRpc] = {}
        self._flushing = False
        # Number of the turns of the loop in which answers were written.
        self.turn = 0
        if registry is not None:
            registry.register(self)

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        waiting, unread, held, refused = self.native.figures()
        waits = "Connections with a call that waits for the process to take earlier ones"
        yield GaugeMetricFamily("duetime_front_waiting_connections", waits, waiting)
        stopped = "Connections of which nothing is read, because the client reads nothing"
        yield GaugeMetricFamily("duetime_front_unread_connections", stopped, unread)
        yield GaugeMetricFamily("duetime_front_answer_bytes", "Bytes of answers that no socket has taken", held)
        yield CounterMetricFamily("duetime_front_refused", "Calls rejected for unread answers", refused)

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._handlers += handlers

    def listen(self, host: str, port: int, certificates: Certificates | None, *, asked: bool) -> int:
        """Raises: OSError: the port is taken. ValueError: the certificate cannot be used."""
        changed = None if certificates is None else _changes(certificates)
        self._start()
        return self.native.listen(host, port, changed, asked=asked)

    def _start(self) -> None:
        if self._within is None:
            self._within = InProcessServer(self._handlers)
            self.loop.add_reader(self.native.fileno(), self._turn)

    async def start(self) -> None:
        """Ports accept calls as soon as they are bound."""

    async def stop(self, drain_s: float) -> None:
        """Accepts no more, and returns when running calls have ended; those left after `drain_s` are cancelled."""
        self.native.drain()
        if self._within is not None:
            await self._within.stop(drain_s)
            self.loop.remove_reader(self.native.fileno())
            self._within = None
        await asyncio.to_thread(self.native.close)

    def flush_soon(self) -> None:
        """Passes commands on in this turn of the loop, all with one wake-up."""
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self.turn += 1
        self.native.flush()

    def forget(self, number: int) -> None:
        """Expects no more events of a call."""
        self._calls.pop(number, None)

    def _turn(self) -> None:
        calls = self._calls
        for event in self.native.take():
            kind, number = event[0], event[1]
            if kind == CALL:
                self._begin(*event[1:])
            elif kind == FAULT:
                log.error("cannot use the changed certificate; the previous one stays in use", error=number)
            elif (rpc := calls.get(number)) is None:
                continue
            elif kind == MESSAGE:
                if rpc.code is None:
                    rpc.requests.put(event[2])
            elif kind == END:
                rpc.requests.end()
            elif kind == TAKEN:
                rpc.answers.note_taken()
            elif kind == LOST:
                rpc.break_off(CODES[event[2]], event[3])

    def _begin(
        self,
        number: int,
        peer: tuple[str, Mapping[str, Sequence[bytes]]],
        method: str,
        metadata: tuple[tuple[str, Any], ...],
        timeout_s: float | None,
        messages: list[bytes],
        ended: bool,
    ) -> None:
        name, auth_context = peer
        rpc = self._calls[number] = WireRpc(self, number, method, metadata, timeout_s, auth_context)
        for data in messages:
            rpc.requests.put(data)
        if ended:
            rpc.requests.end()
        assert self._within is not None
        self._within.serve(rpc, name)


@types.coroutine
def _next_turn() -> Generator[None]:
    """Returns in the loop's next turn."""
    yield


def _changes(certificates: Certificates) -> Callable[[], tuple[bytes, bytes, bytes] | None]:
    """Returns a function that returns certificate, key and CAs if they have changed since its last call."""
    held: Pems | None = None

    def changed() -> tuple[bytes, bytes, bytes] | None:
        nonlocal held
        pems = certificates.now()
        if pems is held:
            return None
        held = pems
        assert pems.cert is not None, "a server has a certificate"
        assert pems.key is not None, "and its key"
        return pems.cert, pems.key, pems.ca or b""

    return changed
