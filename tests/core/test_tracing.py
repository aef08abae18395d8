"""Spans of batches, and their way to an OTLP endpoint."""

import asyncio
import gzip
import socket
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from duetime import Producer, tracing
from duetime_core.errors import StartupError
from duetime_core.telemetry import tracing as core_tracing
from duetime_core.testing import LocalCluster
from duetime_format import record
from duetime_format.properties import encode_properties
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Receives the exports of OpenTelemetry."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[tuple[str, str]]:
        """(service, name) of each span."""
        return [
            (resource.resource.attributes[i].value.string_value, span.name)
            for _, request in self.requests
            for resource in request.resource_spans
            for i, attribute in enumerate(resource.resource.attributes)
            if attribute.key == "service.name"
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, Collector)
        self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name for it
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def records(*traceparents: str) -> tuple[bytes, list[int]]:
    parts = [encoded(f"ID{n}", {"traceparent": one} if one else {}) for n, one in enumerate(traceparents)]
    return b"".join(parts), [len(part) for part in parts]


def encoded(message_id: str, properties: dict[str, str], body: bytes = b"body") -> bytes:
    pairs = encode_properties({"UNIQ_KEY": message_id, **properties})
    return record.encode(record.Record("orders", 0, body, record.with_crc_mark(pairs)))


async def test_process_sends_its_spans_to_the_endpoint(collector: Collector) -> None:
    exporting = core_tracing.TraceExporter("scheduler", collector.url + "/")
    assert core_tracing.active is not None
    core_tracing.active.messages("restore", *records("", SAMPLED), time.time_ns())
    await exporting.stop()
    assert {path for path, _ in collector.requests} == {"/v1/traces"}
    assert sorted(collector.spans()) == [
        ("duetime-scheduler", "restore batch"),
        ("duetime-scheduler", "restore orders"),
    ]
    assert core_tracing.active is None


async def test_without_an_endpoint_nothing_is_traced() -> None:
    exporting = core_tracing.TraceExporter("scheduler", "")
    assert core_tracing.active is None
    await exporting.stop()


async def test_endpoint_that_does_not_answer_holds_no_stop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_tracing, "SHUTDOWN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        exporting = core_tracing.TraceExporter("scheduler", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert core_tracing.active is not None
        core_tracing.active.messages("restore", *records(SAMPLED), time.time_ns())
        async with asyncio.timeout(60):
            await exporting.stop()


def test_missing_packages_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartupError, match=r"pip install 'duetime\[otel\]'"):
        core_tracing.TraceExporter("store", "http://127.0.0.1:4318")


@pytest.mark.parametrize("traced", [[0], [2], [0, 1, 2], []])
def test_traced_messages_of_a_batch_are_found(traced: list[int]) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    core = core_tracing.ProcessTracer(provider)
    data, sizes = records(*(SAMPLED if n in traced else "" for n in range(3)))
    # A place without a record, as a damaged entry has it.
    core.messages("restore", data, [sizes[0], 0, *sizes[1:]], time.time_ns())
    ids = [
        span.attributes["messaging.message.id"]
        for span in exporter.get_finished_spans()
        if span.attributes and span.name == "restore orders"
    ]
    assert ids == [f"ID{n}" for n in traced]


def test_mark_in_a_body_and_damaged_bytes_are_no_context() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    core = core_tracing.ProcessTracer(provider)
    body = b"traceparent\x01" + SAMPLED.encode() + b"\x02"
    data = encoded("ID0", {}, body)
    core.messages("restore", data, [len(data)], time.time_ns())
    core.messages("restore", body, [len(body)], time.time_ns())
    assert record.decode(data).body == body
    assert exporter.get_finished_spans() == ()


def test_plain_producer_continues_the_caller_s_span() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable(provider)
    try:
        with (
            LocalCluster() as cluster,
            Producer(cluster.address) as producer,
            provider.get_tracer("app").start_as_current_span("checkout") as checkout,
        ):
            producer.send("orders", b"x")
    finally:
        tracing.disable()
    (span,) = [span for span in exporter.get_finished_spans() if span.name == "send orders"]
    assert span.parent is not None
    assert span.parent.span_id == checkout.get_span_context().span_id
