"""Commands about pending messages against a fake gateway: what they print, and their exit codes."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from duetime.cli import cancel as cancel_module
from duetime.cli.app import run
from duetime.cli.backlog import By, _equal_rows, _growing_rows, _topic_rows
from duetime.cli.output import print_chart
from duetime.client.finding.pending import Backlog, DueCount
from duetime.client.message import moment

from tests.cli.cluster import run_duetime
from tests.sdk.fake_pending import DUE_MS, FakePendingGateway
from tests.sdk.threaded import served


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePendingGateway]:
    """On an event loop in a thread of its own; `m0` to `m4` are pending, `m5` has fired."""
    gateway = FakePendingGateway(count=6, fired={"m5"})
    with served(gateway):
        monkeypatch.setenv("DUETIME_SERVER", gateway.address)
        yield gateway


def objects(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_message_is_sent_for_any_time(gateway: FakePendingGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["send", "carts", "x", "--delay", "1h30m", "--replace", "--key", "42", "--max-wait", "2d"]) == 0
    assert run(["send", "carts", "x", "--deliver-at", "2026-12-24T18:00:00Z", "--json"]) == 0
    first, second = (request.messages[0] for request in gateway.requests)
    assert (first.delay_ms, first.replace, list(first.keys), first.max_wait_ms) == (
        5_400_000,
        True,
        ["42"],
        172_800_000,
    )
    assert second.deliver_at_ms == 1_798_135_200_000
    line, answer = capsys.readouterr().out.splitlines()
    assert ", due " in line
    assert {"lane", "level", "due_at", "was_past", "replaced_id"} <= json.loads(answer).keys()


def test_named_messages_are_cancelled(gateway: FakePendingGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cancel", "m0"]) == 0
    assert capsys.readouterr().out == "cancelled  m0\n"
    assert run(["cancel", "m0", "m5", "none"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == ["cancelled  m0", "already fired  m5", "not found  none"]
    assert err == "duetime: cancelled 1, already fired 1, not found 1\n"
    assert run(["cancel", "m1", "--json"]) == 0
    assert objects(capsys) == [{"id": "m1", "result": "cancelled"}]


def test_what_matches_is_cancelled_with_progress(
    gateway: FakePendingGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cancel", "--topic", "orders", "--key", "k", "--due-before", "2027-01-01T00:00Z", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert out == "cancelled 5 pending messages; 1 fell due before\n"
    assert err.splitlines()[-1] == "duetime: cancelled 5 of 9 looked at"
    assert err.splitlines()[0].startswith("duetime: cancelled 2 of 5 looked at, up to 2027-01-15T")
    (request,) = gateway.calls
    assert (request.filter.topic, request.filter.key, request.filter.due_before_ms) == (
        "orders",
        "k",
        1_798_761_600_000,
    )
    assert not request.dry_run
    assert run(["cancel", "--topic", "orders", "--dry-run", "--json"]) == 0
    assert [one["matched"] for one in objects(capsys)] == [3, 6]
    assert gateway.calls[1].dry_run


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
def test_an_empty_or_impossible_option_is_no_request_for_all(gateway: FakePendingGateway, arguments: list[str]) -> None:
    assert run(arguments) == 2
    assert not gateway.calls
    assert not gateway.requests


def test_who_is_asked_may_say_no(
    gateway: FakePendingGateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel_module.sys, "stdin", _Terminal("n\n"))
    assert run(["cancel", "--topic", "orders"]) == 130
    assert "Cancel 6 pending messages of orders?" in capsys.readouterr().out
    assert [call.dry_run for call in gateway.calls] == [True]


class _Terminal:
    def __init__(self, text: str) -> None:
        self._text = text

    def isatty(self) -> bool:
        return True

    def readline(self, *_: object) -> str:
        return self._text


def test_messages_are_rescheduled(
    gateway: FakePendingGateway, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "body").write_bytes(b"\xffnew")
    assert run(["reschedule", "m0", "--delay", "2h", "--body", f"@{tmp_path / 'body'}"]) == 0
    assert capsys.readouterr().out.startswith("rescheduled  m0, due 2027-01-15T")
    assert run(["reschedule", "m0", "--deliver-at", "2026-12-24T18:00:00Z", "--json"]) == 0
    assert objects(capsys)[0]["was_past"]
    assert run(["reschedule", "m5", "--delay", "2h"]) == 1
    assert capsys.readouterr().out == "already fired  m5\n"
    first, second, _ = (call.messages[0] for call in gateway.calls)
    assert (first.delay_ms, first.body) == (7_200_000, b"\xffnew")
    assert second.deliver_at_ms == 1_798_135_200_000


def test_pending_messages_are_listed(gateway: FakePendingGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pending", "--topic", "orders", "--limit", "4"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("  ")[1] for line in out.splitlines()] == ["m0", "m1", "m2", "m3"]
    assert err == "duetime: there are more; see --limit\n"
    assert run(["pending", "--json"]) == 0
    found = objects(capsys)
    assert [one["id"] for one in found] == [f"m{n}" for n in range(6)]
    assert (found[1]["shard"], found[1]["lane"], found[1]["entry"], found[1]["body"]) == (1, 1_000, 1, "body")
    gateway.count = 0
    assert run(["pending"]) == 0
    assert capsys.readouterr().out == "nothing is pending\n"


def test_a_message_is_shown(gateway: FakePendingGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "m1"]) == 0
    out = capsys.readouterr().out
    assert "state       pending, due in " in out
    assert ", 12 of its lane before it\n" in out
    assert "waits in    lane 1000, entry 7, shard 1" in out
    assert run(["cancel", "m1"]) == 0
    capsys.readouterr()
    assert run(["show", "m1", "--json"]) == 0
    (shown,) = objects(capsys)
    assert (shown["state"], shown["lane"], shown["before_count"]) == ("cancelled", None, None)


def test_the_backlog_has_a_chart(gateway: FakePendingGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backlog"]) == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "4 pending, 1 overdue"
    assert [line.split() for line in lines[2:4]] == [
        ["overdue", "1", "█" * 13 + "▎"],
        ["within", "10", "s", "3", "█" * 40],
    ]
    assert lines[-1].split() == ["orders", "4", "now"]
    assert err == "duetime: shard 2 does not answer; its messages are missing\n"
    assert run(["backlog", "--topic", "orders", "--json"]) == 1
    (found,) = objects(capsys)
    assert (found["pending_count"], found["overdue_count"], found["topics"]) == (4, 1, {"orders": 4})
    assert found["buckets"] == [{"due_from": "2027-01-15T08:00:00.000Z", "width_ms": 60_000, "count": 4}]
    assert [call.topic for call in gateway.calls] == ["", "", "orders", "orders"]


def counted(*counts: tuple[int, int, str]) -> Backlog:
    """(starts so many seconds from now on, how many, topic), in buckets of a minute."""
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


def test_equal_rows_end_with_what_is_left() -> None:
    found = counted((0, 3, "a"), (7_300, 1, "a"), (100 * 3_600, 5, "a"))
    rows = _equal_rows(found, By.HOUR.width_ms)
    assert len(rows) == 49
    assert [count for _, count in rows[:3]] == [3, 0, 1]
    assert rows[-1] == ("later", 5)
    assert sum(count for _, count in rows) == found.pending


def test_the_largest_topics_come_first() -> None:
    rows = _topic_rows(counted((-1, 1, "a"), *((90, 10 + n, f"t{n}") for n in range(25))))
    assert rows[0] == ("t24", "34", "in 1m 30s")
    assert len(rows) == 21
    assert rows[-1] == ("6 more", "61", "")


def test_bars_fit_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, longest in ((45, 45), (60, 60), (200, 21 + 40), (10, 21 + 8)):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_chart([("2026-11-23 14:00", 1), ("later", 8)])
        assert max(map(len, capsys.readouterr().out.splitlines())) == longest


def test_a_terminal_without_unicode_is_no_error(gateway: FakePendingGateway) -> None:
    environment = {"DUETIME_SERVER": gateway.address, "PYTHONIOENCODING": "ascii"}
    done = run_duetime("backlog", environment=environment)
    assert done.stderr.startswith(b"duetime: shard ")
    assert b"  ####" in done.stdout
    assert run_duetime("send", "orders", "\u00e4", environment=environment).returncode == 0


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
