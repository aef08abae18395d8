"""A port in front of a real node: it records requests, and holds, rejects, changes or loses single calls on order."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Self

import grpc
from duetime.v1 import consumer_pb2, gateway_pb2, pending_pb2, store_pb2  # noqa: F401  (their files go into the pool)
from duetime_core.errors import DueTimeError
from duetime_core.rpc.channels import MESSAGE_OPTIONS
from duetime_core.rpc.serving import SERVER_OPTIONS, make_channel, status_of
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

WAIT_S = 60
# Metadata that gRPC itself adds to each call.
OF_GRPC = ("grpc-", "user-agent", "te", "content-type")


class Lost(Exception):
    """Raised by a hook: the call ends with this status, as when the connection breaks."""

    def __init__(self, code: grpc.StatusCode, details: str = "as the test wants it") -> None:
        super().__init__(code, details)
        self.code, self.details = code, details


class Tap:
    """A server of one service of the contract that forwards each call to a node, byte for byte.

        client ── request ──▶ requests ▸ gate ▸ before ──▶ node
               ◀── answer ──────────── after ◀────────────

    Hooks belong to a method, by its short name. `before[method]` takes a request; `after[method]` takes a request and
    its answer. Both change the message in place, return another one to replace it, or raise: `Lost` ends the call with
    a bare status, a DueTimeError with its own. An error in `after` means: the node did the work, the answer was lost.
    `instead[method]` answers a request in the node's place, or returns None; the node gets the rest of the request.
    `watch` sees each request and answer of the node: the method, the call's requests so far, and the answer or None.
    In streams the hooks see each message; an answer's request is the oldest unanswered one, or the one of its number.
    """

    def __init__(self, service: str, address: str = "") -> None:
        """`service`: as `duetime.v1.Gateway`; `address`: of the node, which may be set after the start."""
        self.service, self.node = service, address
        described = descriptor_pool.Default().FindServiceByName(service)
        self._methods = {
            method.name: (GetMessageClass(method.input_type), GetMessageClass(method.output_type))
            for method in described.methods
        }
        self.requests: defaultdict[str, list[Any]] = defaultdict(list)
        # The same of all methods, in the order of their arrival.
        self.arrived: list[tuple[str, Any]] = []
        # Seconds left at each call's beginning, None without a deadline.
        self.remaining: defaultdict[str, list[float | None]] = defaultdict(list)
        # Calls that have not ended.
        self.open: defaultdict[str, int] = defaultdict(int)
        # Requests that wait for the gate.
        self.waiting: defaultdict[str, int] = defaultdict(int)
        self.before: dict[str, Callable[[Any], Message | None]] = {}
        self.after: dict[str, Callable[[Any, Any], Message | None]] = {}
        self.instead: dict[str, Callable[[Any], Message | None]] = {}
        self.watch: Callable[[str, list[Any], Any], None] | None = None
        # Methods whose calls the node appears to reject, with this error.
        self.closed: dict[str, DueTimeError] = {}
        # How many calls of such methods came.
        self.refused: defaultdict[str, int] = defaultdict(int)
        self.changed = asyncio.Condition()
        self._calls: defaultdict[str, set[_Forwarded]] = defaultdict(set)
        self.port = 0
        self._gates: dict[str, asyncio.Event] = {}
        self._passed: dict[str, asyncio.Event] = {}
        self._answer_gates: dict[str, asyncio.Event] = {}
        self._server: grpc.aio.Server | None = None
        self._channel: grpc.aio.Channel | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens; after a stop, on the same port again."""
        self._channel = make_channel(self.node)
        self._server = grpc.aio.server(options=(*SERVER_OPTIONS, *MESSAGE_OPTIONS))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """Ends all calls; later ones find nobody. The node continues."""
        if self._server is not None and self._channel is not None:
            await self._server.stop(0)
            await self._channel.close()
            self._server = self._channel = None

    def hold(self, *methods: str, answers: bool = False) -> None:
        """Requests of these methods, or their answers, wait for `release`."""
        for method in methods:
            (self._answer_gates if answers else self._gates)[method] = asyncio.Event()

    def let_pass(self, *methods: str) -> None:
        """Later requests pass; those that wait still wait for `release`."""
        for method in methods:
            self._passed[method] = self._gates.pop(method)

    def release(self, *methods: str) -> None:
        for gates in (self._gates, self._passed, self._answer_gates):
            for method in methods or list(gates):
                if (gate := gates.pop(method, None)) is not None:
                    gate.set()

    def lose(self, *methods: str, codes: Iterable[grpc.StatusCode | None]) -> None:
        """The next answers of these methods are lost with these statuses, one each; None: this one passes."""
        left = iter(codes)

        def lost(_request: Any, _answer: Any) -> None:
            if (code := next(left, None)) is not None:
                raise Lost(code)

        self.after.update(dict.fromkeys(methods, lost))

    def end(self, method: str) -> None:
        """Ends the open calls of a method without an error, as a server that stops does."""
        for forwarded in self._calls[method]:
            forwarded.ended.set()

    async def until(self, holds: Callable[[], Any]) -> None:
        """Returns once `holds`; it is asked at each request, answer and end of a call."""
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(holds)

    async def until_requests(self, method: str, count: int) -> None:
        await self.until(lambda: len(self.requests[method]) >= count)

    async def until_waiting(self, method: str, count: int) -> None:
        await self.until(lambda: self.waiting[method] >= count)

    # --- one call ---------------------------------------------------------------------------------------------------

    async def serve(self, method: str, context: Any) -> None:
        self.remaining[method].append(context.time_remaining())
        self.open[method] += 1
        assert self._channel is not None
        metadata = tuple((k, v) for k, v in context.invocation_metadata() if not k.startswith(OF_GRPC))
        call: Any = self._channel.stream_stream(f"/{self.service}/{method}")(
            metadata=metadata, timeout=context.time_remaining()
        )
        forwarded = _Forwarded(method, context, call)
        sending = asyncio.create_task(self._send(forwarded))
        receiving = asyncio.create_task(self._receive(forwarded))
        ending = asyncio.create_task(forwarded.ended.wait())
        tasks = {sending, receiving, ending}
        self._calls[method].add(forwarded)
        try:
            waiting = tasks
            while not (receiving.done() or ending.done()):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if not task.cancelled() and (error := task.exception()) is not None:
                        await _abort(context, error)
        finally:
            self._calls[method].discard(forwarded)
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.wait(tasks)
            if forwarded.written is not None:
                await asyncio.wait({forwarded.written})
            self.open[method] -= 1
            await self._notify()

    async def _send(self, forwarded: "_Forwarded") -> None:
        """Requests are recorded as they come, also while earlier ones of the stream wait for the gate."""
        method, call = forwarded.method, forwarded.call
        arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        reading = asyncio.create_task(self._read(method, forwarded.context, arrived))
        try:
            while (data := await arrived.get()) is not None:
                await self._pass_gate(method)
                if (data := await self._hooked(forwarded, data)) is not None:
                    with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                        await call.write(data)
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                await call.done_writing()
        finally:
            reading.cancel()
            self.waiting[method] -= sum(data is not None for data in _taken(arrived))

    async def _hooked(self, forwarded: "_Forwarded", data: bytes) -> bytes | None:
        """The request that goes to the node; None: there is none."""
        method = forwarded.method
        made, _ = self._methods[method]
        request, changed = made.FromString(data), made.FromString(data)
        forwarded.sent.append(request)
        if self.watch is not None:
            self.watch(method, forwarded.sent, None)
        if (hook := self.before.get(method)) is not None:
            changed = hook(changed) or changed
        if (instead := self.instead.get(method)) is not None and (answer := instead(changed)) is not None:
            await forwarded.write(answer.SerializeToString())
            await self._notify()
            if not changed.ByteSize():
                return None
        forwarded.unanswered.append(request)
        return changed.SerializeToString()

    async def _read(self, method: str, context: Any, arrived: "asyncio.Queue[bytes | None]") -> None:
        made, _ = self._methods[method]
        while (data := await context.read()) is not grpc.aio.EOF:
            request = made.FromString(data)
            self.requests[method].append(request)
            self.arrived.append((method, request))
            self.waiting[method] += 1
            arrived.put_nowait(data)
            await self._notify()
        arrived.put_nowait(None)

    async def _receive(self, forwarded: "_Forwarded") -> None:
        method, call = forwarded.method, forwarded.call
        _, made = self._methods[method]
        while (data := await call.read()) is not grpc.aio.EOF:
            if self.watch is not None:
                self.watch(method, forwarded.sent, made.FromString(data))
                await self._notify()
            while (gate := self._answer_gates.get(method)) is not None:
                await gate.wait()
            if (hook := self.after.get(method)) is not None:
                answer = made.FromString(data)
                data = (hook(_request_of(answer, forwarded.unanswered), answer) or answer).SerializeToString()
            await forwarded.write(data)
            await self._notify()
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )

    async def _pass_gate(self, method: str) -> None:
        try:
            while (gate := self._gates.get(method)) is not None:
                await gate.wait()
        finally:
            self.waiting[method] -= 1

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


class _Forwarded:
    """A call and its counterpart at the node."""

    def __init__(self, method: str, context: Any, call: Any) -> None:
        self.method, self.context, self.call = method, context, call
        self.sent: list[Any] = []
        self.unanswered: deque[Any] = deque()
        self.ended = asyncio.Event()
        self.written: asyncio.Future[None] | None = None
        self._writing = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        """gRPC takes one message at a time, and a cancelled write keeps its call open forever."""
        async with self._writing:
            self.written = asyncio.ensure_future(self.context.write(data))
            await asyncio.shield(self.written)


class _Handlers(grpc.GenericRpcHandler):
    """Every method of the tap's service, as streams of bytes."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def service(self, details: Any) -> Any:
        service, _, method = details.method.removeprefix("/").partition("/")
        if service != self._tap.service:
            return None
        if (error := self._tap.closed.get(method)) is not None:
            self._tap.refused[method] += 1

            async def refuse(_requests: Any, context: Any) -> None:
                await _abort(context, error)

            return grpc.stream_stream_rpc_method_handler(refuse)

        async def serve(_requests: Any, context: Any) -> None:
            await self._tap.serve(method, context)

        return grpc.stream_stream_rpc_method_handler(serve)


def _taken(queue: "asyncio.Queue[bytes | None]") -> Iterator[bytes | None]:
    while not queue.empty():
        yield queue.get_nowait()


def _request_of(answer: Any, unanswered: deque[Any]) -> Any:
    number = getattr(answer, "number", None)
    for request in unanswered if number is not None else ():
        if getattr(request, "number", None) == number:
            unanswered.remove(request)
            return request
    return unanswered.popleft() if len(unanswered) > 1 else unanswered[0]


async def _abort(context: Any, error: BaseException) -> None:
    match error:
        case Lost():
            await context.abort(error.code, error.details)
        case DueTimeError():
            await context.abort_with_status(status_of(error))
        case grpc.aio.AioRpcError():
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
        case _:
            raise error
