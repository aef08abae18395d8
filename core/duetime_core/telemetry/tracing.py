"""Traces of messages by OpenTelemetry: off unless an endpoint is set, and then only for messages whose sender traces.

A message keeps its sender's context as the property `traceparent` (W3C), in its lane, its copies and its dead letter.
Each process adds spans to that trace for its own work on the message:

    send (SDK) ── Send (gateway) ┄┄ restore (scheduler) ┄┄ process, ack or nack (SDK) ┄┄ retry (retry service) ┄┄ …

Only contexts with the flag `sampled` count: the sender decides once. An unsampled message costs a search of its batch's
bytes. If tracing is off, it costs reading one variable per batch or call.
"""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from threading import Thread
from typing import TYPE_CHECKING, Any

from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.properties import decode_properties, value_of

from duetime_core.errors import StartupError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import SpanContext
    from opentelemetry.trace import TracerProvider as AnyProvider

TRACEPARENT = "traceparent"
_MARK = b"traceparent\x01"
# Matches version 00 and the beginning of later ones; the last two digits are flags, the lowest of them `sampled`.
_CONTEXT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf]")
_CONTEXT_BYTES = 55
# Most links of one span, and most traced messages of one batch: more would help nobody.
LINKS_MAX = 32
BATCH_SPANS_MAX = 256
SHUTDOWN_S = 5.0


class ProcessTracer:
    """Creates spans of this process; imports packages of the extra `otel`."""

    def __init__(self, provider: AnyProvider) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = provider.get_tracer("duetime")

    def context(self, traceparent: bytes) -> SpanContext | None:
        """None: malformed, or not sampled."""
        match = _CONTEXT.match(traceparent)
        if match is None:
            return None
        flags = self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED)
        found = self._trace.SpanContext(int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=flags)
        return found if found.is_valid else None

    def server_span(self, method: str, metadata: Any) -> AbstractContextManager[Any]:
        """A span around a call traced by its caller."""
        for key, value in metadata or ():
            if key == TRACEPARENT:
                parent = self.context(value if isinstance(value, bytes) else value.encode())
                if parent is not None:
                    return self._tracer.start_as_current_span(
                        method.lstrip("/"),
                        context=self._under(parent),
                        kind=self._trace.SpanKind.SERVER,
                        attributes={"rpc.system": "grpc", "rpc.method": method.lstrip("/")},
                    )
        return nullcontext()

    def messages(self, what: str, records: bytes, sizes: Sequence[int], began_ns: int, **attributes: Any) -> None:
        """A span for each traced message of a finished batch, and one for the batch with links to them; nothing if none
        is traced.

        `sizes`: of the concatenated records; 0: no record. `began_ns`: Unix time.
        """
        traced = list(self._traced(records, sizes))
        if not traced:
            return
        batch = self._tracer.start_span(
            f"{what} batch",
            context=self._trace.set_span_in_context(self._trace.INVALID_SPAN),
            links=[self._trace.Link(context) for _, context in traced[:LINKS_MAX]],
            attributes={**attributes, "messaging.batch.message_count": len(sizes)},
            start_time=began_ns,
        )
        link = self._trace.Link(batch.get_span_context())
        ended_ns = time.time_ns()
        for found, context in traced:
            self.message(what, found, context, began_ns, ended_ns, link, **attributes)
        batch.end(ended_ns)

    def message(
        self,
        what: str,
        found: record.Record,
        parent: SpanContext,
        began_ns: int,
        ended_ns: int,
        *links: Any,
        **attributes: Any,
    ) -> None:
        """A finished span of one message's trace. `found`: the record before this work."""
        properties = decode_properties(found.properties)
        topic = properties.get(record.REAL_TOPIC) or found.topic
        span = self._tracer.start_span(
            f"{what} {topic}",
            context=self._under(parent),
            links=links,
            attributes={
                "messaging.system": "duetime",
                "messaging.destination.name": topic,
                "messaging.message.id": properties.get(record.UNIQ_KEY, ""),
                **attributes,
            },
            start_time=began_ns,
        )
        span.end(ended_ns)

    def context_of(self, found: record.Record) -> SpanContext | None:
        """The context in a message, if its trace is sampled."""
        value = value_of(found.properties, TRACEPARENT.encode())
        return self.context(value) if value else None

    def _traced(self, records: bytes, sizes: Sequence[int]) -> Iterator[tuple[record.Record, SpanContext]]:
        ends: list[int] = []
        at = records.find(_MARK)
        count = 0
        while at >= 0 and count < BATCH_SPANS_MAX:
            end = at + len(_MARK)
            if self.context(records[end : end + _CONTEXT_BYTES]) is not None:
                ends = ends or list(accumulate(sizes))
                index = bisect_right(ends, at)
                end = ends[index]
                try:
                    found = record.decode(records[end - sizes[index] : end])
                except DamagedBytes:
                    found = None
                # The name may be part of a body.
                context = self.context_of(found) if found is not None else None
                if found is not None and context is not None:
                    count += 1
                    yield found, context
            at = records.find(_MARK, end)

    def _under(self, parent: SpanContext) -> Any:
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(parent))


# None: nothing is traced. Read once per call or batch.
active: ProcessTracer | None = None


def use(provider: AnyProvider | None) -> None:
    """Sets the provider for tracing; None: off."""
    global active
    active = ProcessTracer(provider) if provider is not None else None


class TraceExporter:
    """Exports spans to an OTLP endpoint, from `start` to `stop`; does nothing if `endpoint` is empty."""

    def __init__(self, process: str, endpoint: str) -> None:
        self._provider: TracerProvider | None = None
        if not endpoint:
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError:
            raise StartupError("otlp_endpoint is set, OpenTelemetry is missing: pip install 'duetime[otel]'") from None
        # The message's sender has decided about sampling; no trace starts here.
        resource = Resource.create({"service.name": f"duetime-{process}"})
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        use(self._provider)

    async def stop(self) -> None:
        """Sends the remaining spans, for at most some seconds."""
        use(None)
        if self._provider is not None:
            # A daemon thread: an endpoint that does not answer must not delay the process's end.
            ending = Thread(target=self._provider.shutdown, daemon=True)
            ending.start()
            await asyncio.to_thread(ending.join, SHUTDOWN_S)
