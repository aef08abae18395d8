"""Attempts of a repeated call."""

import pytest
from duetime.client import connection


def test_each_attempt_has_twice_the_time_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ATTEMPT_TIMEOUT_S", 5.0)
    assert [connection.attempt_timeout_s(attempt, 100.0) for attempt in range(1, 7)] == [5, 10, 20, 40, 80, 100]
    assert connection.attempt_timeout_s(10_000, 7.0) == 7.0
    assert connection.attempt_timeout_s(1, -1.0) > 0
