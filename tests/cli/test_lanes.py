"""`duetime lanes` against a real cluster: the list, pauses and resumes."""

import json
from typing import Any

import pytest
from duetime.cli.app import run
from duetime.v1 import gateway_pb2


def lanes(capsys: pytest.CaptureFixture[str]) -> dict[int, dict[str, Any]]:
    capsys.readouterr()
    assert run(["lanes", "--json"]) == 0
    return {one["lane"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}


def test_lanes_without_messages_are_left_out_of_the_table(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["send", "of_lanes", "x", "--delay", "20m"])
    found = lanes(capsys)
    assert (found[15]["level"], found[15]["delay_ms"], found[15]["paused"]) == (15, 1_200_000, False)
    assert (found[1000]["level"], found[1000]["delay_ms"]) == (None, 0)
    assert all(one["durable_late_p99_ms"] == one["late_p99_ms"] for one in found.values())
    unused = [lane for lane, one in found.items() if not one["pending_count"] and one["late_p50_ms"] is None]
    assert unused
    assert run(["lanes"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert "durable late p50/p99" in head
    assert head.split()[:4] == ["shard", "lane", "delay", "pending"]
    shown = {int(row.split()[1]): row for row in rows}
    assert "20m" in shown[15].split()
    assert not shown.keys() & set(unused)
    assert run(["lanes", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(found)


@pytest.mark.parametrize("lane", ["17", "1h"])
def test_a_lane_is_paused_and_resumed(server: str, lane: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lanes", "pause", lane]) == 0
    assert capsys.readouterr().out == "lane 17 is paused on shard 0\n"
    assert lanes(capsys)[17]["paused"]
    assert run(["lanes"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if " 1h " in line]
    assert "paused" in row.split()
    assert run(["lanes", "resume", lane, "--shard", "0", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shard": 0, "lane": 17, "paused": False}
    assert not lanes(capsys)[17]["paused"]


@pytest.mark.parametrize(
    ("lane", "code", "said"),
    [
        ("nonsense", 2, "'nonsense' is neither a lane's number nor a delay"),
        ("25m", 1, "no level has the delay 25m; levels: 1s, 5s,"),
        ("999", 1, "no shard has lane 999"),
    ],
)
def test_invalid_lane_is_refused(
    server: str, lane: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lanes", "pause", lane]) == code
    assert said in capsys.readouterr().err


def test_lanes_of_an_unreachable_shard_are_not_counted_as_unused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = gateway_pb2.ListLanesResponse(unreachable_shards=[0])
    monkeypatch.setattr("duetime.cli.lanes.call", lambda *_: answer)
    assert run(["lanes"]) == 1
    assert capsys.readouterr() == ("", "duetime: shard 0 does not answer; its lanes are missing\n")
