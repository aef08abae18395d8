"""Traces of messages through the whole cluster, on a fake clock, with spans kept in memory."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from duetime import AsyncProducer, Consumer, LeasedMessage, Message, tracing
from duetime.client import tracing as client_tracing
from duetime.client.connection import pause
from duetime_core.telemetry import tracing as core_tracing
from duetime_core.testing import Cluster
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

WITHIN_S = 60


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    yield from _traced(ALWAYS_ON)


@pytest.fixture
def no_spans() -> Iterator[InMemorySpanExporter]:
    """The application samples nothing; the cluster's processes would export."""
    yield from _traced(ALWAYS_OFF)


def _traced(sampler: Sampler) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    client, core = TracerProvider(sampler), TracerProvider(ALWAYS_ON)
    for provider in (client, core):
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable(client)
    core_tracing.use(core)
    yield exporter
    tracing.disable()
    core_tracing.use(None)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Requested after the spans: processes trace from their start on."""
    async with Cluster() as cluster:
        yield cluster


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await pause(0.005)


def names(spans: InMemorySpanExporter, trace_id: int | None = None) -> Counter[str]:
    return Counter(
        span.name for span in spans.get_finished_spans() if trace_id in (None, span.get_span_context().trace_id)
    )


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


async def test_one_trace_leads_from_send_over_restore_and_retry_to_ack(
    spans: InMemorySpanExporter, cluster: Cluster
) -> None:
    consumer = Consumer(cluster.address, group="billing")
    inside: list[trace.SpanContext] = []

    @consumer.handler("orders", backoff="10s", max_attempts=3)
    async def handle(message: LeasedMessage) -> None:
        inside.append(trace.get_current_span().get_span_context())
        if message.attempt == 1:
            raise ValueError("not yet")

    async with AsyncProducer(cluster.address) as producer:
        receipt = await producer.send("orders", b"x", delay="5s")
    await cluster.advance("5s")
    async with asyncio.timeout(WITHIN_S), consumer:
        await until(lambda: consumer.stats.retried == 1)
        await cluster.advance("10s")
        await until(lambda: consumer.stats.handled == 1)
        await until(lambda: named(spans, "ack orders"))

    (sent,) = named(spans, "send orders")
    trace_id = sent.get_span_context().trace_id
    assert names(spans, trace_id) == {
        "send orders": 1,
        "duetime.v1.Gateway/Send": 2,
        "restore orders": 1,
        "process orders": 2,
        "nack orders": 1,
        "retry orders": 1,
        "restore %RETRY%billing": 1,
        "ack orders": 1,
    }
    first, second = named(spans, "process orders")
    assert [span.get_span_context() for span in (first, second)] == inside
    assert [span.attributes and span.attributes["duetime.attempt"] for span in (first, second)] == [1, 2]
    assert [span.status.status_code.name for span in (first, second)] == ["ERROR", "UNSET"]
    (restored,) = named(spans, "restore orders")
    assert restored.attributes is not None
    assert restored.attributes["messaging.message.id"] == receipt.message_id
    assert restored.attributes["duetime.lane"] == 2
    assert restored.parent is not None
    assert restored.parent.span_id == sent.get_span_context().span_id


async def test_batches_are_spans_of_their_own_that_link_to_their_messages(
    spans: InMemorySpanExporter, cluster: Cluster
) -> None:
    async with AsyncProducer(cluster.address) as producer:
        await asyncio.gather(*(producer.send("orders", b"x", delay="5s") for _ in range(10)))
    await cluster.advance("5s")
    await until(lambda: len(named(spans, "restore orders")) == 10)
    contexts = {span.get_span_context().span_id for span in named(spans, "send orders")}
    assert len(contexts) == 10
    batches = named(spans, "restore batch")
    assert sum(len(batch.links) for batch in batches) == 10
    assert {link.context.span_id for batch in batches for link in batch.links} == contexts
    requests = [span for span in named(spans, "duetime.v1.Gateway/Send") if span.kind is trace.SpanKind.CLIENT]
    assert {link.context.span_id for one in requests for link in one.links} | {
        one.parent.span_id for one in requests if one.parent
    } == contexts


async def test_many_messages_carry_the_context_of_their_one_send(
    spans: InMemorySpanExporter, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_tracing, "TRACED_MAX", 3)
    async with AsyncProducer(cluster.address) as producer:
        await producer.send_many(Message("orders", b"x", "5s") for _ in range(5))
    await cluster.advance("5s")
    await until(lambda: len(named(spans, "restore orders")) == 3)
    (sent,) = named(spans, "send many")
    assert {span.parent and span.parent.span_id for span in named(spans, "restore orders")} == {
        sent.get_span_context().span_id
    }


async def test_unsampled_message_has_no_span_and_no_property(no_spans: InMemorySpanExporter, cluster: Cluster) -> None:
    seen: list[Any] = []
    consumer = Consumer(cluster.address, group="billing")

    @consumer.handler("orders")
    async def handle(message: LeasedMessage) -> None:
        seen.append(message.properties)

    async with AsyncProducer(cluster.address) as producer:
        await producer.send("orders", b"x", delay="5s")
        await producer.send_many([Message("orders", b"y", "5s")])
    await cluster.advance("5s")
    async with asyncio.timeout(WITHIN_S), consumer:
        await until(lambda: consumer.stats.handled == 2)
    assert seen == [{}, {}]
    assert no_spans.get_finished_spans() == ()


async def test_context_of_another_tracer_is_kept_and_followed(spans: InMemorySpanExporter, cluster: Cluster) -> None:
    """Senders without this SDK's traces set the property; a trace context in a body does not count."""
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    unsampled = theirs[:-1] + "0"
    tracing.disable()
    async with AsyncProducer(cluster.address) as producer:
        await producer.send("orders", b"x", delay="5s", properties={"traceparent": theirs})
        await producer.send("orders", b"x", delay="5s", properties={"traceparent": unsampled})
        await producer.send("orders", b"x", delay="5s", properties={"traceparent": "nonsense"})
        await producer.send("orders", b"traceparent\x01" + theirs.encode() + b"\x02", delay="5s")
    await cluster.advance("5s")
    await until(lambda: cluster.stores[0].store.lanes[2].lateness.count == 4)
    await until(lambda: named(spans, "restore orders"))
    (span,) = named(spans, "restore orders")
    assert f"{span.get_span_context().trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
