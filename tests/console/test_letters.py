"""Dead letters told apart by error and handler, and selected by a form."""

import pytest
from duetime.v1 import consumer_pb2, message_pb2
from duetime_console.letters import causes_of, filter_of, handler_of
from duetime_console.moments import InvalidMoment

SDK = '  File "/venv/site-packages/duetime/client/consuming/handling.py", line 9, in _handle\n'
OURS = '  File "/srv/billing/worker.py", line 31, in charge\n  File "/srv/billing/bank.py", line 4, in _post\n'


def letter(kind: str = "ValueError", message: str = "", trace: str = "", at_ms: int = 1) -> consumer_pb2.DeadLetter:
    error = consumer_pb2.HandlerError(type=kind, message=message, trace=trace)
    return consumer_pb2.DeadLetter(
        message=message_pb2.StoredMessage(topic="orders"),
        dead_at_ms=at_ms,
        attempts=[consumer_pb2.FailedAttempt(error=consumer_pb2.HandlerError(type="Other")), {"error": error}],
    )


def test_errors_that_differ_by_numbers_and_ids_have_one_cause() -> None:
    letters = [
        letter(message=f"order {number} of 7F0000010001070D0D0D00000000000{number} is refused", at_ms=number)
        for number in (5, 3, 8)
    ]
    first, second = causes_of([*letters, letter("KeyError", "'x'")])
    assert (first.error, first.count) == ("ValueError: order # of # is refused", 3)
    assert (first.first_at_ms, first.last_at_ms, first.topics) == (3, 8, {"orders"})
    assert (second.error, second.count) == ("KeyError: 'x'", 1)


@pytest.mark.parametrize(
    ("kind", "message", "needle"),
    [
        ("ValueError", "order 7 is refused", "ValueError: order"),
        ("ValueError", "no bank", "ValueError: no bank"),
        ("Http503", "after 3 tries", "Http503: after"),
        ("Http503", "", "Http503"),
        ("", "", ""),
    ],
)
def test_cause_is_selected_by_the_common_part_of_its_errors(kind: str, message: str, needle: str) -> None:
    (cause,) = causes_of([letter(kind, message)])
    assert cause.needle == needle
    assert needle.lower() in f"{kind}: {message}".lower()


def test_handlers_distinguish_causes() -> None:
    causes = causes_of([letter(trace=SDK + OURS), letter(trace=OURS.replace("charge", "refund")), letter()])
    assert sorted(cause.handler for cause in causes) == ["", "charge (worker.py:31)", "refund (worker.py:31)"]


def test_the_handler_of_a_java_client_is_the_place_of_the_error() -> None:
    trace = "java.io.IOException: gone\n\tat shop.Bank.post(Bank.java:12)\n\tat shop.Worker.run(Worker.java:3)\n"
    assert handler_of(letter(trace=trace)) == "shop.Bank.post (Bank.java:12)"
    assert handler_of(consumer_pb2.DeadLetter()) == ""


def test_a_form_selects_its_messages() -> None:
    form = {"error": " bank ", "ids": "a, b c", "from": "2026-01-31T12:00", "to": "2026-01-31T13:00+01:00"}
    wanted = filter_of("billing", form)
    assert (wanted.error, list(wanted.ids)) == ("bank", ["a", "b", "c"])
    assert wanted.from_ms == wanted.to_ms == 1_769_860_800_000
    with pytest.raises(InvalidMoment, match="'soon' is not a time"):
        filter_of("billing", {"from": "soon"})
