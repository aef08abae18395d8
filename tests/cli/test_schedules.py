"""`duetime schedules`: output and exit codes."""

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from duetime import Receiver
from duetime.cli.app import run
from duetime.cli.schedules import _ends
from duetime.client.finding.trace import TraceEvent

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
    assert one in objects(done(capsys, "list", "--all", "--json"))
    assert any(line.split()[:4] == [topic, "poll", "every", "90s"] for line in done(capsys, "list", "--all"))
    planned = objects(done(capsys, "next", "poll", "--topic", topic, "--count", "3", "--json"))
    assert planned[0]["planned_at"] == one["next_at"][0]
    assert len(planned) == 3
    assert done(capsys, "delete", "poll", "--topic", topic, "--yes") == [f"schedule poll of topic {topic} is deleted"]
    assert run(["schedules", "show", "poll", "--topic", topic]) == 1
    assert "has no schedule" in capsys.readouterr().err


def test_schedules_are_counted(tap: Gateway, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        done(capsys, "create", name, "--topic", topic, "--every", "1d")
    done(capsys, "pause", "b", "--topic", topic)
    (one,) = objects(done(capsys, "count", "--topic", topic, "--json"))
    assert one == {"topic": topic, "shard": one["shard"], "schedules": 2, "paused": 1}
    assert one in objects(done(capsys, "count", "--json"))
    assert [topic, str(one["shard"]), "2", "1"] in [line.split() for line in done(capsys, "count")]
    tap.after["CountSchedules"] = lambda _, answer: answer.unreachable_shards.append(7)
    assert run(["schedules", "count"]) == 1
    assert "shard 7 does not answer" in capsys.readouterr().err


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


def test_exported_schedules_are_imported(
    tap: Gateway, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = ["--body", "a\nb", "--tags", "t", "--property", "a=b", "--retry", "1s,max=2", "--expires", "1h"]
    done(capsys, "create", "every", "--topic", topic, "--every", "90s", "--missed", "all", *content)
    cron = ["--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--in-gap", "skip", "--in-fold", "both"]
    done(capsys, "create", "cron", "--topic", topic, *cron, "--paused")
    ahead = [(datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="milliseconds") for days in (400, 500)]
    done(capsys, "create", "at", "--topic", topic, "--at", ahead[0], "--at", ahead[1])
    lines = done(capsys, "list", "--topic", topic, "--json")
    file = tmp_path / "schedules.jsonl"
    file.write_text("\n".join([*lines, "", "\n"]).replace(topic, f"{topic}-other"))
    assert done(capsys, "import", str(file))[-1].startswith("put 3 schedules in ")
    copies = objects(done(capsys, "list", "--topic", f"{topic}-other", "--json"))
    state = ("topic", "id", "created_at")
    assert [{name: one[name] for name in one if name not in state} for one in copies] == [
        {name: one[name] for name in one if name not in state} for one in objects(lines)
    ]
    assert objects(done(capsys, "import", str(file), "--json")) == copies


def test_rejected_lines_do_not_affect_the_others(
    tap: Gateway, topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"name": "good", "topic": topic, "every_ms": 1_000, "body_base64": "/w=="}
    wrong = [
        *["{", "[1]", '{"name": "x"}', '{"topic": "x", "every_ms": 1000}'],
        *(json.dumps(good | {"name": "x"} | one) for one in ({"every_ms": "1s"}, {"at": ["noon"]}, {"tag": "t"})),
        *(
            json.dumps(good | {"name": "x"} | one)
            for one in ({"cron": "@daily"}, {"every_ms": 1}, {"every_ms": 0}, {"every_ms": 10**30}, {"body": "x"})
        ),
        *(json.dumps(good | {"name": "\ud800"} | one) for one in ({}, {"tags": "\ud800"})),
        *(json.dumps({"name": "x", "topic": topic, "cron": "@daily"} | {one: "\ud800"}) for one in ("cron", "zone")),
        r'{"\ud800": 1}',
    ]
    lines = "\n".join([json.dumps(good), *wrong, json.dumps(good | {"name": "last"})]).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert run(["schedules", "import", "-", "--json"]) == 1
    found = objects(capsys.readouterr().out.splitlines())
    errors = {one["line"]: one["error"]["violations"][0]["field"] for one in found if "error" in one}
    assert list(errors.values()) == [
        *["line", "line", "topic", "name", "every_ms", "at", "tag"],
        *["every, at or cron", "schedule.every.every_ms", "schedule.every.every_ms", "every_ms", "body_base64"],
        *["line"] * 5,
    ]
    assert list(errors) == [*range(2, 19)]
    assert [one["name"] for one in found if "error" not in one] == ["good", "last"]
    assert objects(done(capsys, "show", "good", "--topic", topic, "--json"))[0]["body_base64"] == "/w=="
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert run(["schedules", "import", "-"]) == 1
    shown = capsys.readouterr()
    assert "line 2: line: is no JSON in UTF-8" in shown.err
    assert "17 failed" in shown.out


def test_a_paused_occurrence_has_no_due_time(tap: Gateway, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    still = ["still", "--topic", topic, "--every", "1d", "--expires", "1h"]
    (one,) = objects(done(capsys, "create", *still, "--paused", "--json"))
    done(capsys, "create", "other", "--topic", topic, "--every", "1d")

    def lines(*arguments: str) -> list[str]:
        capsys.readouterr()
        assert run([*arguments]) == 0
        return capsys.readouterr().out.splitlines()

    paused, other = (
        [line for line in lines("pending", "--topic", topic) if f"keys={key}" in line] for key in ("still", "other")
    )
    assert [line.split()[:2] for line in paused] == [["paused", one["id"]]]
    assert [line.split()[0] for line in other] == ["due"]
    found = {tuple(each["keys"]): each for each in objects(lines("pending", "--topic", topic, "--json"))}
    assert [found["still",][name] for name in ("paused", "due_at", "expires_at")] == [True, None, None]
    assert (found["other",]["paused"], found["other",]["due_at"] is None) == (False, False)
    assert any(line.startswith("pending, paused") for line in lines("find", topic, "still"))
    shown = "\n".join(lines("show", one["id"], "--topic", topic))
    assert "pending, paused" in shown
    assert "\ndue " not in shown
    (deferred,) = [line for line in lines("trace", one["id"], "--topic", topic) if "deferred" in line]
    assert deferred.split()[-2] == "paused"
    (event,) = [each for each in objects(lines("trace", one["id"], "--json")) if each["kind"] == "deferred"]
    assert (event["paused"], event["due_at"]) == (True, None)
    (past,) = objects(done(capsys, "history", "still", "--topic", topic, "--json"))
    assert (past["state"], past["due_at"]) == ("paused", None)


def test_a_page_shows_policies_and_expiry(tap: Gateway, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    rule = ["--cron", "30 2 * * *", "--zone", "Europe/Berlin"]
    plain = done(capsys, "create", "plain", "--topic", topic, *rule)
    assert not [line for line in plain if line.startswith(("in gap", "in fold", "expires"))]
    more = ["--in-gap", "skip", "--in-fold", "both", "--expires", "2h"]
    lines = done(capsys, "create", "other", "--topic", topic, *rule, *more)
    assert {"in gap      skip", "in fold     both", "expires     2h after its due time"} <= set(lines)


def test_a_dry_run_prints_times_and_creates_nothing(
    tap: Gateway, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = ["--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--dry-run"]
    found = objects(done(capsys, "create", "job", "--topic", topic, *rule, "--count", "3", "--json"))
    assert [list(one) for one in found] == [["planned_at"]] * 3
    assert run(["schedules", "create", "job", "--topic", topic, *rule]) == 0
    assert run(["schedules", "create", "job", "--topic", topic, "--cron", "30 25 * * *", "--dry-run"]) == 1
    assert "invalid hour" in capsys.readouterr().err
    assert run(["schedules", "show", "job", "--topic", topic]) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--every", "1d", "--zone", "Europe/Berlin"], "zone: 'Europe/Berlin' is for `cron`"),
        (["--at", "2100-01-01T00:00", "--in-gap", "skip"], "in_gap: 'skip' is for `cron`"),
        (["--cron", "@daily", "--start", "2100-01-01T00:00"], "is for `every`, and the schedule has `cron`"),
    ],
)
def test_options_of_other_times_are_rejected(
    tap: Gateway, topic: str, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in [], ["--dry-run"]:
        assert run(["schedules", "create", "job", "--topic", topic, *options, *more]) == 2
        assert says in capsys.readouterr().err
    assert run(["schedules", "show", "job", "--topic", topic]) == 1


def test_history_has_the_ends_of_occurrences(tap: Gateway, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "create", "job", "--topic", topic, "--every", "1d")
    assert run(["schedules", "history", "other", "--topic", topic]) == 0
    assert "has the key other" in capsys.readouterr().err
    done_ids = set[str]()
    for _ in range(2):
        done(capsys, "run", "job", "--topic", topic)
    with Receiver(tap.address, topic, group="history") as receiver:
        while len(done_ids) < 2:
            for message in receiver.receive(wait="30s"):
                receiver.ack(message)
                done_ids.add(message.id)
    found = objects(done(capsys, "history", "job", "--topic", topic, "--json"))
    ends = sorted((one["state"], *one["groups"].items()) for one in found)
    assert ends == [("pending",), *[("stored", ("history", "done"))] * 2]
    assert [one["planned_at"] is None for one in found] == [one["state"] == "stored" for one in found]
    lines = done(capsys, "history", "job", "--topic", topic)
    assert lines[0].split() == ["planned", "delivered", "late", "state", "id"]
    assert sum("done in history" in line for line in lines) == 2


def test_a_redrive_removes_the_end_before_it() -> None:
    now = datetime.now(UTC)
    kinds = [("dead", "a"), ("lapsed", "b"), ("redriven", "a"), ("received", "a")]
    events = [TraceEvent(kind, now, 0, "t", 0, 0, group=group) for kind, group in kinds]  # type: ignore[arg-type]
    assert _ends(events) == {"b": "lapsed"}
    assert _ends(events[:2]) == {"a": "dead", "b": "lapsed"}


@pytest.mark.parametrize("arguments", [[], ["--all", "--topic", "orders"]])
def test_a_list_is_of_one_topic_or_of_all(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedules", "list", *arguments]) == 2
    assert "give one of --topic and --all" in capsys.readouterr().err


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
