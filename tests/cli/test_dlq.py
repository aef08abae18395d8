"""`duetime dlq` and the SDK's DeadLetters against a real cluster."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from duetime import DeadLetters, Message, NotFound, Producer
from duetime.cli.app import run
from duetime.v1 import consumer_pb2, gateway_pb2_grpc

from tests.cli.cluster import DEADLINE_S, run_duetime
from tests.cli.test_commands import lines_of, topic
from tests.ending import ended

__all__ = ["topic"]


@pytest.fixture
def stub(server: str) -> Iterator[Any]:
    with grpc.insecure_channel(server) as channel:
        yield gateway_pb2_grpc.GatewayStub(channel)


@pytest.fixture
def group(topic: str) -> str:
    return f"group_of_{topic}"


def kill(stub: Any, server: str, topic: str, group: str, *bodies: bytes, said: str = "", **fields: Any) -> list[str]:
    """Messages that the group rejects; their ids, in the order of the dead letters. `said`: the end of its errors."""
    with Producer(server) as producer:
        for number, body in enumerate(bodies):
            producer.send_message(
                Message(topic, body, keys=[f"key{number}"], id=f"{topic}-{number}", queue=0, **fields)
            )
    found: list[Any] = []
    while len(found) < len(bodies):
        request = consumer_pb2.ReceiveRequest(group=group, topic=topic, max_count=1_000, wait_ms=10_000)
        found += stub.Receive(request, timeout=DEADLINE_S).messages
    nacks = [
        consumer_pb2.Nack(
            receipt=one.receipt,
            reject=True,
            error=consumer_pb2.HandlerError(
                type="TimeoutError", message=f"bank {n}{said}", trace=f"File x\n  line 2{said}"
            ),
        )
        for n, one in enumerate(found)
    ]
    stub.Nack(consumer_pb2.NackRequest(group=group, nacks=nacks), timeout=DEADLINE_S)
    return [one.message.id for one in found]


def test_escape_sequences_of_senders_do_not_reach_the_terminal(
    server: str, stub: Any, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "\x1b]0;title\x07\x9b2J\x7f\u202e\r"
    (message_id,) = kill(
        stub, server, topic, group, f"body{said}\nsecond\tline".encode(), said=said, properties={"color": f"red{said}"}
    )
    commands = [
        ["dlq", "list", group],
        ["dlq", "show", group, message_id],
        ["show", message_id, "--topic", topic],
        ["find", topic, "key0"],
        ["trace", message_id, "--topic", topic, "--traces"],
        ["pull", topic],
    ]
    for command in commands:
        assert run(command) == 0, command
        shown = capsys.readouterr()
        assert not re.search("[^ -~\u2026\n\t]", shown.out + shown.err), command
        assert "title" in shown.out, command
    assert run(["dlq", "show", group, message_id]) == 0
    assert "  second\tline" in capsys.readouterr().out
    for form in ("--json", "--output=yaml"):
        assert run(["dlq", "show", group, message_id, form]) == 0
        text = capsys.readouterr().out
        assert text.isascii()
        assert "\x1b" not in text
        assert "\x7f" not in text
        if form == "--json":
            assert json.loads(text)["body"] == f"body{said}\nsecond\tline"
    # Errors, too.
    assert run(["dlq", "show", group, said]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_list_and_show_have_all_fields(
    server: str, stub: Any, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = kill(stub, server, topic, group, b"one", b"\xff", tags="paid", properties={"color": "red"})
    assert run(["dlq", "list", group, "--json"]) == 0
    one, two = lines_of(capsys)
    assert (one["id"], one["topic"], one["body"], one["tags"], one["keys"]) == (first, topic, "one", "paid", ["key0"])
    assert (one["reason"], one["error"], one["redriven_count"]) == ("REJECTED", "TimeoutError: bank 0", 0)
    (attempt,) = one["attempts"]
    assert (attempt["attempt"], attempt["error_type"], attempt["trace"]) == (1, "TimeoutError", "File x\n  line 2")
    assert attempt["failed_at"] <= one["dead_at"]
    assert two["body_base64"] == "/w=="
    assert run(["dlq", "list", group, "--newest", "--max", "1", "--json"]) == 0
    assert [one["id"] for one in lines_of(capsys)] == [second]

    assert run(["dlq", "list", group, "--error", "BANK 1", "--tag", "paid", "--topic", topic, "--key", "key1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert f"  {second}  {topic}/0@1  tags=paid  keys=key1  attempts=1  REJECTED  TimeoutError: bank 1" in line

    assert run(["dlq", "show", group, first]) == 0
    page = capsys.readouterr().out
    for part in (
        f"id          {first}",
        "property    color=red",
        "attempt 1",
        "  TimeoutError: bank 0",
        "body\n  one\n",
    ):
        assert part in page
    assert "  File x\n    line 2\n" in page
    assert run(["dlq", "show", group, second, "--json"]) == 0
    assert [one["id"] for one in lines_of(capsys)] == [second]


def test_redrive_reports_each_and_the_sum(
    server: str, stub: Any, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = kill(stub, server, topic, group, b"0", b"1", b"2")
    assert run(["dlq", "redrive", group, "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"would redrive  {one}" for one in sent]
    assert printed.err == "duetime: would redrive 3; nothing was changed\n"
    assert run(["dlq", "redrive", group, "--max", "2", "--rate", "1000"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"redriven  {one}" for one in sent[:2]]
    assert printed.err == "duetime: redriven 2\n"
    assert run(["dlq", "redrive", group, "--id", sent[2], "--json"]) == 0
    (result,) = lines_of(capsys)
    assert (result["id"], result["outcome"], result["error"]) == (sent[2], "redriven", None)
    assert run(["dlq", "redrive", group]) == 0
    assert capsys.readouterr().err == "duetime: nothing to redrive\n"


def test_discard_needs_a_yes(
    server: str, stub: Any, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = kill(stub, server, topic, group, b"0", b"1")
    done = run_duetime("dlq", "discard", group)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"discarded for good: give --yes" in done.stderr
    assert run(["dlq", "discard", group, "--dry-run"]) == 0
    assert run(["dlq", "discard", group, "--to", "2020-01-01", "--yes"]) == 0
    capsys.readouterr()
    assert run(["dlq", "discard", group, "--key", "key0", "--yes"]) == 0
    assert capsys.readouterr().out == f"discarded  {sent[0]}\n"
    assert run(["dlq", "list", group, "--json"]) == 0
    assert [one["id"] for one in lines_of(capsys)] == sent[1:]


def test_redrive_continues_after_ctrl_c(server: str, stub: Any, topic: str, group: str) -> None:
    sent = kill(stub, server, topic, group, *(b"%d" % n for n in range(5)))
    command = [sys.executable, "-m", "duetime", "dlq", "redrive", group, "--rate", "0.2", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True)
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, errors = ended(process, DEADLINE_S)
    assert process.returncode == 130
    assert errors == "duetime: redriven 1; interrupted, the same command continues with the rest\n"
    done = run_duetime("dlq", "redrive", group, "--json")
    rest = [json.loads(line)["id"] for line in done.stdout.splitlines()]
    assert [first["id"], *rest] == sent


def test_missing_groups_and_dead_letters_are_reported(server: str, stub: Any, topic: str, group: str) -> None:
    done = run_duetime("dlq", "list", "nobody")
    assert (done.returncode, done.stderr) == (1, b"duetime: group nobody does not exist\n")
    kill(stub, server, topic, group, b"0")
    done = run_duetime("dlq", "show", group, "x")
    assert (done.returncode, done.stderr.decode()) == (1, f"duetime: group {group} has no dead letter x\n")
    done = run_duetime("dlq", "list", group, "--tag", "none", "--json")
    expected = f"duetime: group {group} has no dead letters that match the options\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"", expected)
    done = run_duetime("dlq", "redrive", "a b")
    assert done.returncode == 1
    assert b"filter.group: 'a b' is not" in done.stderr
    assert b"redrive" in run_duetime("dlq").stdout


@pytest.mark.parametrize("command", [["list"], ["redrive"], ["redrive", "--dry-run"], ["discard", "--yes"]])
def test_id_of_no_dead_letter_fails(
    server: str, stub: Any, topic: str, group: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (sent,) = kill(stub, server, topic, group, b"0")
    assert run(["dlq", command[0], group, *command[1:], "--id", sent, "--id", "none", "--max", "1"]) == 0
    is_kept = command[0] == "list" or "--dry-run" in command
    capsys.readouterr()
    assert run(["dlq", command[0], group, *command[1:], "--id", sent, "--id", "none", "--json"]) == 1
    printed = capsys.readouterr()
    assert [json.loads(line)["id"] for line in printed.out.splitlines()] == ([sent] if is_kept else [])
    missing = "none" if is_kept else f"{sent}, none"
    assert printed.err.splitlines()[-1] == (
        f"duetime: group {group} has no dead letter with id {missing} that matches the options"
    )


def test_plain_code_iterates(server: str, stub: Any, topic: str, group: str) -> None:
    sent = kill(stub, server, topic, group, *(b"%d" % n for n in range(300)))
    with DeadLetters(server, group) as letters:
        assert [letter.id for letter in letters.list()] == sent
        assert [letter.body for letter in letters.list(key="key7")] == [b"7"]
        for result in letters.redrive(rate=20):
            assert (result.outcome, result.error) == ("redriven", None)
            break
        left = [letter.id for letter in letters.list()]
        assert 0 < len(left) < 300
        assert [(one.id, one.outcome) for one in letters.redrive()] == [(one, "redriven") for one in left]
        assert list(letters.discard()) == []
    with DeadLetters(server, "nobody") as letters, pytest.raises(NotFound):
        next(letters.list())
    with DeadLetters(server, group) as letters, pytest.raises(ValueError, match="max: 0 is not within 1 and"):
        letters.redrive(max=0)
    with DeadLetters(server, group) as letters, pytest.raises(TypeError, match="ids is a str"):
        next(letters.list(ids="x"))
