"""The gRPC border on a real socket: errors, limits, health, ports."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from duetime.client.errors import STATUS_LOST
from duetime_core.errors import DueTimeError, NotFound, StartupError, Unauthenticated
from duetime_core.rpc.border import BorderParts
from duetime_core.rpc.serving import Server, make_channel
from duetime_format.limits import REQUEST_BYTES_MAX
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from tests import fronts

pytestmark = fronts.both

SERVICE = "duetime.v1.Gateway"


class Large:
    """Data of a call."""


class Service:
    """Answers, fails or waits, as the request's bytes say."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.waiting = asyncio.Semaphore(0)
        # Set when the data of a rejected call is freed.
        self.freed = asyncio.Event()

    async def unary(self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        await self._act(request, context)
        return request

    async def stream(
        self, requests: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            await self._act(request, context)
            yield request

    async def unary_stream(
        self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> AsyncIterator[bytes]:
        yield request
        await self._act(request, context)

    async def _act(self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        if request == b"wait":
            self.waiting.release()
            await self.release.wait()
        if request == b"missing":
            raise NotFound("no topic x", reason="TOPIC_NOT_FOUND")
        if request == b"bug":
            raise ZeroDivisionError("secret")
        if request == b"large":
            self._reject_large()
        if request == b"abort":
            await context.abort(grpc.StatusCode.ABORTED, "by the service")

    def _reject_large(self) -> None:
        large = Large()
        weakref.finalize(large, self.freed.set)
        try:
            raise KeyError(large)
        except KeyError as error:
            raise NotFound("no topic x", reason="TOPIC_NOT_FOUND") from error


@asynccontextmanager
async def serving(
    calls_in_flight_max: int = 100, gatekeeper: Any = None
) -> AsyncIterator[tuple[Service, grpc.aio.Channel, Server]]:
    service, server = Service(), Server([SERVICE], calls_in_flight_max, parts=BorderParts(gatekeeper=gatekeeper))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(service.unary),
        "Stream": grpc.stream_stream_rpc_method_handler(service.stream),
        "UnaryStream": grpc.unary_stream_rpc_method_handler(service.unary_stream),
    }
    server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    try:
        await server.start("127.0.0.1", 0, front=fronts.current())
        async with make_channel(f"127.0.0.1:{server.port}") as channel:
            yield service, channel, server
    finally:
        service.release.set()
        await server.stop(0)


async def call(channel: grpc.aio.Channel, kind: str, request: bytes) -> list[bytes]:
    """All answers to one request, by a method of the kind."""
    path = f"/{SERVICE}/{kind}"
    if kind == "Unary":
        return [await channel.unary_unary(path)(request, timeout=60)]
    if kind == "UnaryStream":
        return [answer async for answer in channel.unary_stream(path)(request, timeout=60)]
    while True:
        try:
            return [answer async for answer in channel.stream_stream(path)(iter([request]), timeout=60)]
        except grpc.aio.AioRpcError as error:
            # gRPC hides the status of a stream that ends while its request is being written.
            if error.details() != STATUS_LOST:
                raise


KINDS = ["Unary", "Stream", "UnaryStream"]


@pytest.mark.parametrize("kind", KINDS)
async def test_answers_pass_untouched(kind: str) -> None:
    async with serving() as (_, channel, _):
        assert await call(channel, kind, b"hello") == [b"hello"]


@pytest.mark.parametrize("kind", KINDS)
async def test_error_becomes_its_status(kind: str) -> None:
    async with serving() as (_, channel, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, b"missing")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "no topic x")
    packed = rpc_status.from_call(caught.value)
    info = error_details_pb2.ErrorInfo.FromString(packed.details[0].value)
    assert (info.reason, info.domain) == ("TOPIC_NOT_FOUND", "duetime")


@pytest.mark.parametrize("kind", KINDS)
async def test_unknown_exception_is_internal_and_shows_no_secret(kind: str) -> None:
    async with serving() as (_, channel, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, b"bug")
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert caught.value.details() == "internal error; see the process's log"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rejected_call_frees_its_data_without_the_garbage_collector(kind: str) -> None:
    gc.disable()
    try:
        async with serving() as (service, channel, _):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(channel, kind, b"large")
            async with asyncio.timeout(60):
                await service.freed.wait()
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", KINDS)
async def test_abort_of_the_service_passes(kind: str) -> None:
    async with serving() as (_, channel, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, b"abort")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.ABORTED, "by the service")


@pytest.mark.parametrize("kind", KINDS)
async def test_call_past_the_limit_is_refused_until_another_ends(kind: str) -> None:
    async with serving(calls_in_flight_max=2) as (service, channel, _):
        async with asyncio.TaskGroup() as group:
            held = [group.create_task(call(channel, kind, b"wait")) for _ in range(2)]
            for _ in held:
                await service.waiting.acquire()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel, kind, b"hello")
            service.release.set()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == "2 calls are in flight, the limit of this process"
        assert [task.result() for task in held] == [[b"wait"]] * 2
        for request in (b"missing", b"bug", b"abort"):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(channel, kind, request)
        assert [await call(channel, kind, b"hello") for _ in range(3)] == [[b"hello"]] * 3


@pytest.mark.parametrize("kind", ["Unary", "Stream"])
async def test_abandoned_call_frees_its_place(kind: str) -> None:
    async with serving(calls_in_flight_max=1) as (service, channel, _):
        async with asyncio.TaskGroup() as group:
            given_up = group.create_task(call(channel, kind, b"wait"))
            await service.waiting.acquire()
            given_up.cancel()
        async with asyncio.timeout(60):
            while True:
                # The server hears of it a moment later; until then it refuses.
                with suppress(grpc.aio.AioRpcError):
                    assert await call(channel, kind, b"hello") == [b"hello"]
                    break


async def test_health_answers_although_the_limit_is_reached() -> None:
    async with serving(calls_in_flight_max=0) as (_, channel, _):
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_health_turns_before_the_server_ends() -> None:
    async with serving() as (service, channel, server):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        answers = aiter(watch)
        assert (await anext(answers)).status == health_pb2.HealthCheckResponse.SERVING
        async with asyncio.TaskGroup() as group:
            group.create_task(call(channel, "Unary", b"wait"))
            await service.waiting.acquire()
            group.create_task(server.stop(10_000))
            assert (await anext(answers)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watch.cancel()
            service.release.set()


async def test_reflection_lists_the_service() -> None:
    async with serving() as (_, channel, _):
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answers = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
    names = {service.name for service in answers[0].list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names


async def test_largest_request_passes() -> None:
    async with serving() as (_, channel, _):
        request = bytes(REQUEST_BYTES_MAX)
        assert await call(channel, "Unary", request) == [request]


async def test_busy_port_is_refused() -> None:
    async with serving() as (_, _, server):
        second = Server([SERVICE], 1)
        with pytest.raises(StartupError, match=rf"cannot listen on 127.0.0.1:{server.port}: address already in use"):
            await second.start("127.0.0.1", server.port, front=fronts.current())
        await second.stop(0)


async def test_address_of_another_machine_is_refused() -> None:
    server = Server([SERVICE], 1)
    with pytest.raises(StartupError, match=r"cannot listen on 192.0.2.1:0: cannot assign requested address"):
        await server.start("192.0.2.1", 0, front=fronts.current())
    await server.stop(0)


async def test_ipv6_is_listened_on() -> None:
    server = Server([SERVICE], 1)
    try:
        await server.start("::1", 0, front=fronts.current())
    except StartupError:
        pytest.skip("this machine has no IPv6")
    finally:
        await server.stop(0)
    assert server.port > 0


class Porter:
    """A gatekeeper that refuses or ends calls on demand."""

    def __init__(self) -> None:
        self.refuses = False
        self.inside: dict[asyncio.Task[Any], str] = {}
        self.emptied = asyncio.Event()
        self._ended: dict[asyncio.Task[Any], DueTimeError] = {}

    async def admit(self, method: str, context: Any, role: Any) -> None:
        if self.refuses:
            raise Unauthenticated("nobody knows you", reason="TOKEN_INVALID")
        task = asyncio.current_task()
        assert task is not None
        self.inside[task] = method

    def ended(self) -> DueTimeError | None:
        task = asyncio.current_task()
        assert task is not None
        reason = self._ended.pop(task, None)
        if reason is not None:
            task.uncancel()
        return reason

    def left(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.inside.pop(task, None)
        if not self.inside:
            self.emptied.set()

    def end_all(self) -> None:
        for task in self.inside:
            self._ended[task] = Unauthenticated("you were shut out", reason="USER_REVOKED")
            task.cancel()


async def test_call_that_the_gatekeeper_refuses_is_not_read() -> None:
    porter = Porter()
    porter.refuses = True
    async with serving(gatekeeper=porter) as (service, channel, _):
        for kind, method in (("unary_unary", "Unary"), ("stream_stream", "Stream"), ("unary_stream", "UnaryStream")):
            call = getattr(channel, kind)(f"/{SERVICE}/{method}")
            # A stream writes nothing: gRPC hides its status if it ends during a write.
            made = call() if kind == "stream_stream" else call(b"wait")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (made if kind == "unary_unary" else made.read())
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert service.waiting.locked()
        assert not porter.inside


@pytest.mark.parametrize(("kind", "method"), [("unary_unary", "Unary"), ("stream_stream", "Stream")])
async def test_call_that_the_gatekeeper_ends_has_its_reason(kind: str, method: str) -> None:
    porter = Porter()
    async with serving(gatekeeper=porter) as (service, channel, _):
        made = getattr(channel, kind)(f"/{SERVICE}/{method}")(iter([b"wait"]) if kind == "stream_stream" else b"wait")
        ending = asyncio.ensure_future(made if kind == "unary_unary" else made.read())
        await service.waiting.acquire()
        porter.end_all()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ending
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert caught.value.details() == "you were shut out"
        # Leaves after the client has its answer.
        async with asyncio.timeout(60):
            await porter.emptied.wait()
