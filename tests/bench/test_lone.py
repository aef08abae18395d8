"""One message at a time: each client waits for its answer, all start together, and failed clients give no figure."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from duetime.engine import FORMER_ENGINE, VARIABLE

from bench import lone
from bench.lone_client import Order, laps
from bench.lone_tables import lone_tables
from bench.peers.duetime import DueTime
from bench.processes import inherited


def test_laps_end_with_the_measured_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0

    def send() -> None:
        nonlocal now
        now += 0.25

    monkeypatch.setattr(time, "monotonic", lambda: now)
    # The fifth call would end after the last second.
    assert laps(send, 10.0, 1.1) == [0.25] * 4


def test_figures_are_of_all_clients_together() -> None:
    found: list[dict[str, Any]] = [
        {"laps_us": [1000] * 99, "cpu_s": 0.01, "switches": 100},
        {"laps_us": [3000], "cpu_s": 0.02, "switches": 100},
    ]
    assert lone.figures(found, 0.05, 2.0) == {
        "rate": 50.0,
        "p50": 1.0,
        "p99": pytest.approx(1.02),
        "client_us": pytest.approx(300.0),
        "server_us": pytest.approx(500.0),
        "switches": 2.0,
    }


def test_turn_without_answers_has_no_figures() -> None:
    with pytest.raises(RuntimeError, match="no message was answered within 2 s"):
        lone.figures([{"laps_us": [], "cpu_s": 0.0, "switches": 0}], 0.0, 2.0)


def test_medians_are_taken_for_each_system(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    rates = iter([1.0, 10.0, 20.0, 2.0, 3.0, 30.0] * 2)

    def run(system: lone.System, count: int) -> dict[str, float]:
        order.append(system.name)
        return dict.fromkeys(lone.FIGURES, next(rates) * count)

    monkeypatch.setattr(lone, "run", run)
    systems = [lone.System(name, Order("insert", "", "", 1.0), float) for name in ("a", "b")]
    found = lone.compare(systems, 3, lambda _: None, (1, 8))
    assert order[:6] == ["a", "b", "b", "a", "a", "b"]
    assert [found[count][name]["rate"] for count in ("1", "8") for name in ("a", "b")] == [2.0, 20.0, 16.0, 160.0]


def test_targets_are_ratios_to_postgres() -> None:
    ours = {"rate": 500.0, "p50": 0.5, "p99": 3.0, "client_us": 1.0, "server_us": 1.0, "switches": 1.0}
    found = {count: {"duetime": ours, "postgres": ours | {"rate": 1000.0, "p50": 0.1}} for count in ("1", "8", "32")}
    figures, ratios = lone_tables(found)
    assert figures.rows[0] == ["1", "duetime", "500", "0.50", "3.00", "1", "1", "1.0"]
    assert [row[2:] for row in ratios.rows] == [
        ["5.00", "<= 3.60 MISSED"],
        ["0.50", ">= 0.40 met"],
        ["0.50", ">= 0.60 MISSED"],
        ["1.00", "<= 2.00 met"],
    ]
    assert lone_tables({}) == []


def test_a_client_that_ends_with_an_error_ends_the_turn() -> None:
    system = lone.System("broken", Order("unknown", "", "", 0.1), float, sys.executable)
    with pytest.raises(RuntimeError, match="a client ended with 1"):
        lone.run(system, 1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DueTime]:
    cluster = DueTime("sync", 1, together=True)
    cluster.start(tmp_path)
    try:
        yield cluster
    finally:
        cluster.stop()


def test_producers_of_two_processes_are_measured(cluster: DueTime) -> None:
    cluster.make_topic(lone.TOPIC)
    found = lone.run(lone.system_of("duetime", cluster, 0.5), 2)
    assert found["rate"] > 0
    assert 0 < found["p50"] <= found["p99"]
    assert json.loads(json.dumps(found)) == found


def test_another_tree_chooses_its_own_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, FORMER_ENGINE)
    monkeypatch.setenv("DUETIME_TOKEN", "of this user")
    assert not {VARIABLE, "DUETIME_TOKEN"} & inherited().keys()
    monkeypatch.setenv(VARIABLE, "")
    assert inherited()[VARIABLE] == ""
