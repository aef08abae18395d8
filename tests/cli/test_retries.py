"""`duetime groups retries`, `retry-now` and `discard-retries` against a real cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
from duetime import LeasedMessage, Producer, Receiver
from duetime.cli.app import run

from tests.cli.test_commands import lines_of, topic

__all__ = ["topic"]


@pytest.fixture
def group(topic: str) -> str:
    return f"group_of_{topic}"


@pytest.fixture
def receiver(server: str, topic: str, group: str) -> Iterator[Receiver]:
    """Its group failed the messages `TOPIC-a`, `-b` and `-c`; the last is due first."""
    with Producer(server) as producer, Receiver(server, topic, group=group) as receiver:
        for name in "abc":
            producer.send(topic, name.encode(), id=f"{topic}-{name}", keys=[name])
        taken: list[LeasedMessage] = []
        while len(taken) < 3:
            taken += receiver.receive()
        for message in taken:
            error, after = (KeyError("7"), "1h") if message.keys == ["c"] else (TimeoutError("bank"), "2h")
            receiver.nack(message, error, after=after)
        yield receiver


def counts_of(group: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """Lag and waiting retries in the list of groups."""
    assert run(["groups", "--json"]) == 0
    (listed,) = [one for one in lines_of(capsys) if one["group"] == group]
    return listed["lag"], listed["waiting_retries"]


def test_waiting_retries_are_listed(
    receiver: Receiver, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["groups", "retries", group, "--json"]) == 0
    first, *others = lines_of(capsys)
    assert (first["id"], first["topic"], first["body"], first["deliveries"]) == (f"{topic}-c", topic, "c", 1)
    assert (first["error"], first["keys"]) == ("KeyError: '7'", ["c"])
    (attempt,) = first["attempts"]
    assert (attempt["attempt"], attempt["error_type"]) == (1, "KeyError")
    assert {one["id"] for one in others} == {f"{topic}-a", f"{topic}-b"}

    assert run(["groups", "retries", group, "--error", "BANK", "--topic", topic, "--max", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("deliveries=1  TimeoutError: bank")
    assert run(["groups", "retries", group, "--error", "none"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (
        "",
        f"duetime: group {group} has no waiting retries that match the options\n",
    )

    assert counts_of(group, capsys) == (0, 3)
    assert run(["groups", "list"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [group])
    assert row.split()[1:4] == ["0", "3", "0"]
    assert run(["groups", "describe", group, "--json"]) == 0
    assert lines_of(capsys)[0]["next_retry_at"] == first["next_at"]


def test_waiting_retries_are_ended(
    receiver: Receiver, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    last: dict[str, Any] = {"matched": 3, "ended": 0, "gone": 0, "done": True}
    assert run(["groups", "retry-now", group, "--dry-run", "--json"]) == 0
    assert lines_of(capsys)[-1] == last
    assert run(["groups", "retry-now", group, "--id", f"{topic}-a"]) == 0
    assert capsys.readouterr().out == "retried 1 waiting retries\n"
    (again,) = receiver.receive(wait="30s")
    assert (again.id, again.attempt) == (f"{topic}-a", 2)
    receiver.ack(again)

    assert run(["groups", "discard-retries", group, "--error", "keyerror", "--dry-run"]) == 0
    assert capsys.readouterr().out == "would discard 1 waiting retries; nothing was changed\n"
    assert run(["groups", "discard-retries", group, "--error", "keyerror"]) == 2
    assert "retries are discarded for good: give --yes" in capsys.readouterr().err
    assert counts_of(group, capsys) == (0, 2)
    assert run(["groups", "discard-retries", group, "--error", "keyerror", "--yes"]) == 0
    assert capsys.readouterr().out == "discarded 1 waiting retries\n"
    assert counts_of(group, capsys) == (0, 1)


@pytest.mark.parametrize("command", [["retries"], ["retry-now"], ["discard-retries", "--yes"]])
def test_id_of_no_waiting_retry_fails(
    receiver: Receiver, topic: str, group: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["groups", command[0], group, *command[1:], "--id", f"{topic}-a", "--id", "none"]
    assert run([*named, "--error", "bank"]) == 1
    printed = capsys.readouterr()
    assert "none" in printed.err or "1 of the ids" in printed.err
    assert len(printed.out.splitlines()) == 1
    assert run(["groups", command[0], group, *command[1:], "--id", "none"]) == 1
    if command[0] != "retries":
        assert run(["groups", command[0], group, *command[1:], "--id", "none", "--dry-run", "--json"]) == 1
    assert run(["groups", command[0], group, *command[1:], "--id", f"{topic}-b"]) == 0


def test_reset_reports_the_retries_that_it_ends(
    receiver: Receiver, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["groups", "reset", group, topic, "--to", "earliest", "--yes"]) == 0
    header, _, *rows, _ = capsys.readouterr().out.splitlines()
    assert header.endswith("retries ended")
    assert sum(int(row.split()[-1]) for row in rows) == 3
    assert counts_of(group, capsys) == (3, 0)


@pytest.mark.parametrize("command", ["retries", "retry-now", "discard-retries"])
def test_unknown_group_and_empty_option_are_errors(
    server: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    yes = ["--yes"] if command == "discard-retries" else []
    assert run(["groups", command, "nobody", *yes]) == 1
    assert capsys.readouterr().err == "duetime: group nobody does not exist\n"
    assert run(["groups", command, "nobody", *yes, "--error", ""]) == 2
    assert "--error is empty; omit it for all" in capsys.readouterr().err
