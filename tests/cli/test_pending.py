"""Commands about pending messages: output and exit codes."""

import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from duetime import Message, Producer, Receipt
from duetime.cli import cancel as cancel_module
from duetime.cli.app import run
from duetime.cli.backlog import ChartRowWidth, _equal_rows, _growing_rows, _topic_rows
from duetime.cli.cancel import _progress_text, _report_text
from duetime.cli.output import print_chart
from duetime.client.finding.pending import Backlog, DueCount
from duetime.client.message import moment
from duetime.client.sending.ending import CancelProgress
from duetime.v1 import pending_pb2 as pb

from tests.cli.cluster import run_duetime
from tests.sdk.gateway import Gateway

DUE_MS = 1_800_000_000_000


@pytest.fixture
def tap(threaded_tap: Gateway, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setenv("DUETIME_SERVER", threaded_tap.address)
    return threaded_tap


@pytest.fixture
def ids(tap: Gateway, topic: str) -> list[str]:
    """Five pending messages, due one after the other, and one that has fired."""
    with Producer(tap.node) as producer:
        sent = producer.send_many(
            Message(topic, b"body", id=f"{topic}-m{n}", key="k", queue=n % 2, delay=f"2h{n + 1}s" if n < 5 else None)
            for n in range(6)
        )
    return [one.message_id for one in sent if isinstance(one, Receipt)]


def objects(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_message_is_sent_for_any_time(tap: Gateway, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["send", topic, "x", "--delay", "1h30m", "--replace", "--key", "42", "--max-wait", "2d"]) == 0
    assert run(["send", topic, "x", "--deliver-at", "2026-12-24T18:00:00Z", "--json"]) == 0
    first, second = (request.messages[0] for request in tap.sends)
    assert (first.delay_ms, first.replace, list(first.keys), first.max_wait_ms) == (
        5_400_000,
        True,
        ["42"],
        172_800_000,
    )
    assert second.deliver_at_ms == 1_798_135_200_000
    # The nodes in this process may log beside them.
    out = capsys.readouterr().out.splitlines()
    assert len([line for line in out if ", due " in line]) == 1
    (answer,) = (line for line in out if line.startswith("{"))
    assert {"lane", "level", "due_at", "was_past", "replaced_id"} <= json.loads(answer).keys()


def test_a_message_is_sent_with_an_expiry(tap: Gateway, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["send", topic, "x", "--delay", "1h", "--expires", "30m", "--json"]) == 0
    assert tap.sends[0].messages[0].expires_ms == 1_800_000
    capsys.readouterr()
    assert run(["pending", "--topic", topic, "--json"]) == 0
    (pending,) = objects(capsys)
    due, expires = (datetime.fromisoformat(pending[name]) for name in ("due_at", "expires_at"))
    assert expires - due == timedelta(minutes=30)
    assert run(["send", topic, "x", "--expires", "soon"]) == 2


def test_named_messages_are_cancelled(ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cancel", ids[0]]) == 0
    assert capsys.readouterr().out == f"cancelled  {ids[0]}\n"
    assert run(["cancel", ids[0], ids[5], "none"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"cancelled  {ids[0]}", f"already fired  {ids[5]}", "not found  none"]
    assert err == "duetime: cancelled 1, already fired 1, not found 1\n"
    assert run(["cancel", ids[1], "--json"]) == 0
    assert objects(capsys) == [{"id": ids[1], "result": "cancelled"}]


def test_ids_of_several_topics_need_the_topic(tap: Gateway, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    other, message_id = f"{topic}-other", f"42-{topic}"
    with Producer(tap.address) as producer:
        producer.send_many([Message(name, b"x", id=message_id, delay="1h") for name in (topic, other)])
    assert run(["cancel", message_id]) == 1
    refused = f"is known in the topics {topic}, {other}: name one with --topic"
    assert refused in capsys.readouterr().out
    for command in (["reschedule", message_id, "--delay", "2h"], ["show", message_id], ["trace", message_id]):
        assert run(command) == 1
        assert refused in capsys.readouterr().err
    assert run(["find", "--id", message_id]) == 1
    assert "name one as TOPIC" in capsys.readouterr().err
    assert run(["cancel", message_id, "--json"]) == 1
    assert objects(capsys)[0]["error"]["message"].endswith(refused)
    for _ in range(2):
        assert run(["cancel", message_id, "--topic", topic]) == 0
        assert capsys.readouterr().out == f"cancelled  {message_id}\n"
    assert run(["reschedule", message_id, "--topic", other, "--delay", "2h"]) == 0
    assert run(["cancel", message_id, "--due-from", "2026-12-24T18:00"]) == 2


def test_matches_are_cancelled_with_progress(
    tap: Gateway, topic: str, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    due = ["--topic", topic, "--key", "k", "--due-before", "2027-01-01T00:00Z"]
    assert run(["cancel", *due, "--dry-run", "--json"]) == 0
    last = objects(capsys)[-1]
    assert (last["matched"], last["cancelled"], last["done"]) == (5, 0, True)
    assert run(["cancel", *due, "--yes"]) == 0
    out, err = capsys.readouterr()
    assert out == "cancelled 5 pending messages\n"
    assert err.splitlines()[-1].startswith("duetime: cancelled 5 of ")
    dry, real = tap.requests["CancelMatching"]
    assert (real.filter.topic, real.filter.key, real.filter.due_before_ms) == (topic, "k", 1_798_761_600_000)
    assert (dry.dry_run, real.dry_run) == (True, False)


def test_progress_has_counts_and_a_time() -> None:
    text = _progress_text(CancelProgress(5, 3, 2, 1, moment(DUE_MS), done=False), dry_run=False)
    assert text.startswith("cancelled 2 of 5 read, up to 2027-01-15T")
    last = CancelProgress(9, 6, 5, 1, None, done=True)
    assert _report_text(last, dry_run=False) == "cancelled 5 pending messages; 1 were due first"


@pytest.mark.parametrize(
    "arguments",
    [
        ["cancel", "--topic", "", "--yes"],
        ["cancel", "--topic", "orders", "--key", "", "--yes"],
        ["cancel", "--topic", "orders", "--due-before", "", "--yes"],
        ["cancel", "--topic", "orders", "--due-from", "", "--yes"],
        ["send", "orders", "x", "--deliver-at", ""],
        ["send", "orders", "x", "--deliver-at", "0001-01-01"],
        ["reschedule", "m0", "--deliver-at", ""],
        ["pending", "--topic", ""],
        ["pending", "--key", ""],
        ["backlog", "--topic", ""],
        ["find", "orders", "k", "--from", ""],
        ["dlq", "discard", "billing", "--key", "", "--yes"],
        ["dlq", "discard", "billing", "--to", "", "--yes"],
    ],
)
def test_an_empty_or_impossible_option_is_no_request_for_all(tap: Gateway, arguments: list[str]) -> None:
    assert run(arguments) == 2
    assert not tap.arrived


def test_a_person_may_decline(
    tap: Gateway, topic: str, ids: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel_module.sys, "stdin", _Terminal("n\n"))
    assert run(["cancel", "--topic", topic]) == 130
    assert f"Cancel 5 pending messages of {topic}?" in capsys.readouterr().out
    assert [call.dry_run for call in tap.requests["CancelMatching"]] == [True]


class _Terminal:
    def __init__(self, text: str) -> None:
        self._text = text

    def isatty(self) -> bool:
        return True

    def readline(self, *_: object) -> str:
        return self._text


def test_messages_are_rescheduled(
    tap: Gateway, ids: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "body").write_bytes(b"\xffnew")
    assert run(["reschedule", ids[0], "--delay", "2h", "--body", f"@{tmp_path / 'body'}"]) == 0
    assert capsys.readouterr().out.startswith(f"rescheduled  {ids[0]}, due 2023-11-1")
    assert run(["reschedule", ids[0], "--deliver-at", "2022-12-24T18:00:00Z", "--json"]) == 0
    assert objects(capsys)[0]["was_past"]
    assert run(["reschedule", ids[5], "--delay", "2h"]) == 1
    assert capsys.readouterr().out == f"already fired  {ids[5]}\n"
    first, second, _ = (call.messages[0] for call in tap.requests["Reschedule"])
    assert (first.delay_ms, first.body) == (7_200_000, b"\xffnew")
    assert second.deliver_at_ms == 1_671_904_800_000


def test_pending_messages_are_listed(
    tap: Gateway, topic: str, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    tap.before["ListPending"] = lambda request: setattr(request, "max_count", 3)
    assert run(["pending", "--topic", topic, "--limit", "4"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("  ")[1] for line in out.splitlines()] == ids[:4]
    assert err == "duetime: more messages exist; raise --limit\n"
    assert run(["pending", "--topic", topic, "--json"]) == 0
    found = objects(capsys)
    assert [one["id"] for one in found] == ids[:5]
    assert {(one["shard"], one["lane"], one["body"]) for one in found} == {(0, 1_000, "body")}
    assert [one["entry"] - found[0]["entry"] for one in found] == list(range(5))
    tap.nodes.run(tap.make_topic(f"{topic}-empty", 1))
    assert run(["pending", "--topic", f"{topic}-empty"]) == 0
    assert capsys.readouterr().out == "no pending message matches the options\n"


def test_a_message_is_shown(ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", ids[1]]) == 0
    out = capsys.readouterr().out
    assert "state       pending, due " in out
    assert " before it in its lane\n" in out
    assert "waits in    lane 1000, entry " in out
    assert run(["cancel", ids[1]]) == 0
    capsys.readouterr()
    assert run(["show", ids[1], "--json"]) == 0
    (shown,) = objects(capsys)
    assert (shown["state"], shown["lane"], shown["before_count"]) == ("cancelled", None, None)


def test_the_backlog_has_a_chart(tap: Gateway, topic: str, ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    more = pb.BacklogResponse(unreachable_shards=[2])
    tap.after["Backlog"] = lambda _, answer: answer.MergeFrom(more)
    assert run(["send", topic, "x", "--delay", "5s"]) == 0
    capsys.readouterr()
    assert run(["backlog", "--topic", topic]) == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("6 pending, next due by 2023-11-1")
    assert [line.split() for line in lines[2:8]] == [
        ["overdue", "0"],
        ["within", "10", "s", "1", "█" * 8],
        ["within", "1", "min", "0"],
        ["within", "10", "min", "0"],
        ["within", "1", "h", "0"],
        ["within", "6", "h", "5", "█" * 40],
    ]
    assert lines[-1].split()[:2] == [topic, "6"]
    assert err == "duetime: shard 2 does not answer; its messages are missing\n"
    assert run(["backlog", "--topic", topic, "--json"]) == 1
    (found,) = objects(capsys)
    assert (found["pending_count"], found["overdue_count"], found["topics"]) == (6, 0, {topic: 6})
    assert sum(one["count"] for one in found["buckets"]) == 6
    assert run(["backlog"]) == 1
    assert [call.topic for call in tap.requests["Backlog"]] == [*[topic] * 4, "", ""]


def counted(*counts: tuple[int, int, str]) -> Backlog:
    """(start in seconds from now, count, topic), in buckets of a minute."""
    found = [
        DueCount(moment(DUE_MS + at_s * 1_000), timedelta(minutes=1), count, topic, 0) for at_s, count, topic in counts
    ]
    return Backlog(found, sum(count for _, count, _ in counts), 2, moment(DUE_MS), [])


def test_rows_grow_and_none_is_lost() -> None:
    found = counted((-60, 5, "a"), (0, 3, "a"), (599, 1, "b"), (3_600, 7, "b"), (400 * 86_400, 1, "b"))
    rows = _growing_rows(found)
    assert rows[:2] == [("overdue", 2), ("within 10 s", 6)]
    assert {name: count for name, count in rows if count} == {
        "overdue": 2,
        "within 10 s": 6,
        "within 10 min": 1,
        "within 6 h": 7,
        "later": 1,
    }
    assert sum(count for _, count in rows) == found.pending
    assert [name for name, _ in _growing_rows(counted((0, 3, "a")))] == ["overdue", "within 10 s"]


def test_equal_rows_end_with_the_rest() -> None:
    found = counted((0, 3, "a"), (7_300, 1, "a"), (100 * 3_600, 5, "a"))
    rows = _equal_rows(found, ChartRowWidth.HOUR.width_ms)
    assert len(rows) == 49
    assert [count for _, count in rows[:3]] == [3, 0, 1]
    assert rows[-1] == ("later", 5)
    assert sum(count for _, count in rows) == found.pending


def test_rows_of_the_night_of_a_clock_change_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    midnight_ms, hour_ms = 1_792_879_200_000, 3_600_000  # 2026-10-24T22:00Z: midnight in Berlin.
    dues = [DueCount(moment(midnight_ms + n * hour_ms), timedelta(hours=1), n, "a", 0) for n in range(1, 5)]
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        rows = _equal_rows(Backlog(dues, 10, 0, moment(midnight_ms), []), hour_ms)
    time.tzset()
    assert rows == [
        ("2026-10-25 01:00", 1),
        ("2026-10-25 02:00 +0200", 2),
        ("2026-10-25 02:00 +0100", 3),
        ("2026-10-25 03:00", 4),
    ]


def test_a_bucket_wider_than_a_row_shows_its_end() -> None:
    day = DueCount(moment(DUE_MS + 330 * 86_400_000), timedelta(days=1), 7, "a", 0)
    found = Backlog([*counted((0, 3, "a")).counts, day], 10, 0, moment(DUE_MS), [])
    rows = _equal_rows(found, ChartRowWidth.HOUR.width_ms)
    start, end = day.start.astimezone(), (day.start + day.width).astimezone()
    assert [count for _, count in rows] == [3, 7]
    assert rows[-1][0] == f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"


def test_the_largest_topics_come_first() -> None:
    rows = _topic_rows(counted((-1, 1, "a"), *((90, 10 + n, f"t{n}") for n in range(25))))
    assert rows[0] == ("t24", "34", "within 2m 30s")
    assert len(rows) == 21
    assert rows[-1] == ("6 more", "61", "")


def test_bars_fit_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, longest in ((45, 45), (60, 60), (200, 21 + 40), (10, 21 + 8)):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_chart([("2026-11-23 14:00", 1), ("later", 8)])
        assert max(map(len, capsys.readouterr().out.splitlines())) == longest


def test_a_terminal_without_unicode_is_no_error(tap: Gateway, topic: str, ids: list[str]) -> None:
    environment = {"DUETIME_SERVER": tap.address, "PYTHONIOENCODING": "ascii"}
    done = run_duetime("backlog", environment=environment)
    assert b"  ####" in done.stdout
    assert run_duetime("send", topic, "\u00e4", environment=environment).returncode == 0


def test_a_small_count_has_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_chart([("none", 0), ("one", 1), ("most", 1_000_000)])
    assert capsys.readouterr().out.splitlines() == [
        "none          0",
        " one          1  ▏",
        f"most  1,000,000  {'█' * 40}",
    ]


@pytest.mark.parametrize("command", ["send", "cancel", "reschedule", "pending", "show", "backlog"])
def test_help_has_examples(command: str) -> None:
    done = run_duetime(command, "--help")
    assert done.returncode == 0
    assert f"duetime {command}".encode() in done.stdout.partition(b"Examples:")[2]
