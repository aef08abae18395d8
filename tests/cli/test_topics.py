"""`duetime topics` against a real cluster: deletion, lite topics."""

import json

import pytest
from duetime.cli.app import run

from tests.cli.cluster import run_duetime


def test_a_topic_is_deleted(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    topic = "topic_to_delete"
    run(["send", topic, "later", "--delay", "1h"])
    capsys.readouterr()
    assert run(["topics", "delete", topic]) == 2
    assert "--yes" in capsys.readouterr().err
    assert run(["topics", "delete", topic, "--yes"]) == 1
    assert "is not empty: 1 pending" in capsys.readouterr().err
    assert run(["topics", "delete", topic, "--dry-run"]) == 0
    out = f"topic {topic} would be deleted", "1 pending messages would be cancelled"
    assert tuple(capsys.readouterr().out.splitlines()) == out
    assert run(["topics", "delete", topic, "--force", "--yes", "--json"]) == 0
    deleted = {"topic": topic, "deleted": True, "cancelled": 1, "rolled_back": 0, "groups": []}
    assert json.loads(capsys.readouterr().out) == deleted
    assert run(["topics", "delete", topic, "--yes"]) == 1
    assert run(["topics", "describe", topic]) == 1


def test_lite_topics_are_sent_to_received_and_listed(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    topic = "topic_of_lites"
    run(["topics", "create", topic, "--type", "lite"])
    assert run(["topics", "lite", topic]) == 0
    assert "has no lite topics" in capsys.readouterr().out
    for lite in ("a", "b", "a"):
        assert run(["send", topic, f"to {lite}", "--lite-topic", lite]) == 0
    capsys.readouterr()
    received = run_duetime(
        *("consume", topic, "--group", "lites", "--lite-topic", "a", "--count", "2", "--json", "--server", server)
    )
    found = [json.loads(line) for line in received.stdout.splitlines()]
    assert [(one["body"], one["lite_topic"]) for one in found] == [("to a", "a")] * 2
    assert run(["topics", "lite", topic, "--json", "--group", "lites"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert listed == [{"lite_topic": "a", "messages": 2, "unread": 0}, {"lite_topic": "b", "messages": 1, "unread": 1}]
    assert run(["topics", "lite", topic]) == 0
    assert ["a", "2"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert run(["send", topic, "later", "--lite-topic", "a", "--delay", "1h"]) == 2
    assert "lite_topic" in capsys.readouterr().err


def test_topic_is_paused_and_resumed(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    topic = "topic_to_pause"
    run(["topics", "create", topic])
    capsys.readouterr()
    assert run(["topics", "pause", topic, "--until", "30m"]) == 0
    assert capsys.readouterr().out.startswith(f"topic {topic} is paused for all groups since ")
    assert run(["topics", "pause", topic, "--json"]) == 0
    paused = json.loads(capsys.readouterr().out)
    assert (paused["topic"], paused["pause"]["until"]) == (topic, None)
    assert run(["topics", "describe", topic]) == 0
    assert ", until it is resumed" in capsys.readouterr().out
    assert run(["topics", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("paused")
    assert run(["topics", "list", "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["pause"] for one in listed if one["topic"] == topic] == [paused["pause"]]
    assert run(["topics", "resume", topic]) == 0
    assert capsys.readouterr().out == f"topic {topic} is not paused\n"
    assert run(["topics", "resume", topic, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"topic": topic, "pause": None}
    assert run(["topics", "pause", "nothing"]) == 1
    assert run(["topics", "pause", topic, "--until", "soon"]) == 2
