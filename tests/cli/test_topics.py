"""`duetime topics delete` against a real cluster."""

import json

import pytest
from duetime.cli.app import run


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
