"""Traces of messages by OpenTelemetry, from `send` to the acknowledgement: off until `enable` is called.

from duetime import tracing
tracing.enable()                    # the application's tracer provider; or DUETIME_TRACING=1 in the environment

A message that is sent within a sampled trace, or starts one, carries the trace's context as the property `traceparent`
(W3C), through delays, retries and its dead letter. The trace then shows, possibly hours apart:

    send TOPIC           producer; the message carries the context of this span
    duetime.v1.Gateway/Send   one request of one or more messages: in the first one's trace, with links to the others
    restore TOPIC        the scheduler, if the cluster's processes export traces
    process TOPIC        consumer: the handler, with its exception; the current span while it runs
    ack TOPIC, nack TOPIC     the call that settles it
    commit TOPIC, rollback TOPIC    the end of a transaction, in the current trace
    check TOPIC          the handler that decides about a transaction
    retry TOPIC          the retry service; then restore, process … again

The sampler of the application's provider decides once, at the send; an unsampled message costs only that decision. In
one `send_many`, the first TRACED_MAX messages carry the context of its single span.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from duetime.client.message import Message

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, TracerProvider

    from duetime.client.record import ReceivedMessage

VARIABLE = "DUETIME_TRACING"
TRACEPARENT = "traceparent"
TRACED_MAX = 64
LINKS_MAX = 32

_CONTEXT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf]")
# The encoding in a message: the key, then the tag and length of the value.
_WIRE = re.compile(rb"traceparent\x12\x37([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf])")


class SpanMaker:
    """Makes the SDK's spans with one tracer."""

    def __init__(self, provider: "TracerProvider | None" = None) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = trace.get_tracer("duetime", tracer_provider=provider)

    # --- sending --------------------------------------------------------------------------------------------------

    @contextmanager
    def sending(self, message: Message) -> Iterator[Message]:
        """A span around a send; yields the message with its context."""
        with self._sending(message.topic, 1) as traceparent:
            yield _carrying(message, traceparent)

    @contextmanager
    def sending_many(self, messages: Iterable[Message]) -> Iterator[Iterable[Message]]:
        """A span around a send of many; the first TRACED_MAX of them carry its context."""
        with self._sending("many", None) as traceparent:
            yield self._first_carrying(messages, traceparent) if traceparent else messages

    @contextmanager
    def _sending(self, topic: str, count: int | None) -> Iterator[str]:
        """A span; yields its context for messages to carry, empty if the trace is not sampled."""
        attributes: dict[str, Any] = {"messaging.system": "duetime", "messaging.operation.type": "send"}
        if count is not None:
            attributes["messaging.destination.name"] = topic
        with self._tracer.start_as_current_span(
            f"send {topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes
        ) as span:
            context = span.get_span_context()
            sampled = context.is_valid and context.trace_flags.sampled
            yield f"00-{context.trace_id:032x}-{context.span_id:016x}-01" if sampled else ""

    @staticmethod
    def _first_carrying(messages: Iterable[Message], traceparent: str) -> Iterator[Message]:
        for number, message in enumerate(messages):
            yield _carrying(message, traceparent) if number < TRACED_MAX else message

    @contextmanager
    def requesting(self, method: str, payload: bytes) -> Iterator[tuple[tuple[str, str], ...] | None]:
        """A span around a request with traced messages; yields the metadata that the gateway continues from."""
        found = list(dict.fromkeys(_WIRE.findall(payload)))[: LINKS_MAX + 1]
        traced = [context for value in found if (context := self._context(value.decode())) is not None]
        if not traced:
            yield None
            return
        with self._tracer.start_as_current_span(
            method.lstrip("/"),
            context=self._under(traced[0]),
            kind=self._trace.SpanKind.CLIENT,
            links=[self._trace.Link(context) for context in traced[1:]],
            attributes={"rpc.system": "grpc", "messaging.system": "duetime"},
        ) as span:
            context = span.get_span_context()
            yield ((TRACEPARENT, f"00-{context.trace_id:032x}-{context.span_id:016x}-01"),)

    # --- transactions ---------------------------------------------------------------------------------------------

    @contextmanager
    def ending(self, decision: str, topic: str, message_id: str) -> Iterator[None]:
        """A span around the end of a transaction, `commit TOPIC` or `rollback TOPIC`."""
        with self._tracer.start_as_current_span(
            f"{decision} {topic}",
            kind=self._trace.SpanKind.CLIENT,
            attributes=_named(topic, message_id),
        ):
            yield

    @contextmanager
    def checking(self, topic: str, message_id: str, properties: Mapping[str, str]) -> Iterator[None]:
        """A span around the check handler of a traced message, current while it runs."""
        parent = self._context(properties.get(TRACEPARENT, ""))
        if parent is None:
            yield
            return
        with self._tracer.start_as_current_span(
            f"check {topic}",
            context=self._under(parent),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=_named(topic, message_id),
        ):
            yield

    # --- consuming ------------------------------------------------------------------------------------------------

    @contextmanager
    def processing(self, message: "ReceivedMessage", group: str) -> Iterator[None]:
        """A span around the handler of a traced message, current while it runs."""
        parent = self.context_of(message)
        if parent is None:
            yield
            return
        attributes = {**_about(message), "messaging.consumer.group.name": group, "duetime.attempt": message.attempt}
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=self._under(parent),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
        ):
            yield

    def settled(self, what: str, messages: Sequence["ReceivedMessage"], began_ns: int, outcomes: Sequence[str]) -> None:
        """A span for each traced message of an answered call; `outcomes` are texts, empty for success."""
        ended_ns = time.time_ns()
        for message, outcome in zip(messages, outcomes, strict=True):
            parent = self.context_of(message)
            if parent is not None:
                span = self._tracer.start_span(
                    f"{what} {message.topic}",
                    context=self._under(parent),
                    kind=self._trace.SpanKind.CLIENT,
                    attributes=_about(message),
                    start_time=began_ns,
                )
                if outcome:
                    span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, outcome))
                span.end(ended_ns)

    def context_of(self, message: "ReceivedMessage") -> "SpanContext | None":
        """The context that a message carries, if its trace is sampled."""
        value = message.text_of(TRACEPARENT.encode())
        return self._context(value) if value else None

    def _context(self, traceparent: str) -> "SpanContext | None":
        match = _CONTEXT.match(traceparent)
        if match is None:
            return None
        flags = self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED)
        found = self._trace.SpanContext(int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=flags)
        return found if found.is_valid else None

    def _under(self, parent: "SpanContext") -> Any:
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(parent))


def _carrying(message: Message, traceparent: str) -> Message:
    """The message with a context; a context set by the caller is kept."""
    if not traceparent or TRACEPARENT in message.properties:
        return message
    return replace(message, properties={**message.properties, TRACEPARENT: traceparent})


def _about(message: "ReceivedMessage") -> dict[str, Any]:
    return _named(message.topic, message.id)


def _named(topic: str, message_id: str) -> dict[str, Any]:
    return {
        "messaging.system": "duetime",
        "messaging.destination.name": topic,
        "messaging.message.id": message_id,
    }


# None: tracing is off. Read once for each call, batch and handler.
active: SpanMaker | None = None


def enable(provider: "TracerProvider | None" = None) -> None:
    """Starts tracing, with the application's global provider or the given one.

    Raises:
        ImportError: opentelemetry-api is missing (`pip install 'duetime[otel]'`).
    """
    global active
    active = SpanMaker(provider)


def disable() -> None:
    """Stops tracing."""
    global active
    active = None


def _enable_by_environment() -> None:
    if os.environ.get(VARIABLE, "") not in ("", "0"):  # noqa: TID251  the SDK's opt-in
        enable()


_enable_by_environment()
