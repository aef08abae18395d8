"""A server's metrics of its calls, on a real socket."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from duetime_core.errors import NotFound
from duetime_core.rpc.serving import FrontKind, Server, make_channel
from duetime_core.telemetry.meter import CALL_BUCKETS_S, MethodMeter, export_process
from prometheus_client import CollectorRegistry, generate_latest

from tests import fronts

pytestmark = fronts.both

SERVICE = "duetime.v1.Gateway"


async def unary(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
    if request == b"missing":
        raise NotFound("no topic x", reason="TOPIC_NOT_FOUND")
    if request == b"bug":
        raise ZeroDivisionError
    if request == b"abort":
        await context.abort(grpc.StatusCode.ABORTED, "by the service")
    if request == b"wait":
        await asyncio.Event().wait()
    return request


async def stream(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> AsyncIterator[bytes]:
    yield request
    await unary(request, context)


@pytest.fixture
async def registry_and_channel() -> AsyncIterator[tuple[CollectorRegistry, grpc.aio.Channel]]:
    registry = CollectorRegistry()
    server = Server([SERVICE], 7, registry)
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
    }
    server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    await server.start("127.0.0.1", 0, front=fronts.current())
    async with make_channel(f"127.0.0.1:{server.port}") as channel:
        yield registry, channel
    await server.stop(0)


async def call(channel: grpc.aio.Channel, request: bytes) -> None:
    with suppress(grpc.aio.AioRpcError):
        await channel.unary_unary(f"/{SERVICE}/Unary")(request, timeout=60)


async def test_calls_are_counted_by_method_and_status(
    registry_and_channel: tuple[CollectorRegistry, grpc.aio.Channel],
) -> None:
    registry, channel = registry_and_channel
    for request in (b"well", b"well", b"missing", b"bug", b"abort"):
        await call(channel, request)
    assert [part async for part in channel.unary_stream(f"/{SERVICE}/Stream")(b"well", timeout=60)] == [b"well"]

    def count(method: str, code: str) -> float | None:
        return registry.get_sample_value("duetime_calls_total", {"method": method, "code": code})

    codes = ("OK", "NOT_FOUND", "INTERNAL", "ABORTED")
    assert [count("Unary", code) for code in codes] == [2, 1, 1, 1]
    assert count("Stream", "OK") == 1
    assert registry.get_sample_value("duetime_call_seconds_count", {"method": "Unary"}) == 5
    assert registry.get_sample_value("duetime_calls_in_flight", {"method": "Unary"}) == 0
    assert registry.get_sample_value("duetime_calls_in_flight_max") == 7


async def test_call_that_runs_is_in_flight_and_one_left_is_cancelled(
    registry_and_channel: tuple[CollectorRegistry, grpc.aio.Channel],
) -> None:
    registry, channel = registry_and_channel

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"method": "Unary", **labels})

    waiting = channel.unary_unary(f"/{SERVICE}/Unary")(b"wait", timeout=60)
    while not value("duetime_calls_in_flight"):
        await call(channel, b"well")
        if value("duetime_calls_in_flight") == 1:
            break
    waiting.cancel()
    while value("duetime_calls_total", code="CANCELLED") is None:
        await call(channel, b"well")
    assert value("duetime_calls_in_flight") == 0


def test_buckets_are_cumulative() -> None:
    meter = MethodMeter()
    for seconds in (0.0001, CALL_BUCKETS_S[0], 0.03, 1_000.0):
        meter.ended(seconds, "OK")
    buckets = dict(meter.buckets)
    assert buckets["0.001"] == 2
    assert buckets["0.025"] == 2
    assert buckets["0.05"] == 3
    assert buckets["40.0"] == 3
    assert buckets["+Inf"] == 4


def test_process_reports_its_build_and_resources() -> None:
    registry = CollectorRegistry()
    export_process("store", registry, FrontKind.COMPILED)
    text = generate_latest(registry).decode()
    assert re.search(r'^duetime_build_info\{.*front="compiled",process="store"', text, re.MULTILINE)
    assert "process_resident_memory_bytes" in text
