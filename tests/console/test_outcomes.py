"""The ends of a message in its groups, from the events of its trace."""

import pytest
from duetime.v1 import consumer_pb2
from duetime_console.outcomes import outcomes_of


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        ("restored received:a", {}),
        ("received:a acknowledged:a dead:b lapsed:c", {"a": "done", "b": "dead", "c": "lapsed"}),
        ("dead:a dead:b redriven:a", {"b": "dead"}),
        ("dead:a redriven:a acknowledged:a", {"a": "done"}),
    ],
)
def test_each_group_has_its_last_end(events: str, ends: dict[str, str]) -> None:
    pairs = [each.partition(":")[::2] for each in events.split()]
    told = [consumer_pb2.TraceEvent(kind=f"TRACE_KIND_{kind.upper()}", group=group) for kind, group in pairs]
    assert outcomes_of(told) == ends
