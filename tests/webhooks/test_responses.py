"""The verdict on a response, by its status and Retry-After."""

import pytest
from duetime_format.limits import BACKOFF_MS_MAX
from duetime_webhooks.responses import ReceiverResponse, Verdict, verdict_of
from hypothesis import given
from hypothesis import strategies as st

NOW_MS = 1_800_000_000_000  # Fri, 15 Jan 2027 08:00:00 GMT


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_delivered(status: int) -> None:
    assert verdict_of(ReceiverResponse(status, "7"), NOW_MS) == Verdict(status)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (301, "301 Moved Permanently"),
        (400, "400 Bad Request"),
        (404, "404 Not Found"),
        (500, "500 Internal Server Error"),
        (599, "599"),
    ],
)
def test_others_fail_and_the_policy_decides_the_pause(status: int, text: str) -> None:
    assert verdict_of(ReceiverResponse(status, "7"), NOW_MS) == Verdict(status, text)


def test_410_is_gone() -> None:
    assert verdict_of(ReceiverResponse(410, "7", b"bye"), NOW_MS) == Verdict(410, "410 Gone: bye", gone=True)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "after_ms"),
    [
        ("7", 7_000),
        (" 120 ", 120_000),
        ("0", 1_000),
        ("999999999999999", 3_600_000),
        ("Fri, 15 Jan 2027 08:00:30 GMT", 30_000),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 1_000),
        ("Fri, 15 Jan 2100 07:00:00 GMT", 3_600_000),
        ("soon", None),
        ("-5", None),
        ("", None),
        ("²", None),
    ],
)
def test_retry_after_is_bounded(status: int, header: str, after_ms: int | None) -> None:
    assert verdict_of(ReceiverResponse(status, header), NOW_MS, 3_600_000).retry_after_ms == after_ms


@given(st.integers(100, 599), st.text(), st.binary(max_size=2_000))
def test_any_response_has_a_verdict_of_bounded_size(status: int, header: str, beginning: bytes) -> None:
    verdict = verdict_of(ReceiverResponse(status, header, beginning), NOW_MS)
    assert len(verdict.error) < 600 * 10
    assert verdict.error.isprintable()
    assert verdict.retry_after_ms is None or 1_000 <= verdict.retry_after_ms <= BACKOFF_MS_MAX


def test_error_has_the_first_bytes_of_the_body_without_control_characters() -> None:
    found = verdict_of(ReceiverResponse(500, "", b" \x1b[31mno\nway \xff" + b"x" * 600), NOW_MS)
    assert found.error.startswith("500 Internal Server Error: \\x1b[31mno\\nway �xxx")
    assert found.error.count("x") < 512
