"""The ends of a message in its groups."""

from collections.abc import Iterable
from typing import Literal

from duetime.v1 import consumer_pb2

Outcome = Literal["done", "dead", "lapsed"]

_OUTCOMES: dict[int, Outcome] = {
    consumer_pb2.TRACE_KIND_ACKNOWLEDGED: "done",
    consumer_pb2.TRACE_KIND_DEAD: "dead",
    consumer_pb2.TRACE_KIND_LAPSED: "lapsed",
}


def outcomes_of(events: Iterable[consumer_pb2.TraceEvent]) -> dict[str, Outcome]:
    """The end in each group that has one, by the events of a trace; a redrive removes the end before it."""
    ends: dict[str, Outcome] = {}
    for event in events:
        if event.group and event.kind in _OUTCOMES:
            ends[event.group] = _OUTCOMES[event.kind]
        elif event.kind == consumer_pb2.TRACE_KIND_REDRIVEN:
            ends.pop(event.group, None)
    return ends
