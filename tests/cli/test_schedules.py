"""`duetime schedules`: output and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from duetime.cli.app import run

from tests.sdk.gateway import Gateway


@pytest.fixture
def tap(threaded_tap: Gateway, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setenv("DUETIME_SERVER", threaded_tap.address)
    return threaded_tap


def done(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The lines of a command that succeeds."""
    capsys.readouterr()
    assert run(["schedules", *arguments]) == 0
    # The nodes in this process may log beside them.
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("20")]


def objects(lines: list[str]) -> list[Any]:
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_a_schedule_is_created_shown_and_deleted(
    tap: Gateway, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"kind": "poll"}')
    times = ["--every", "90s", "--start", "2026-01-01T00:00:00Z", "--missed", "all"]
    content = ["--body", f"@{body}", "--tags", "t", "--property", "a=b", "--retry", "1s,max=2", "--expires", "1h"]
    lines = done(capsys, "create", "poll", "--topic", topic, *times, *content)
    assert lines[:3] == ["name        poll", f"topic       {topic}", "times       every 90s"]
    assert 'body        {"kind": "poll"}' in lines
    (one,) = objects(done(capsys, "show", "poll", "--topic", topic, "--json"))
    assert (one["every_ms"], one["start_at"], one["missed"]) == (90_000, "2026-01-01T00:00:00.000Z", "all")
    assert (one["body"], one["tags"], one["properties"], one["retry"]) == (
        '{"kind": "poll"}',
        "t",
        {"a": "b"},
        "1s,max=2",
    )
    assert one["expires_ms"] == 3_600_000
    assert (one["version"], one["paused"], len(one["next_at"]), one["cron"]) == (1, False, 1, None)
    assert objects(done(capsys, "list", "--topic", topic, "--json")) == [one]
    assert any(line.split()[:3] == ["poll", "every", "90s"] for line in done(capsys, "list", "--topic", topic))
    planned = objects(done(capsys, "next", "poll", "--topic", topic, "--count", "3", "--json"))
    assert planned[0]["planned_at"] == one["next_at"][0]
    assert len(planned) == 3
    assert done(capsys, "delete", "poll", "--topic", topic, "--yes") == [f"schedule poll of topic {topic} is deleted"]
    assert run(["schedules", "show", "poll", "--topic", topic]) == 1
    assert "has no schedule" in capsys.readouterr().err


def test_a_schedule_is_changed_paused_resumed_and_run(
    tap: Gateway, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create = ["create", "job", "--topic", topic, "--every", "1d"]
    done(capsys, *create)
    assert run(["schedules", *create, "--body", "other"]) == 1
    (one,) = objects(done(capsys, *create, "--body", "other", "--replace", "--json"))
    assert (one["version"], one["body"]) == (2, "other")
    assert "next        paused" in done(capsys, "pause", "job", "--topic", topic)
    assert done(capsys, "next", "job", "--topic", topic) == []
    (one,) = objects(done(capsys, "resume", "job", "--topic", topic, "--json"))
    assert not one["paused"]
    (line,) = done(capsys, "run", "job", "--topic", topic)
    assert line.startswith("sent ")
    done(capsys, "delete", "job", "--topic", topic, "--yes")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "x"], "give one of --every, --at and --cron"),
        (["create", "x", "--every", "1m", "--cron", "* * * * *"], "give one of --every, --at and --cron"),
        (["create", "x", "--every", "soon"], "'soon' is not a length"),
        (["create", "x", "--at", "noon"], "'noon' is not"),
        (["create", "x", "--every", "1m", "--property", "a"], "is not NAME=VALUE"),
        (["create", "x", "--every", "1m", "--missed", "never"], "'never' is none of skip, one, all"),
        (["delete", "x"], "give --yes"),
    ],
)
def test_wrong_usage_is_found_without_a_call(
    tap: Gateway, topic: str, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["schedules", arguments[0], arguments[1], "--topic", topic, *arguments[2:]]) == 2
    assert text in capsys.readouterr().err
