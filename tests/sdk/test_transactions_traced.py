"""Spans of transactions: the prepare, the end, and the check in the trace that the message carries."""

from collections.abc import Iterator

import pytest
from duetime import AsyncProducer, Decision, UndecidedMessage, tracing
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.sdk.fake_transactions import FakeTransactions


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


async def test_a_transaction_is_traced_to_its_check(spans: InMemorySpanExporter) -> None:
    gateway = FakeTransactions()
    await gateway.start()
    async with AsyncProducer(gateway.address) as producer:

        @producer.check("billing")
        async def resolve(message: UndecidedMessage) -> Decision:
            return Decision.COMMIT

        async with producer.transaction("orders", b"x", group="billing"):
            pass
        async with producer.transaction("orders", b"y", group="billing") as tx:
            tx.leave_open()
        await gateway.until(lambda: "billing" in gateway.watchers)
        gateway.ask("billing", tx.id)
        await gateway.until(lambda: bool(gateway.answers))
    await gateway.stop()
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {"send orders", "duetime.v1.Gateway/Prepare", "commit orders", "check orders"}
    # The second send's: that of the message that is asked about.
    assert trace_of(found["check orders"]) == trace_of(found["send orders"])
    assert trace_of(found["duetime.v1.Gateway/Prepare"]) == trace_of(found["send orders"])
    attributes = found["commit orders"].attributes
    assert attributes is not None
    assert attributes["messaging.destination.name"] == "orders"
