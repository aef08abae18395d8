"""How often a line is logged that anybody can bring about."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog
from duetime_core.telemetry.logs import INTERVAL_MS, KINDS_MAX, LogLineLimiter, configure_logs, sparing


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Output on standard error, with logging as processes have it."""
    file = io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    monkeypatch.setattr(sys, "stderr", file)
    configure_logs("tester", fmt="json")
    yield file
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:], root.level = handlers, level


def lines(file: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def test_one_line_of_a_kind_a_second_that_counts_the_others() -> None:
    limit = LogLineLimiter()
    assert limit.admit("a", 0) == 0
    assert [limit.admit("a", now_ms) for now_ms in (0, 1, INTERVAL_MS - 1)] == [None] * 3
    assert limit.admit("b", 1) == 0
    assert limit.admit("a", INTERVAL_MS) == 3
    assert limit.admit("a", 2 * INTERVAL_MS - 1) is None
    assert limit.admit("a", 10 * INTERVAL_MS) == 1
    assert limit.admit("a", 20 * INTERVAL_MS) == 0


def test_kinds_are_bounded() -> None:
    limit = LogLineLimiter()
    for kind in range(10 * KINDS_MAX):
        assert limit.admit(kind, 0) == 0
        assert len(limit._kinds) <= KINDS_MAX


def test_a_terminal_gets_no_control_characters_of_senders(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", written)
    configure_logs("tester", fmt="console")
    structlog.get_logger().warning("refused", topic="orders\x1b]0;x\x07\u202e", key=b"\x1b[2J")
    line = written.getvalue()
    assert "orders\\u001b]0;x\\u0007\\u202e" in line
    assert "\x1b]" not in line
    assert "\x1b[2J" not in line


def test_a_sparing_logger_repeats_nothing_within_a_second(written: io.StringIO) -> None:
    log = sparing()
    for number in range(1_000):
        log.warning("bad bytes", number=number)
        log.error("bad bytes", number=number)
        log.warning("other bytes")
    # However slow the machine is, some of 1,000 fall into one second.
    told = lines(written)
    assert [(one["level"], one["event"]) for one in told[:3]] == [
        ("warning", "bad bytes"),
        ("error", "bad bytes"),
        ("warning", "other bytes"),
    ]
    assert len(told) < 100
    assert all(one["process"] == "tester" for one in told)


def test_other_loggers_leave_nothing_out(written: io.StringIO) -> None:
    log = structlog.get_logger()
    for number in range(10):
        log.info("segment created", number=number)
    assert [one["number"] for one in lines(written)] == list(range(10))


def test_library_logs_are_one_line_without_secrets_or_repeats(written: io.StringIO) -> None:
    log = logging.getLogger("grpc.test")
    for number in range(100):
        try:
            raise ValueError(f"bad byte {number}, postgresql://user:hidden@host/db")
        except ValueError:
            log.exception("call %d failed", number)
    told = lines(written)
    assert len(told) < 10
    assert told[0]["event"] == "call 0 failed"
    assert (told[0]["level"], told[0]["logger"]) == ("error", "grpc.test")
    # The log has the exception's location only: its text may contain user data.
    assert str(told[0]["exception"]).endswith("\nValueError")
    assert "test_logs.py" in str(told[0]["exception"])
    assert "bad byte 0" not in written.getvalue()
