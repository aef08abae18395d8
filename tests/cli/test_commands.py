"""The client commands against a real cluster: their output and errors."""

import base64
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from duetime import Trace, TraceEvent
from duetime.cli.app import run

from tests.cli.cluster import DEADLINE_S, run_duetime
from tests.ending import ended

_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"topic_{next(_numbers)}"


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def pulled(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    capsys.readouterr()
    assert run(["pull", *arguments, "--json"]) == 0
    return lines_of(capsys)


def test_a_message_is_sent_with_all_its_fields(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tags", "paid", "--key", "a", "--key", "b", "--property", "color=red=1", "--queue", "3", "--json"]
    assert run(["send", topic, "cancel 42", *options]) == 0
    (receipt,) = lines_of(capsys)
    assert (receipt["topic"], receipt["queue"], receipt["offset"], receipt["lane"]) == (topic, 3, 0, None)
    (message,) = pulled(capsys, topic)
    assert message["id"] == receipt["id"]
    assert (message["body"], message["tags"], message["keys"]) == ("cancel 42", "paid", ["a", "b"])
    assert (message["properties"], message["queue"], message["due_at"]) == ({"color": "red=1"}, 3, None)


@pytest.mark.parametrize("option", [["--delay", "1s"], ["--level", "1"]])
def test_a_delayed_message_is_followed_until_it_arrives(
    server: str, topic: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["send", topic, "later", *option]) == 0
    assert capsys.readouterr().out.rstrip().endswith("(level 1)")
    assert run(["pull", topic, "--follow", "--max", "1"]) == 0
    assert " late=" in capsys.readouterr().out


def test_a_level_above_the_highest_is_reported(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["send", topic, "x", "--level", "99"]) == 0
    assert "; level 99 is above the highest, 18" in capsys.readouterr().out


def test_a_body_may_come_from_a_file_or_standard_input(
    server: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = b"\xff\x00two\nlines\n"
    (tmp_path / "body").write_bytes(body)
    assert run(["send", topic, f"@{tmp_path / 'body'}", "--queue", "0"]) == 0
    assert run_duetime("send", topic, "-", "--queue", "0", stdin=body).returncode == 0
    assert run_duetime("send", topic, "--queue", "0", stdin=b"text").returncode == 0
    first, second, third = pulled(capsys, topic)
    assert base64.b64decode(first["body_base64"]) == base64.b64decode(second["body_base64"]) == body
    assert third["body"] == "text"


def test_each_line_is_a_message_with_lines(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"line {n}\n" for n in range(3_000)) + "last"
    done = run_duetime("send", topic, "--lines", "--queue", "1", stdin=text.encode())
    assert done.returncode == 0
    assert done.stdout.decode().startswith(f"sent 3,001 messages to {topic} in ")
    assert done.stderr == b""
    assert [message["body"] for message in pulled(capsys, topic)] == text.split("\n")


def test_lines_that_are_refused_harm_no_other(server: str, topic: str) -> None:
    big = b"x" * (4 * 1024 * 1024 + 1)
    done = run_duetime("send", topic, "--lines", "--json", stdin=b"a\n" + big + b"\nb\n")
    assert done.returncode == 1
    first, refused, last = map(json.loads, done.stdout.splitlines())
    assert first["topic"] == last["topic"] == topic
    assert refused["error"]["violations"][0]["field"] == "body"
    done = run_duetime("send", topic, "--lines", stdin=b"a\n" + big + b"\nb\n")
    assert done.returncode == 1
    assert b"1 rejected" in done.stdout
    assert done.stderr.startswith(b"duetime: body: ")


def test_lines_are_stored_all_or_none_with_batch(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_duetime("send", topic, "--batch", "--queue", "1", stdin=b"a\nb\nc")
    assert done.stdout.decode() == f"sent 3 messages to {topic}/1@0 to @2, all or none\n"
    done = run_duetime("send", topic, "--batch", "--sharding-key", "order-42", "--json", stdin=b"d\ne\n")
    receipts = [json.loads(line) for line in done.stdout.splitlines()]
    assert receipts[1]["queue"] == receipts[0]["queue"]
    assert receipts[1]["offset"] == receipts[0]["offset"] + 1
    done = run_duetime("send", topic, "--batch", "--delay", "1h", stdin=b"later\n")
    assert b", due " in done.stdout
    assert sorted(message["body"] for message in pulled(capsys, topic)) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("stdin", "options", "said"),
    [
        (b"", (), b"no lines to send"),
        (b"a\n" * 4_097, (), b"more than 4,096 lines"),
        (b"a\nb\n", ("--replace", "--key", "k"), b"a batch replaces no messages"),
        (b"x" * 4_200_000 + b"\n" + b"y" * 100_000, (), b"more than 4,259,840 bytes"),
    ],
)
def test_a_batch_that_can_not_be_is_refused_whole(
    server: str,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    stdin: bytes,
    options: tuple[str, ...],
    said: bytes,
) -> None:
    run(["topics", "create", topic])
    capsys.readouterr()
    done = run_duetime("send", topic, "--batch", *options, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in b" ".join(done.stderr.replace("│".encode(), b"").split())
    assert pulled(capsys, topic) == []


def test_progress_is_shown_at_a_terminal_only(server: str, topic: str) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb") as terminal:
        arguments = [sys.executable, "-m", "duetime", "send", topic, "--lines"]
        environment = os.environ | {"TERM": "xterm-256color"}
        done = subprocess.run(
            arguments, input=b"a\n" * 9, stderr=theirs, timeout=DEADLINE_S, env=environment, check=True
        )
        os.close(theirs)
        assert done.returncode == 0
        assert b"sending" in terminal.read1(65_536)


def test_pull_starts_at_the_option(
    server: str, topic: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run(["topics", "create", topic, "--queues", "1"])
    run(["send", topic, "a\nb\nc", "--lines"])
    assert [message["body"] for message in pulled(capsys, topic)] == ["a", "b", "c"]
    assert [message["body"] for message in pulled(capsys, topic, "--from", "1")] == ["b", "c"]
    assert [message["body"] for message in pulled(capsys, topic, "--max", "2")] == ["a", "b"]
    assert pulled(capsys, topic, "--from", "latest") == []
    assert pulled(capsys, topic, "--from", "9") == []
    assert "ends at 3; offset 9 is past it" in caplog.text


def test_pull_for_a_group_resumes(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["topics", "create", topic, "--queues", "2"])
    run(["send", topic, "a\nb\nc\nd", "--lines"])
    first = pulled(capsys, topic, "--group", "billing", "--max", "3")
    assert len(first) == 3
    rest = pulled(capsys, topic, "--group", "billing")
    assert sorted(message["body"] for message in first + rest) == ["a", "b", "c", "d"]
    assert pulled(capsys, topic, "--group", "billing") == []
    assert len(pulled(capsys, topic, "--group", "audit")) == 4


def test_pull_for_a_group_begins_where_the_group_does(
    server: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["topics", "create", topic, "--queues", "1"])
    run(["send", topic, "old"])
    run(["groups", "create", f"of_{topic}", "--start", "latest"])
    assert pulled(capsys, topic, "--group", f"of_{topic}") == []
    run(["send", topic, "new"])
    assert [message["body"] for message in pulled(capsys, topic, "--group", f"of_{topic}")] == ["new"]
    assert pulled(capsys, topic, "--group", f"of_{topic}") == []
    run(["groups", "create", f"second_of_{topic}", "--start", "latest"])
    found = pulled(capsys, topic, "--group", f"second_of_{topic}", "--start", "earliest")
    assert [message["body"] for message in found] == ["old", "new"]


def test_pull_filters_by_tags(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    for tag in ("paid", "refunded", "open"):
        run(["send", topic, tag, "--tags", tag])
    bodies = [message["body"] for message in pulled(capsys, topic, "--tags", "paid || refunded")]
    assert sorted(bodies) == ["paid", "refunded"]


def test_pull_filters_by_sql(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    for size in ("4", "5", "6"):
        run(["send", topic, size, "--property", f"size={size}", "--tags", "odd" if size == "5" else "even"])
    bodies = [message["body"] for message in pulled(capsys, topic, "--sql", "size > 4", "--tags", "even")]
    assert bodies == ["6"]
    assert run(["pull", topic, "--sql", "size LIKE '5'"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("duetime: sql: line 1, column 6: LIKE where =, ")
    assert error.endswith(": size ⟨here⟩LIKE '5'\n")


def test_pull_follow_ends_with_ctrl_c(server: str, topic: str) -> None:
    run(["send", topic, "a"])
    arguments = [sys.executable, "-m", "duetime", "pull", topic, "--follow"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"a\n")
    process.send_signal(signal.SIGINT)
    _, errors = ended(process, DEADLINE_S)
    assert (process.returncode, errors) == (130, b"")


def test_a_reader_that_ends_early_is_no_error(server: str, topic: str) -> None:
    run_duetime("send", topic, "--lines", stdin=b"x" * 99 + b"\n" + b"y\n" * 50_000)
    process = subprocess.run(
        f"{sys.executable} -m duetime pull {topic} | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert process.stdout.endswith(b"\n0\n")
    assert process.stderr == b""


def test_topics_are_made_listed_and_described(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "create", topic, "--queues", "8"]) == 0
    assert run(["topics", "create", topic, "--queues", "8", "--json"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"topic {topic} has 8 queues"
    assert json.loads(out[1])["queue_count"] == 8
    assert run(["topics"]) == 0
    assert topic in capsys.readouterr().out
    assert run(["topics", "--json"]) == 0
    assert topic in [value["topic"] for value in lines_of(capsys)]
    run(["send", topic, "x", "--queue", "5"])
    capsys.readouterr()
    assert run(["topics", "--json", "describe", topic]) == 0
    (described,) = lines_of(capsys)
    assert described["queues"][5] == {"queue": 5, "shard": 0, "min_offset": 0, "max_offset": 1}
    assert run(["topics", "describe", topic]) == 0
    assert f"topic {topic}, 8 queues" in capsys.readouterr().out


def test_pull_starts_at_a_time(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["topics", "create", topic, "--queues", "2"])
    for body in ("a", "b", "c", "d"):
        run(["send", topic, body])
    messages = sorted(pulled(capsys, topic), key=lambda message: message["stored_at"])
    since = messages[2]["stored_at"]
    expected = sorted(message["body"] for message in messages if message["stored_at"] >= since)
    assert sorted(message["body"] for message in pulled(capsys, topic, "--from", since)) == expected
    # The same moment in local time.
    here = datetime.fromisoformat(since).astimezone().replace(tzinfo=None).isoformat()
    assert sorted(message["body"] for message in pulled(capsys, topic, "--from", here)) == expected
    assert pulled(capsys, topic, "--from", "2100-01-01") == []
    assert len(pulled(capsys, topic, "--from", "2000-01-01T00:00+02:00")) == 4


def test_messages_are_found(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        run(["send", topic, f"body {number}", "--key", "all", "--key", f"k{number}", *["--delay", "2h"][: number & 2]])
    capsys.readouterr()
    assert run(["find", topic, "all", "--json"]) == 0
    found = lines_of(capsys)
    assert [(one["body"], one["state"]) for one in found] == [
        ("body 2", "pending"),
        ("body 1", "stored"),
        ("body 0", "stored"),
    ]
    assert (found[0]["topic"], found[0]["level"]) == (topic, 18)
    for name in (found[1]["id"], found[1]["offset_id"]):
        assert run(["find", "--id", name, "--json"]) == 0
        assert lines_of(capsys) == [found[1]]
    assert run(["find", topic, "k2"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("pending, due ")
    assert line.endswith("keys=all,k2  body 2\n")
    assert run(["find", topic, "all", "--max", "1", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert "older messages match; continue with --to 2" in captured.err
    until = found[2]["stored_at"]
    assert run(["find", topic, "all", "--to", until, "--json"]) == 0
    assert "body 0" in [one["body"] for one in lines_of(capsys)]
    assert run(["find", topic, "all", "--from", "2100-01-01"]) == 1
    assert capsys.readouterr().err == f"duetime: no message of {topic} has the key or id all\n"
    run(["send", topic, "tagged", "--tags", "paid"])
    capsys.readouterr()
    assert run(["find", topic, "--tag", "paid", "--json"]) == 0
    assert [one["body"] for one in lines_of(capsys)] == ["tagged"]
    assert run(["find", topic, "--tag", "none"]) == 1
    assert capsys.readouterr().err == f"duetime: no message of {topic} has the tag none\n"
    assert run(["find", topic, "all", "--tag", "paid"]) == 2
    assert "give TOPIC and KEY, TOPIC and --tag, or --id" in capsys.readouterr().err
    assert run(["find", "--id", "nothing"]) == 1
    assert capsys.readouterr().err == "duetime: no message nothing\n"


def test_trace_shows_a_life(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["send", topic, "x", "--delay", "2h", "--json"])
    (sent,) = lines_of(capsys)
    assert run(["trace", sent["id"]]) == 0
    captured = capsys.readouterr()
    accepted, deferred = captured.out.splitlines()
    assert re.fullmatch(r"[-+:.TZ0-9]+  accepted      SCHEDULE_TOPIC_XXXX/17@\d+", accepted)
    assert re.fullmatch(r"[-+:.TZ0-9]+  deferred      level 18  due [-+:.TZ0-9]+  SCHEDULE_TOPIC_XXXX/17@\d+", deferred)
    assert captured.err == ""
    assert run(["trace", sent["id"], "--topic", topic, "--json"]) == 0
    events = lines_of(capsys)
    assert [(event["kind"], event["level"], event["late_ms"]) for event in events] == [
        ("accepted", 0, None),
        ("deferred", 18, None),
    ]
    assert events[1]["due_at"] == sent["due_at"]
    assert run(["trace", "nothing"]) == 1
    assert capsys.readouterr().err == "duetime: no message nothing\n"


def test_trace_and_show_tell_how_the_wait_changed_and_ended(
    server: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def send(body: str) -> str:
        assert run(["send", topic, body, "--delay", "90m", "--replace", "--key", "k", "--json"]) == 0
        return str(lines_of(capsys)[0]["id"])

    first = send("1")
    assert run(["reschedule", first, "--delay", "2h"]) == 0
    assert capsys.readouterr().out.startswith(f"rescheduled  {first}, due ")
    second = send("2")
    capsys.readouterr()
    assert run(["trace", first]) == 0
    _, deferred, rescheduled, replaced = capsys.readouterr().out.splitlines()
    due = deferred.split("  due ")[1].split("  ")[0]
    assert f"  due {due} -> " in rescheduled
    later = rescheduled.split(" -> ")[1].split("  ")[0]
    assert f"  was due {later}  by {second}  " in replaced
    assert run(["show", first]) == 0
    assert f"state       replaced by {second}, " in capsys.readouterr().out
    assert run(["cancel", second]) == 0
    capsys.readouterr()
    assert run(["show", second]) == 0
    assert "state       cancelled, " in capsys.readouterr().out
    assert run(["show", first, "--json"]) == 0
    (shown,) = lines_of(capsys)
    assert (shown["state"], shown["replaced_by"]) == ("cancelled", second)
    assert shown["ended_at"].endswith("Z")


def test_trace_prints_errors_traces_and_gaps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    failed = TraceEvent("failed", at, 0, "orders", 1, 7, due_at=at, group="billing", attempt=2)
    failed = replace(failed, error_type="ValueError", error_message="bad\x1b[0m", trace="line 1\nline 2\n")

    async def found(*_: object) -> Trace:
        return Trace("A", [failed], ["a shard does not answer"])

    monkeypatch.setattr("duetime.cli.trace._trace", found)
    assert run(["trace", "A", "--traces"]) == 0
    captured = capsys.readouterr()
    first, *trace = captured.out.splitlines()
    assert first.endswith("ValueError: bad\\x1b[0m  orders/1@7")
    assert "  failed        billing  attempt 2  retried 2" in first
    assert trace == ["    line 1", "    line 2"]
    assert captured.err == "duetime: may be missing: a shard does not answer\n"
    assert run(["trace", "A", "--json"]) == 0
    event, gap = lines_of(capsys)
    assert (event["error_type"], event["trace"], gap) == (
        "ValueError",
        "line 1\nline 2\n",
        {"gap": "a shard does not answer"},
    )


def test_lanes_show_pending_messages(server: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lanes", "--json"]) == 0
    others = lines_of(capsys)[14]["pending_count"]
    run(["send", topic, "x", "--delay", "20m"])
    capsys.readouterr()
    assert run(["lanes", "--json"]) == 0
    lanes = lines_of(capsys)
    assert [lane["level"] for lane in lanes] == [*range(1, 19), None]
    assert (lanes[14]["delay_ms"], lanes[14]["pending_count"]) == (1_200_000, others + 1)
    assert lanes[14]["next_due_at"].endswith("Z")
    assert run(["lanes"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:4] == ["shard", "lane", "delay", "pending"]
    assert next(line.split() for line in table if " 20m " in line)[2:4] == ["20m", str(others + 1)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["send", "orders", "x", "--queue", "99"], "duetime: queue: "),
        (["send", "orders", "@/no/such/file"], "duetime: /no/such/file: no such file or directory"),
        (["pull", "no_such_topic"], "duetime: topic no_such_topic does not exist"),
        (["topics", "create", "many", "--queues", "9999"], "duetime: queue_count: "),
        (["lanes", "--server", "localhost:1"], "duetime: cannot connect to localhost:1"),
    ],
)
def test_an_error_of_the_server_is_one_line_and_exit_code_1(
    server: str, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(text)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["send"],
        ["send", "orders", "x", "--nonsense"],
        ["send", "orders", "x", "--delay", "5s", "--level", "2"],
        ["send", "orders", "x", "--delay", "5s", "--deliver-at", "2026-12-24T18:00Z"],
        ["send", "orders", "x", "--deliver-at", "tomorrow"],
        ["cancel"],
        ["cancel", "ID", "--dry-run"],
        ["cancel", "--topic", "orders"],
        ["reschedule", "ID"],
        ["reschedule", "ID", "--delay", "5s", "--deliver-at", "2026-12-24T18:00Z"],
        ["pending", "--before", "tomorrow"],
        ["backlog", "--by", "week"],
        ["send", "orders", "x", "--property", "color"],
        ["send", "orders", "x", "--level", "high"],
        ["send", "orders", "x", "--delay", "9999d"],
        ["send", "orders", "x", "--delay", "1.5x"],
        ["lanes", "--server", "no:where"],
        ["pull", "orders", "--from", "now"],
        ["pull", "orders", "--from", "2026-13-01T12:00"],
        ["pull", "orders", "--max", "0"],
        ["find", "orders"],
        ["find", "orders", "42", "--from", "yesterday"],
        ["find", "orders", "42", "--max", "65"],
        ["find", "--id", "ID", "--from", "2026-01-01"],
        ["topics", "create"],
        ["up", "--port", "65536"],
        ["topics", "describe", "\udcff"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("duetime: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    "command",
    [
        *([], ["up"], ["send"], ["pull"], ["find"], ["lanes"], ["backlog"]),
        *(["topics"], ["topics", "create"], ["topics", "describe"]),
    ],
)
def test_every_command_has_help_with_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Examples:\n    duetime {' '.join(command)}".rstrip() in text
    assert not command or "--json" in text


def test_missing_extra_is_reported_in_one_line() -> None:
    code = "import sys; sys.modules['typer'] = None; from duetime.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert done.stderr == b"duetime: the command needs the cli extra: pip install 'duetime[cli]'\n"


def test_the_sdk_needs_grpc_and_protobuf_only() -> None:
    code = "import sys, duetime; duetime.Producer; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=DEADLINE_S, text=True, check=True)
    plain = subprocess.run(
        [sys.executable, "-c", code.replace(", duetime; duetime.Producer", ", grpc.aio, google.protobuf.message")],
        capture_output=True,
        timeout=DEADLINE_S,
        text=True,
        check=True,
    )
    more = set(done.stdout.split()) - set(plain.stdout.split()) - sys.stdlib_module_names
    # Compiled modules bring their shared modules along.
    more = {name for name in more if not name.startswith("_cython_")}
    assert more == {"duetime", "duetime_format"}
