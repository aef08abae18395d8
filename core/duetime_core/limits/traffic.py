"""Bytes in transit on this process's connections: incomplete requests, and answers not taken yet.

gRPC passes a request to a call only when complete, and grants the sender space for all of it as soon as the call reads.
So the bytes of incomplete requests are measured from outside: bytes received by the kernel on a connection, minus those
passed to calls. The number is exact whenever no call reads, and is corrected then. If a stream always reads, headers,
window updates and pings would add up: an allowance for each call and for the bytes taken by the peer covers them.

    uploads   measured every CHECK_MS for calls that read; above the limit the slowest connections are rejected.
              A unary call is judged by the bytes since it reads, a stream by those of its connection
    answers   counted from their creation until gRPC has written them; with a share for each host and connection
    both      cut off without progress: an upload as a call, a unary answer with its connection, because gRPC cannot
              take it back
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from duetime_core.access.callers import host_of
from duetime_core.clock import Clock, SystemClock, Timer
from duetime_core.errors import DueTimeError, Overloaded
from duetime_core.limits.heap import Heap
from duetime_core.limits.room import Room
from duetime_core.limits.sockets import SocketProgress, Sockets
from duetime_core.telemetry.logs import sparing
from duetime_core.within.server import PEER, InProcessContext

log = sparing()

CHECK_MS = 50
# Interval for answers, which are less urgent.
ANSWERS_CHECK_MS = 1_000
# Longest time without notable progress of an upload, or of writing a unary answer.
STILL_MS = 10_000
# Longest time for a stream's reader to leave one message untaken without having given credit for it.
STREAM_STILL_MS = 120_000
PROGRESS_BYTES = 16 * 1024
# Slowest permitted rate for taking a whole answer.
ANSWER_BYTES_PER_MS = 64
# Smaller ones are not counted: HTTP/2 accepts this much of every stream before anything is read.
COUNTED_BYTES_MIN = 64 * 1024
# Reads after which a connection is measured again: headers and frames are not counted, some 100 bytes per read.
READS_MEASURED = 64
# Bytes of a call beside requests: its headers with a token and a trace, a window update, a ping.
CALL_BYTES = 1_024
# A peer acknowledges received bytes: a window update or ping of some 30 bytes per 16 KiB or more.
TAKEN_BYTES_PER_BYTE = 256
Task = asyncio.Task[Any]


@dataclass(frozen=True)
class TrafficLimits:
    """Limits of one server."""

    upload_bytes_max: int = 128 * 1024 * 1024
    answer_bytes_max: int = 96 * 1024 * 1024
    connections_max: int = 4_096


class _UnfinishedBytes:
    """Bytes of incomplete requests at the last check, and the time of their last change."""

    __slots__ = ("held", "still_ms", "stirred")

    def __init__(self, now_ms: float) -> None:
        self.held = self.stirred = 0
        self.still_ms = now_ms

    def note(self, held: int, now_ms: float) -> None:
        self.held = held
        if not self.stirred - PROGRESS_BYTES < held < self.stirred + PROGRESS_BYTES:
            self.stirred, self.still_ms = held, now_ms

    def is_still(self, now_ms: float) -> bool:
        return self.held >= COUNTED_BYTES_MIN and now_ms - self.still_ms > STILL_MS


class _Upload(_UnfinishedBytes):
    """The request of a unary call: at most the bytes received by its connection since the call reads."""

    __slots__ = ("before",)

    def __init__(self, before: int, now_ms: float) -> None:
        super().__init__(now_ms)
        # Bytes of other calls, held by the connection before this one.
        self.before = before

    def note(self, held: int, now_ms: float) -> None:
        """Takes the bytes held by the connection."""
        self.before = min(self.before, held)
        super().note(held - self.before, now_ms)


class PeerConnection(_UnfinishedBytes):
    """One peer's connection: its reading tasks, and the bytes read since it was last measured."""

    __slots__ = (
        "acked",
        "base",
        "calls",
        "delivered",
        "oldest",
        "peer",
        "quiet_checks",
        "reads",
        "since_ms",
        "unmeasured",
        "uploads",
        "within",
    )

    def __init__(self, peer: str) -> None:
        super().__init__(0.0)
        self.peer = peer
        # Requests from within this process arrive complete, and use only their sender's memory.
        self.within = peer.startswith(PEER)
        # Reading tasks, oldest first, and whether each reads a stream, in which it may wait for the next message.
        self.reads: dict[Task, bool] = {}
        # Uploads of unary calls present at the last check.
        self.uploads: dict[Task, _Upload] = {}
        # Counter for the search for quiet connections.
        self.quiet_checks = 0
        # Received and taken bytes at the last measurement; calls since, and the bytes passed to them.
        self.base = 0
        self.acked = 0
        self.calls = 0
        self.delivered = 0
        self.unmeasured = 0
        # State at the last check: the oldest read, and the time when it was first seen.
        self.oldest: Task | None = None
        self.since_ms = 0.0

    def note_request(self, data: Any) -> None:
        """Notes a complete request, or the end, that was passed to a call."""
        self.calls += 1
        if data is not grpc.aio.EOF:
            self.delivered += len(data) + 14 + 9 * (len(data) >> 14)

    def unfinished(self, progress: SocketProgress) -> int:
        """Bytes of incomplete requests."""
        allowed = CALL_BYTES * (self.calls + len(self.reads)) + (progress.acked - self.acked) // TAKEN_BYTES_PER_BYTE
        return max(progress.received - self.base - self.delivered - allowed, 0)

    def note(self, held: int, now_ms: float) -> None:
        before = self.held
        super().note(held, now_ms)
        calls = (task for task, is_stream in self.reads.items() if not is_stream)
        self.uploads = {task: self.uploads.get(task) or _Upload(before, now_ms) for task in calls}
        for upload in self.uploads.values():
            upload.note(held, now_ms)

    def still(self, now_ms: float, *, streams: bool) -> dict[Task, int]:
        """Calls with a partly received request without progress for too long, and its bytes.

        Args:
            streams: includes streams; one waiting for its next message cannot be distinguished.
        """
        found = {task: upload.held for task, upload in self.uploads.items() if upload.is_still(now_ms)}
        if streams and self.is_still(now_ms):
            found.update((task, self.held) for task, is_stream in self.reads.items() if is_stream)
        return found

    def measured(self, progress: SocketProgress) -> None:
        """Resets the count: no request is incomplete."""
        self.base, self.acked = progress.received, progress.acked
        self.calls = self.delivered = self.unmeasured = 0


def _answer_room(bytes_max: int) -> Room:
    share, little = bytes_max // 2, bytes_max // 64
    return Room(bytes_max, share=share, little=little, what="answers", reason="ANSWERS_EXHAUSTED", by_host=True)


class _Answer:
    """One answer being written by gRPC."""

    __slots__ = ("peer", "promised", "since_ms", "size")

    def __init__(self, peer: str, size: int, since_ms: float, *, promised: bool = False) -> None:
        self.peer = peer
        self.size = size
        self.since_ms = since_ms
        # Whether the reader of a stream gave credit for it.
        self.promised = promised

    @property
    def still_ms(self) -> float:
        """Time for the reader of a stream to take it."""
        return STILL_MS + self.size / ANSWER_BYTES_PER_MS if self.promised else STREAM_STILL_MS


class Traffic(Collector):
    """The traffic of one server, within all its limits; see the module."""

    def __init__(
        self,
        limits: TrafficLimits,
        registry: CollectorRegistry | None,
        clock: Clock | None = None,
        sockets: Sockets | None = None,
    ) -> None:
        self.upload_bytes_max = limits.upload_bytes_max
        self.connections_max = limits.connections_max
        self._upload_share = max(limits.upload_bytes_max // 2, GRPC_MESSAGE_BYTES_MAX)
        self.answers = _answer_room(limits.answer_bytes_max)
        # Measures network time, even if everything else has a fake clock.
        self._clock = clock or SystemClock()
        self._sockets = sockets or Sockets()
        self._heap = Heap()
        self.connections: dict[str, PeerConnection] = {}
        self._connections_max = 1_024
        self._reading: dict[PeerConnection, None] = {}
        self._writing: dict[Task, _Answer] = {}
        self._streaming: dict[Task, _Answer] = {}
        # Bytes taken, at their last increase, and its time, by peer.
        self._taken: dict[str, tuple[int, float]] = {}
        # Peers of connections that were cut off, until gRPC has released their answers.
        self._ended: set[str] = set()
        self._refusals: dict[Task, DueTimeError] = {}
        self._timer: Timer | None = None
        self._answers_checked_ms = 0.0
        self.upload_bytes = 0
        self.refused_count = 0
        self.cut_count = 0
        if registry is not None:
            registry.register(self)

    # --- uploads ----------------------------------------------------------------------------------------------------

    def connection(self, peer: str) -> PeerConnection:
        """The connection of a call.

        Raises:
            Overloaded: the peer's share of answers is in transit, and it takes none of them.
        """
        self.answers.check(peer)
        found = self.connections.get(peer)
        if found is None:
            found = self.connections[peer] = PeerConnection(peer)
            if len(self.connections) > self._connections_max:
                self._forget()
        return found

    async def read(self, connection: PeerConnection, context: Any, *, stream: bool = False) -> Any:
        """The next request of a call, as bytes; grpc.aio.EOF: there is none.

        Raises:
            Overloaded: the request arrived too slowly, or too much was in transit.
        """
        if connection.within:
            return await context.read()
        reads = connection.reads
        if not reads and connection.unmeasured >= READS_MEASURED:
            self._measure(connection)
        if isinstance(context, InProcessContext) and context.has_request:
            # Nothing has to be awaited, nor limited.
            data: Any = context.take_request()
            connection.unmeasured += 1
            connection.quiet_checks = 0
            connection.note_request(data)
            return data
        task = asyncio.current_task()
        assert task is not None
        if not reads:
            self._reading[connection] = None
            self._arm()
        reads[task] = stream
        connection.unmeasured += READS_MEASURED
        connection.quiet_checks = 0
        try:
            data = await context.read()
            # The request was complete, so only its prefix and frames are left to measure.
            connection.unmeasured += 1 - READS_MEASURED
            connection.note_request(data)
            return data
        except asyncio.CancelledError as cancelled:
            raise self._reason(task, cancelled) from None
        finally:
            del reads[task]
            if not reads:
                del self._reading[connection]

    def _reason(self, task: Task, cancelled: asyncio.CancelledError) -> BaseException:
        """The reason why a task was cancelled: its rejection, or a cancellation from elsewhere."""
        refusal = self._refusals.pop(task, None)
        if refusal is None:
            return cancelled
        task.uncancel()
        return refusal

    def _measure(self, connection: PeerConnection) -> None:
        """Measures a connection; if no scan has found it yet, a later read does."""
        progress = self._sockets.progress(connection.peer)
        if progress is not None:
            connection.measured(progress)

    def _check_uploads(self, now_ms: float) -> None:
        old = [one for one in self._reading if self._is_old(one, now_ms)]
        if any(not self._sockets.knows(one.peer) for one in old):
            self._sockets.scan()
        total = 0
        for connection in old:
            progress = self._sockets.progress(connection.peer)
            connection.note(connection.unfinished(progress) if progress else 0, now_ms)
            total += connection.held
        self.upload_bytes = total
        for connection in self._too_much(old, total, now_ms):
            # Keep the oldest of several reads.
            for task in list(connection.reads)[1:] or list(connection.reads):
                self._refuse(task, f"{connection.held} bytes of requests have arrived, without capacity for more")
        for connection in old:
            still = connection.still(now_ms, streams=total > self.upload_bytes_max // 2)
            for task, held in still.items():
                self._refuse(task, f"{held} bytes of a request have arrived, but none for {STILL_MS} ms")

    def _is_old(self, connection: PeerConnection, now_ms: float) -> bool:
        """Whether a read was present at the last check: only then it is worth measuring."""
        oldest = next(iter(connection.reads))
        if connection.oldest is oldest:
            return True
        connection.oldest, connection.since_ms, connection.still_ms = oldest, now_ms, now_ms
        connection.held = connection.stirred = 0
        return False

    def _too_much(self, old: list[PeerConnection], total: int, now_ms: float) -> Iterable[PeerConnection]:
        """Connections whose uploads are rejected for the benefit of others: those above their share, then the slowest
        of hosts above a small amount."""
        little = self.upload_bytes_max // 64
        held: Counter[str] = Counter()
        for one in old:
            held[host_of(one.peer)] += one.held
        for connection in sorted(old, key=lambda one: one.held / (now_ms - one.since_ms + 10 * CHECK_MS)):
            above = connection.held > self._upload_share
            host, counts = host_of(connection.peer), connection.held >= COUNTED_BYTES_MIN
            if above or (total > self.upload_bytes_max and counts and held[host] > little):
                total -= connection.held
                held[host] -= connection.held
                yield connection

    def _refuse(self, task: Task, text: str) -> None:
        """Ends a call's read with an error."""
        if task in self._refusals:
            return
        self.refused_count += 1
        self._refusals[task] = Overloaded(
            f"{text}: {self.upload_bytes} bytes of requests are in transit; the limit is {self.upload_bytes_max}",
            reason="UPLOADS_EXHAUSTED",
        )
        task.cancel()

    # --- answers ----------------------------------------------------------------------------------------------------

    def answer(self, peer: str, size: int) -> None:
        """Counts an answer until the running task ends: gRPC has written it, or failed."""
        task = asyncio.current_task()
        assert task is not None
        self.answers.shares.take(peer, size)
        self._writing[task] = _Answer(peer, size, self._clock.monotonic_ms())
        task.add_done_callback(self._answered)
        self._arm()

    def _answered(self, task: Task) -> None:
        answer = self._writing.pop(task)
        self.answers.give(answer.peer, answer.size)

    async def write(self, peer: str, context: Any, data: bytes, *, promised: bool = False) -> None:
        """Writes the next answer of a stream. `promised`: its reader gave credit for it, and takes it like a unary
        answer.

        Raises:
            Overloaded: the reader did not take it.
        """
        if isinstance(context, InProcessContext) and context.has_room(len(data)):
            await context.write(data)
            return
        task = asyncio.current_task()
        assert task is not None
        size = len(data) or 1
        self.answers.shares.take(peer, size)
        self._streaming[task] = _Answer(peer, size, self._clock.monotonic_ms(), promised=promised)
        self._arm()
        try:
            await context.write(data)
        except asyncio.CancelledError as cancelled:
            raise self._reason(task, cancelled) from None
        finally:
            answer = self._streaming.pop(task)
            self.answers.give(answer.peer, answer.size)

    def _check_answers(self, now_ms: float) -> None:
        for task, answer in self._streaming.items():
            if now_ms - answer.since_ms > answer.still_ms and task not in self._refusals:
                self.refused_count += 1
                text = f"an answer of {answer.size} bytes was not read for {answer.still_ms:.0f} ms"
                self._refusals[task] = Overloaded(text, reason="ANSWERS_EXHAUSTED")
                task.cancel()
        old: dict[str, _Answer] = {}
        for answer in self._writing.values():
            if now_ms - answer.since_ms > ANSWERS_CHECK_MS:
                old.setdefault(answer.peer, answer)
        if any(not self._sockets.knows(peer) for peer in old):
            self._sockets.scan()
        self._taken = {peer: self._progress(peer, now_ms) for peer in old}
        self._ended &= old.keys()
        cut = []
        for peer, (_, since_ms) in self._taken.items():
            answer = old[peer]
            late_ms = now_ms - answer.since_ms - answer.size / ANSWER_BYTES_PER_MS
            if max(now_ms - since_ms, late_ms) > STILL_MS and peer not in self._ended:
                cut.append(peer)
                self._sockets.cut(peer)
        if cut:
            self._ended.update(cut)
            self.cut_count += len(cut)
            size = sum(map(self.answers.shares.held, cut))
            log.warning("connections cut off: answers not read", count=len(cut), bytes=size, peer=cut[0])

    def _progress(self, peer: str, now_ms: float) -> tuple[int, float]:
        progress = self._sockets.progress(peer)
        acked = progress.acked if progress else 0
        before = self._taken.get(peer)
        if before is None or acked > before[0] + PROGRESS_BYTES:
            return acked, now_ms
        return before

    # --- both -------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._clock.call_later(CHECK_MS, self._check)

    def _check(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        try:
            self._check_uploads(now_ms)
            if now_ms - self._answers_checked_ms >= ANSWERS_CHECK_MS:
                self._answers_checked_ms = now_ms
                self._check_answers(now_ms)
            self._heap.note(self.upload_bytes + self.answers.shares.used, now_ms)
        finally:
            if self._reading or self._writing or self._streaming or self._heap.is_grown:
                self._arm()

    def is_idle(self, connection: PeerConnection) -> bool:
        """Whether nothing is read or written on a connection; a waiting call does neither."""
        busy = any(answer.peer == connection.peer for answer in (*self._writing.values(), *self._streaming.values()))
        return not connection.reads and not busy

    def _forget(self) -> None:
        """Drops closed connections."""
        self._sockets.scan()
        for peer, connection in list(self.connections.items()):
            if not connection.reads and not self._sockets.knows(peer):
                del self.connections[peer]
        self._connections_max = max(1_024, 2 * len(self.connections))

    def stop(self) -> None:
        """Stops checking."""
        if self._timer is not None:
            self._timer.cancel()

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        shares = self.answers.shares
        for name, text, value in (
            ("duetime_upload_bytes", "Bytes of unfinished requests", self.upload_bytes),
            ("duetime_upload_max_bytes", "Limit of them; the slowest are rejected", self.upload_bytes_max),
            ("duetime_answer_bytes", "Bytes of answers being made or written", shares.used),
            ("duetime_answer_max_bytes", "Limit of them; answers are rejected", shares.limit),
        ):
            yield GaugeMetricFamily(name, text, value)
        refused = CounterMetricFamily("duetime_traffic_refused", "Calls rejected for bytes in transit", labels=["what"])
        refused.add_metric(["uploads"], self.refused_count)
        refused.add_metric(["answers"], shares.refused_count)
        yield refused
        yield CounterMetricFamily("duetime_connections_cut", "Connections closed by the process", self.cut_count)
