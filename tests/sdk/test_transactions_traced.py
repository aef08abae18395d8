"""Spans of transactions: the prepare, the end, and the check in the trace that the message carries."""

import asyncio
from collections.abc import Iterator

import pytest
from duetime import AsyncProducer, Decision, UndecidedMessage, tracing
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.sdk.gateway import Gateway


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable(provider)
    yield exporter
    tracing.disable()


def trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


async def test_a_transaction_is_traced_to_its_check(
    tap: Gateway, topic: str, group: str, spans: InMemorySpanExporter
) -> None:
    async with AsyncProducer(tap.address) as producer:

        @producer.check(group)
        async def resolve(message: UndecidedMessage) -> Decision:
            return Decision.COMMIT

        async with producer.transaction(topic, b"x", group=group):
            pass
        async with producer.transaction(topic, b"y", group=group) as tx:
            tx.leave_open()
        await asyncio.to_thread(tap.nodes.advance, "30s")
        await tap.until(lambda: any(request.ends for request in tap.requests["WatchTransactions"]))
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {f"send {topic}", "duetime.v1.Gateway/Prepare", f"commit {topic}", f"check {topic}"}
    # The message of the check is that of the second send.
    assert trace_of(found[f"check {topic}"]) == trace_of(found[f"send {topic}"])
    assert trace_of(found["duetime.v1.Gateway/Prepare"]) == trace_of(found[f"send {topic}"])
    attributes = found[f"commit {topic}"].attributes
    assert attributes is not None
    assert attributes["messaging.destination.name"] == topic
