"""Errors within bounds: the status of any error fits into the headers that gRPC accepts."""

import grpc
import pytest
from duetime_core.errors import DueTimeError, FailedPrecondition, InvalidArgument, Violation
from duetime_core.limits.bounds import BoundedError, brief, cut, weight
from duetime_core.rpc.calls import fault_of
from duetime_core.rpc.serving import status_of
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX, SEND_COUNT_MAX
from duetime_format.texts import shown
from hypothesis import given
from hypothesis import strategies as st

STATUS_BYTES_MAX = 4_096


def header_bytes(status: grpc.Status) -> int:
    """Size of a status in headers: its text percent-encoded, its details in base64."""
    return weight(status.details) + sum(-(-len(value) // 3) * 4 for _, value in status.trailing_metadata)


texts = st.text() | st.text(alphabet="ä\udc80%\n語a", min_size=300, max_size=3_000)
violations = st.lists(st.builds(Violation, texts, texts), max_size=80)


@given(violations, texts)
def test_status_of_any_violations_stays_below_4_kib(found: list[Violation], reason: str) -> None:
    assert header_bytes(status_of(InvalidArgument(found, reason=reason))) <= STATUS_BYTES_MAX


@given(texts, texts)
def test_status_of_any_text_stays_below_4_kib(text: str, reason: str) -> None:
    assert header_bytes(status_of(FailedPrecondition(text, reason=reason))) <= STATUS_BYTES_MAX


@given(texts, st.dictionaries(texts, texts))
def test_status_of_any_metadata_stays_below_4_kib(text: str, metadata: dict[str, str]) -> None:
    error = FailedPrecondition(text, reason=text)
    error.metadata = metadata
    assert header_bytes(status_of(error)) <= STATUS_BYTES_MAX


@given(violations, texts)
def test_cut_text_is_not_cut_again(found: list[Violation], text: str) -> None:
    for error in (InvalidArgument(found), FailedPrecondition(text)):
        first = brief(error)
        again = DueTimeError(first.text, reason=first.reason)
        assert (brief(again).text, brief(again).reason) == (first.text, first.reason)
        if first.violations:
            assert brief(InvalidArgument(first.violations)).violations == first.violations


def test_many_violations_are_cut_with_the_number_of_the_rest() -> None:
    found = [Violation(f"queues[{n}].offset", f"{10**9 + n} is not within 0 and 17") for n in range(60)]
    told = brief(InvalidArgument(found))
    count = len(told.violations)
    assert 10 < count < 60
    assert list(told.violations) == found[:count]
    assert told.text.startswith("queues[0].offset: 1000000000 is not within 0 and 17; queues[1].offset: 1000000001")
    assert told.text.endswith(f"; and {60 - count} more")


def test_few_violations_are_reported_unchanged() -> None:
    found = [Violation("topic", "is empty"), Violation("body", "is 5 bytes, 4 at most")]
    assert brief(InvalidArgument(found)) == BoundedError(
        "topic: is empty; body: is 5 bytes, 4 at most", "INVALID_ARGUMENT", found
    )


def test_one_endless_violation_is_cut() -> None:
    (told,) = brief(InvalidArgument([Violation("sql", "x" * 50_000), Violation("tags", "y")])).violations[:1]
    assert told.field == "sql"
    assert told.description == "x" * 637 + "..."


def test_faults_of_the_largest_batch_fit_into_one_answer() -> None:
    worst = InvalidArgument([Violation("語" * 3_000, "語" * 3_000)] * 80)
    assert len(fault_of(worst).SerializeToString()) * SEND_COUNT_MAX < GRPC_MESSAGE_BYTES_MAX // 2


@pytest.mark.parametrize(
    ("text", "bytes_max", "expected"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abc..."),
        ("ää", 12, "ää"),
        ("äää", 12, "ä..."),
        ("100%", 6, "100%"),
        ("a\udc80", 30, "a\\udc80"),
    ],
)
def test_cut(text: str, bytes_max: int, expected: str) -> None:
    assert cut(text, bytes_max) == expected


def test_shown_values_are_short() -> None:
    assert shown("a'\n") == '"a\'\\n"'
    assert shown("x" * 65) == f"'{'x' * 64}'..."
