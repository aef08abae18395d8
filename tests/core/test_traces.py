"""Exceptions in log lines: their location, and never the values in their texts."""

import asyncio
import json
import os
from collections.abc import Callable

import pytest
from duetime_core.telemetry.traces import name_of, trace_of

from tests.core.test_node import Process

VALUE = "planted-value"


def key() -> None:
    dict[str, int]()[VALUE]


def number() -> None:
    int(VALUE)


def text() -> None:
    (VALUE.encode() + b"\xff").decode()


def chained() -> None:
    try:
        key()
    except KeyError as error:
        raise ValueError(VALUE) from error


def within() -> None:
    try:
        key()
    except KeyError:
        number()


def grouped() -> None:
    try:
        key()
    except KeyError as error:
        raise ExceptionGroup(VALUE, [error, ValueError(VALUE)]) from None


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (key, ["in key", "KeyError"]),
        (number, ["in number", "ValueError"]),
        (text, ["in text", "UnicodeDecodeError"]),
        (chained, ["in key", "KeyError", "direct cause", "in chained", "ValueError"]),
        (within, ["in key", "KeyError", "During handling", "in number", "ValueError"]),
        (grouped, ["in grouped", "ExceptionGroup", "in key", "KeyError", "ValueError"]),
    ],
)
def test_trace_has_places_and_classes_in_order_and_no_values(work: Callable[[], None], told: list[str]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (of any class)
        work()
    trace = trace_of(caught.value)
    assert VALUE not in trace
    at = 0
    for words in told:
        assert words in trace[at:], (words, trace)
        at += trace[at:].index(words)


def test_exception_that_is_its_own_context_ends() -> None:
    first, second = ValueError(VALUE), KeyError(VALUE)
    first.__context__, second.__context__ = second, first
    assert trace_of(first) == (
        "KeyError\n\nDuring handling of the above exception, another exception occurred:\n\nValueError"
    )


def test_errors_of_the_system_keep_their_words() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        os.stat("/nowhere")
    assert name_of(caught.value) == "FileNotFoundError: No such file or directory"
    assert name_of(asyncio.CancelledError(VALUE)) == "asyncio.exceptions.CancelledError"


def test_process_ended_by_a_defect_logs_no_value() -> None:
    """Nor do tasks and callbacks that nobody awaits."""
    code, _, told = Process("--fail", "values", "--log-format", "json").end()
    assert code == 1
    assert VALUE not in told
    *lines, last = told.splitlines()
    assert last == "duetime sample: ended by a defect, ValueError; its log has the trace"
    events = [json.loads(line) for line in lines]
    assert [one["event"] for one in events if "exception" in one] == [
        "unraisable exception",
        "exception in a thread",
        *["exception in a task or callback"] * 2,
        "ended by a defect",
    ]
    assert {"KeyError", "ValueError"} <= {one["exception"].splitlines()[-1] for one in events if "exception" in one}
