"""`duetime groups` against a real cluster, and its display of any answer."""

import asyncio
import itertools
import json
from datetime import datetime
from typing import Any

import pytest
from duetime.cli import groups as commands
from duetime.cli import pauses
from duetime.cli.app import run
from duetime.cli.gateway import call
from duetime.client.connection import GatewayConnection
from duetime.v1 import consumer_pb2, message_pb2

_numbers = itertools.count(1)
NOON_MS = 1_767_268_800_000


@pytest.fixture
def group() -> str:
    """A group of the test's own."""
    return f"group_{next(_numbers)}"


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_groups_are_made_listed_and_changed(server: str, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = ["groups", "create", group, "--retry", "exponential:1s..10m,factor=3", "--max-attempts", "5", "--ordered"]
    assert run(made) == 0
    text = f"group {group} starts earliest, ordered; at most 5 deliveries, retries exponential:1s..10m,factor=3 "
    assert capsys.readouterr().out == f"{text}(unless a message or a handler has its own policy)\n"
    assert run([*made, "--json"]) == 0
    (shown,) = lines_of(capsys)
    assert shown.pop("created_at").endswith("Z")
    assert shown == {
        "group": group,
        "start": "earliest",
        "start_at": None,
        "ordered": True,
        "max_attempts": 5,
        "backoff": "exponential:1s..10m,factor=3",
        "limits": [],
    }
    assert run(["groups", "set", group, "--retry", "1s,5s,0s"]) == 0
    assert "at most 5 deliveries, retries 1s,5s,0s (unless " in capsys.readouterr().out
    assert run(["groups", "set", group, "--max-attempts", "7"]) == 0
    assert "at most 7 deliveries, retries 1s,5s,0s (unless " in capsys.readouterr().out
    assert run(["groups", "--json"]) == 0
    assert next(line for line in lines_of(capsys) if line["group"] == group)["max_attempts"] == 7
    assert run(["groups", "list"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == [
        "group",
        "lag",
        "retries",
        "dead",
        "letters",
        "start",
        "ordered",
        "deliveries",
        "backoff",
        "created",
    ]
    assert next(line for line in table if f"{group} " in line).split()[1:8] == [
        "0",
        "0",
        "0",
        "earliest",
        "yes",
        "7",
        "1s,5s,0s",
    ]


@pytest.mark.parametrize(
    ("start", "shown"),
    [("latest", "latest"), ("2026-01-01T12:00Z", "time"), ("2026-01-01T14:00+02:00", "time")],
)
def test_group_starts_at_the_option(
    server: str, group: str, start: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["groups", "create", group, "--start", start, "--json"]) == 0
    (made,) = lines_of(capsys)
    assert made["start"] == shown
    if shown == "latest":
        assert "2026-01-01T12:00" < made["start_at"] <= made["created_at"]
    else:
        assert made["start_at"] == "2026-01-01T12:00:00.000Z"
    assert run(["groups", "create", group, "--start", start]) == 0
    assert f"group {group} starts {'latest' if shown == 'latest' else 'at 2026-01-01T'}" in capsys.readouterr().out


def receive(server: str, group: str, topic: str, count: int) -> list[bytes]:
    """Bodies of messages that are leased, and stay so."""

    async def work() -> list[bytes]:
        connection = GatewayConnection(server)
        try:
            request = consumer_pb2.ReceiveRequest(group=group, topic=topic, max_count=count, wait_ms=5_000, member="me")
            answer = await connection.call("Receive", request, 10.0)
            return [one.message.body for one in answer.messages]
        finally:
            await connection.close()

    return asyncio.run(work())


def test_group_is_described_reset_and_deleted(server: str, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    topic = f"of_{group}"
    run(["topics", "create", topic, "--queues", "1"])
    for number in range(3):
        run(["send", topic, str(number)])
    assert receive(server, group, topic, 2) == [b"0", b"1"]
    capsys.readouterr()
    assert run(["groups", "describe", group, "--json"]) == 0
    (described,) = lines_of(capsys)
    (queue,) = [one for one in described["queues"] if one["topic"] == topic]
    assert (queue["committed_offset"], queue["next_offset"], queue["max_offset"]) == (0, 2, 3)
    assert (queue["lag"], queue["in_flight"]) == (3, 2)
    assert [(one["member"], one["topic"]) for one in described["members"]] == [("me", topic)]
    assert described["lapsed_messages"] == 0
    assert run(["groups", "--json"]) == 0
    (listed,) = [line for line in lines_of(capsys) if line["group"] == group]
    assert (listed["lag"], listed["dead_letters"]) == (3, 0)
    assert run(["groups", "describe", group]) == 0
    assert "lag 3, in flight 2, waiting 0, waiting retries 0, dead letters 0, lapsed 0;" in capsys.readouterr().out

    assert run(["groups", "reset", group, topic, "--to", "latest", "--dry-run", "--json"]) == 0
    planned = {
        "topic": topic,
        "queue": 0,
        "shard": 0,
        "from_offset": 0,
        "to_offset": 3,
        "leases_ended": 2,
        "retries_ended": 0,
    }
    assert lines_of(capsys) == [planned]
    assert run(["groups", "reset", group, topic, "--queue", "0", "--to", "1", "--yes"]) == 0
    assert f"group {group} continues from these offsets in {topic}" in capsys.readouterr().out
    assert receive(server, group, topic, 1) == [b"1"]

    assert run(["groups", "delete", group]) == 1
    assert f"group {group} is in use: receivers were seen within a minute (me)" in capsys.readouterr().err
    assert run(["groups", "delete", group, "--force"]) == 0
    assert capsys.readouterr().out == f"group {group} is deleted\n"
    assert run(["groups", "delete", group]) == 0
    assert capsys.readouterr().out == f"group {group} did not exist\n"
    assert run(["groups", "describe", group]) == 1
    assert capsys.readouterr().err == f"duetime: group {group} does not exist\n"


def test_description_is_a_table_that_people_can_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = message_pb2.RetryPolicy(max_attempts=17, levels=message_pb2.LevelBackoff())
    group = consumer_pb2.Group(name="billing", retry=policy, created_at_ms=NOON_MS)
    described = consumer_pb2.GroupDescription(group=group, acks_per_s=1_234.5, dead_letters=4, unreachable_shards=[1])
    described.lapsed_messages = 6
    described.queues.add(
        topic="orders", queue=3, shard=0, committed_offset=10_000, next_offset=10_020, max_offset=12_000,
        lag=2_000, in_flight=15, waiting=5, oldest_unacked_at_ms=NOON_MS,
    )  # fmt: skip
    described.queues.add(topic="%RETRY%billing", queue=0, shard=0)
    monkeypatch.setattr(commands, "call", lambda server, method, request: described)
    assert run(["groups", "describe", "billing"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "duetime: shard 1 does not answer; its queues are missing\n"
    first, second, header, _, row, retries = captured.out.splitlines()
    assert first.startswith(
        "group billing starts earliest; at most 17 deliveries, retries levels "
        "(unless a message or a handler has its own policy); created 2026-01-01T"
    )
    assert second == (
        "answering shards only: lag 2,000, in flight 15, waiting 5, waiting retries 0, dead letters 4, "
        "lapsed 6; over the last minute 0.0 received and 1,234.5 acknowledged per second"
    )
    assert header.split()[:3] == ["topic", "queue", "shard"]
    assert row.split()[:9] == ["orders", "3", "0", "10,000", "10,020", "12,000", "2,000", "15", "5"]
    assert retries.split()[-1] == "-"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["describe", "nobody"], "duetime: group nobody does not exist"),
        (["set", "nobody", "--max-attempts", "3"], "duetime: group nobody does not exist"),
        (["create", "a b"], "duetime: group.name: 'a b' is not 1 to 120 characters"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(
    server: str, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["groups", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(text)
    assert (captured.err.count("\n"), captured.out) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "g", "--retry", "later"], "--backoff 'later'"),
        (["create", "g", "--max-attempts", "0"], "--max-attempts 0 is not within 1 and 1000"),
        (["create", "g", "--start", "soon"], "--start 'soon' is not earliest, latest, or a time such as"),
        (["set", "g"], "give --backoff, --max-attempts or both"),
        (["reset", "g", "t", "--to", "latest"], "give --dry-run to see the changes, or --yes to make them"),
        (["reset", "g", "t", "--to", "latest", "--dry-run", "--yes"], "give --dry-run to see"),
        (["reset", "g", "t", "--to", "7", "--yes"], "--to 7 is an offset in one queue: give --queue"),
        (["reset", "g", "t", "--to", "soon", "--yes"], "--to 'soon' is not earliest, latest, an offset or a time"),
        (["reset", "g", "t", "--yes"], "--to"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["groups", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("duetime: ")
    assert text in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


@pytest.mark.parametrize("command", [[], ["list"], ["create"], ["set"], ["describe"], ["reset"], ["delete"]])
def test_every_command_has_help_with_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["groups", *command, "--help"]) == 0
    assert f"Examples:\n    duetime {' '.join(['groups', *command])}" in capsys.readouterr().out


def test_group_is_paused_and_resumed(server: str, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["groups", "create", group])
    topic = f"of_{group}"
    run(["topics", "create", topic])
    capsys.readouterr()
    assert run(["groups", "pause", group, "--until", "30m"]) == 0
    assert capsys.readouterr().out.startswith(f"group {group} is paused since ")
    assert run(["groups", "pause", group, "--topic", topic, "--json"]) == 0
    (shown,) = lines_of(capsys)
    assert [(one["topic"], one["until"] is None) for one in shown["pauses"]] == [(None, False), (topic, True)]
    assert run(["groups", "describe", group]) == 0
    out = capsys.readouterr().out
    assert f"paused in {topic} since " in out
    assert ", until it is resumed" in out
    assert run(["groups", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("paused")
    assert run(["groups", "list", "--json"]) == 0
    assert [len(line["pauses"]) for line in lines_of(capsys) if line["group"] == group] == [2]
    assert run(["groups", "resume", group]) == 0
    assert capsys.readouterr().out == f"group {group} is not paused\n"
    assert run(["groups", "pause", "nobody"]) == 1
    assert run(["groups", "pause", group, "--until", "soon"]) == 2
    assert "a time of day such as 08:00" in capsys.readouterr().err


def test_group_is_limited(server: str, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["groups", "create", group])
    topic = f"of_{group}"
    run(["topics", "create", topic])
    capsys.readouterr()
    assert run(["groups", "limit", group]) == 0
    assert capsys.readouterr().out == f"group {group} has no limit\n"
    assert run(["groups", "limit", group, "--rate", "50/s"]) == 0
    assert capsys.readouterr().out == f"group {group} receives at most 50/s in each topic\n"
    both = ["--rate", "100/h,burst=5", "--per-key", "2"]
    assert run(["groups", "limit", group, *both, "--topic", topic, "--json"]) == 0
    limits = [
        {"topic": None, "rate": "50/s", "per_key": None, "declared": False},
        {"topic": topic, "rate": "100/h,burst=5", "per_key": 2, "declared": False},
    ]
    assert lines_of(capsys) == [{"group": group, "limits": limits}]
    assert run(["groups", "describe", group]) == 0
    assert f"receives at most 100/h,burst=5, 2 per key in {topic}" in capsys.readouterr().out
    assert run(["groups", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("limit")
    assert run(["groups", "list", "--json"]) == 0
    assert [line["limits"] for line in lines_of(capsys) if line["group"] == group] == [limits]
    assert run(["groups", "limit", group, "--none"]) == 0
    assert capsys.readouterr().out == f"group {group} receives at most 100/h,burst=5, 2 per key in {topic}\n"
    assert run(["groups", "limit", group, "--none", "--topic", topic]) == 0
    assert run(["groups", "limit", group, "--per-key", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"group {group} receives at most 1 per key in each topic"
    assert run(["groups", "limit", group, "--none"]) == 0
    declared = consumer_pb2.GroupLimit(topic=topic, per_key=3)
    call(server, "DeclareGroupLimits", consumer_pb2.DeclareGroupLimitsRequest(name=group, limits=[declared]))
    capsys.readouterr()
    assert run(["groups", "limit", group]) == 0
    assert capsys.readouterr().out == f"group {group} receives at most 3 per key in {topic}, declared by its tasks\n"
    assert run(["groups", "limit", group, "--none", "--topic", topic, "--json"]) == 0
    limit = {"topic": topic, "rate": None, "per_key": 3, "declared": True}
    assert lines_of(capsys) == [{"group": group, "limits": [limit]}]
    call(server, "DeclareGroupLimits", consumer_pb2.DeclareGroupLimitsRequest(name=group))
    assert run(["groups", "limit", "nobody", "--rate", "1/s"]) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--rate", "fast"], "'fast' is not a rate such as 50/s"),
        (["--rate", "1/s", "--none"], "and --none removes it"),
        (["--per-key", "0"], "'0' is below 1"),
        (["--topic", "orders"], "--topic takes --rate, --per-key or --none"),
    ],
)
def test_bad_limit_is_rejected(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["groups", "limit", "billing", *options]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(("now", "day"), [("07:59:59", 1), ("08:00:00", 2), ("23:30:00", 2)])
def test_time_of_day_is_the_next_one(now: str, day: int) -> None:
    found = pauses._next("8:00", datetime.fromisoformat(f"2026-01-01T{now}"))
    assert found == datetime(2026, 1, day, 8)
