"""Ratios, targets and marks of a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import history
from bench.any_time_tables import any_time_tables
from bench.contest import latest
from bench.figures import PERCENTILES, Spread, judged, ratio, stolen_rounds, value
from bench.model import modelled
from bench.report import BEGIN, END, into, markdown
from bench.schedules import late_by_turns
from bench.tables import losses, remarks, tables
from bench.webhook_tables import webhook_tables


def a_round(stolen: float = 0.0, **figures: dict[str, float]) -> dict[str, Any]:
    return {"stolen": stolen, "figures": figures}


def a_result(*rounds: dict[str, Any]) -> dict[str, Any]:
    lateness = {
        f"late {rate} {stored}{name}": 1.0
        for rate in (1000, 5000)
        for stored in ("", "stored ")
        for name in ("p50", "p99", "p99.9")
    }
    for one in rounds:
        one["figures"]["duetime"] = lateness | one["figures"].get("duetime", {})
    return {
        "cores": 2,
        "machine": {"system": "Linux"},
        "plan": {"through_count": 50_000, "burst_count": 100_000},
        "missing": {"redis": "redis-server is not installed"},
        "systems": {"postgres": {"title": "PostgreSQL queue", "version": "15"}},
        "rounds": list(rounds),
        "cpu_us": {"duetime batch": {"client": 3.0, "store": 1.0}},
        "faults": [],
        "memory": {"store": {"resident_mb": 90.0, "anonymous_mb": 50.0}},
        "processor_shares": {"stolen": 0.0, "others": 0.01},
        "took_s": 1.0,
    }


def test_ratios_are_taken_within_a_round() -> None:
    result = a_result(
        a_round(duetime={"accepted": 100.0}, postgres={"accepted": 200.0}),
        a_round(duetime={"accepted": 10.0}, postgres={"accepted": 10.0}),
        a_round(duetime={"accepted": 30.0}, postgres={"accepted": 20.0}),
    )
    assert ratio(result, "accepted", "postgres") == Spread(median=1.0, low=0.5, high=1.5)
    assert value(result, "duetime", "accepted") == Spread(30.0, 10.0, 100.0)


def test_figure_that_one_of_both_has_not_has_no_ratio() -> None:
    result = a_result(a_round(duetime={"burst": 1.0}, postgres={}))
    assert ratio(result, "burst", "postgres") is None
    assert ratio(result, "single", "redis") is None


def test_delayed_path_is_compared_with_the_batches_of_the_echo() -> None:
    result = a_result(a_round(echo={"batch": 400.0, "single": 7.0}, duetime={"sustained": 100.0}))
    assert ratio(result, "sustained", "echo") == Spread(0.25, 0.25, 0.25)
    assert ratio(result, "burst", "echo") is None


@pytest.mark.parametrize(("late_ms", "met"), [(1.6, False), (1.5, True), (0.5, True)])
def test_lateness_must_not_exceed_the_others_by_more_than_the_bound(late_ms: float, met: bool) -> None:
    result = a_result(a_round(duetime={"late 1000 p50": late_ms}, postgres={"late 1000 p50": 1.0}))
    ((target, spread),) = judged(result)
    assert target.met(spread.median) == met


def test_round_with_much_stolen_time_is_marked() -> None:
    result = a_result(a_round(stolen=0.1), a_round(stolen=0.11))
    assert stolen_rounds(result) == [2]
    assert any("round 2: 11%" in remark for remark in remarks(result))
    assert tables(result)[-1].rows == [["1", "10.0%", ""], ["2", "11.0%", "above 10%"]]


def test_losses_are_reported() -> None:
    figures = {"accepted": 1.0, "burst": 3.0, "late 1000 p50": 4.0}
    result = a_result(a_round(duetime=figures, postgres={"accepted": 2.0, "burst": 2.0, "late 1000 p50": 2.0}))
    assert [loss.split(":")[1].strip() for loss in losses(result)] == [
        "accepted with a delay, batches of 256, messages/s",
        "lateness at 1,000/s, p50, ms",
    ]


def test_remarks_name_missing_and_shortened_measurements() -> None:
    result = a_result(a_round(duetime={"burst": 3.0}, postgres={"burst": 2.0, "burst count": 256.0}))
    assert remarks(result)[:2] == [
        "redis is skipped: redis-server is not installed",
        "postgres: 256 instead of 100,000 messages",
    ]


def test_document_keeps_all_but_its_figures(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    text = markdown(a_result(a_round(duetime={"burst": 3.0}, postgres={"burst": 2.0})))
    into(document, text)
    assert document.read_text() == f"before\n{BEGIN}\n{text}\n{END}\nafter\n"
    assert (
        "| 100,000 due, from release to last receive, messages/s | 3 | 2 | 1.50 | 1.50 to 1.50 | >= 0.80 met |" in text
    )


def test_latest_messages_are_explained_by_their_stages() -> None:
    late_ms = np.full(10_000, 2.0)
    late_ms[100:105] = 20.0
    late_ms[9_000:9_005] = 30.0
    stored = np.ones(10_000, np.int64)
    stored[9_000:9_005] = 29
    found = latest(late_ms, stored)
    assert found == {"latest stored": 15.0, "latest after": 10.0, "latest stalls": 2}


def test_lane_for_any_time_is_compared_with_levels_of_the_same_round() -> None:
    levels, any_time = {"accepted": 100.0, "scattered": 50.0}, {"accepted": 90.0, "scattered": 35.0}
    result = a_result(a_round(**{"duetime": levels, "any time": any_time}))
    assert ratio(result, "scattered", "duetime", "any time") == Spread(0.7, 0.7, 0.7)
    table = next(one for one in tables(result) if one.title.startswith("messages for any time"))
    assert [row[-1] for row in table.rows] == [">= 0.90 met", ">= 0.90 MISSED"]
    met = [target.met(spread.median) for target, spread in judged(result) if target.system == "any time"]
    assert met == [True, False]


def test_kinds_of_batches_are_compared_with_plain_ones_of_the_same_turns() -> None:
    figures = {"batch": 500.0, "plain": 100.0, "plain again": 99.0, "all or none": 101.0, "without ids": 106.0}
    table = next(
        one
        for one in tables(a_result(a_round(duetime=figures | {"transactions": 130.0})))
        if "beside batches" in one.title
    )
    assert [(row[2], row[3], row[5]) for row in table.rows] == [
        ("500", "0.26", ">= 0.25 met"),
        ("100", "0.99", ""),
        ("100", "1.01", ">= 1.00 met"),
        ("100", "1.06", "<= 1.05 MISSED"),
    ]


def test_pending_messages_for_any_time_are_judged_by_their_cost() -> None:
    store = {"resident_mb": 290.0, "anonymous_mb": 90.0}
    found = {
        "count": 10,
        "fill_rate": 1.0,
        "accepted_before": {"any time": 50.0, "levels": 100.0},
        "accepted_filled": {"any time": 20.0, "levels": 80.0},
        "store_before": store,
        "store_filled": store,
        "store_used": store,
        "store_restarted": store | {"resident_mb": 301.0},
        "lateness": {"p50": 1.0, "p99": 2.0},
        "sustained_before": 1.0,
        "cpu_before_us": {"store": 9.0},
        "sustained": 1.0,
        "cpu_us": {"store": 9.0},
        "pages": {"all": {"p50": 9.0, "p99": 100.5, "count": 100.0}},
        "cancels": {"any time": 20_000.0, "levels": 19_999.0},
        "after_kill_s": 4.0,
        "after_kill_recovery_s": 1.0,
        "clean_restart_answer_s": 6.0,
        "clean_restart_recovery_s": 1.0,
    }
    (table,) = any_time_tables({"pending": found})
    missed = [row[0] for row in table.rows if row[-1].endswith("MISSED")]
    assert missed == [
        "kept share of the rate, relative to a level's",
        "store's memory in MB, restarted; in brackets not backed by files",
        "a page of 100, all, p50 / p99 in ms (100 found)",
        "cancels/s, levels",
        "cluster stopped and started: s to the first exact answer (reading the directory)",
    ]


def test_lateness_beside_an_instant_is_judged_by_the_usual() -> None:
    late = {"p50": 1.0, "p99": 10.0, "p99.9": 20.0}
    found = {"count": 5, "usual": late, "beside": late | {"p99": 20.1}, "restored_per_s": 9.0}
    (table,) = any_time_tables({"instant": found})
    assert [row[-1] for row in table.rows] == ["", "<= 2 times MISSED", "", ""]


def test_webhooks_are_in_the_document_if_they_were_measured() -> None:
    rate = {"per_s": 1_600.4, "cores": 0.7}
    found = {"rate": 100, "many_count": 16, "most_count": 256, "few": rate, "many": rate, "idle_cores": 0.0131}
    found |= {"memory_few_mb": 96.0, "memory_max_mb": 132.0, "late_ms": {"p50": 14.2, "p99": 95.0}}
    result = a_result(a_round(duetime={"burst": 3.0})) | {
        "webhooks": found | {"full": {"memory_mb": 267.0, "stored_mb": 268.4}}
    }
    text = markdown(result)
    assert "| posted/s by 1 webhook | 1,600 | 0.70 |" in text
    assert "| at most, in MB, 16 webhooks, whose receiver hangs with 268 MB of messages stored | 267 |  |" in text
    assert webhook_tables({}) == []


def test_one_process_is_compared_and_judged_apart() -> None:
    figures = {"postgres": {"accepted": 100.0}, "one process": {"accepted": 109.0}, "duetime": {"accepted": 100.0}}
    result = a_result(a_round(**figures))
    assert [(target.system, target.met(spread.median)) for target, spread in judged(result)] == [
        ("duetime", True),
        ("one process", False),
    ]
    (table,) = [one for one in tables(result) if one.title.startswith("DueTime in one process beside PostgreSQL")]
    assert table.rows[0][1:4] == ["109", "100", "1.09"]
    assert not losses(result)
    figures["one process"]["accepted"] = 90.0
    (loss,) = losses(a_result(a_round(**figures)))
    assert loss.startswith("PostgreSQL queue (DueTime in one process): accepted with a delay")


def test_sdk_only_figures_have_their_own_goals() -> None:
    figures = {"producer": 1.0, "threads": 15_000.0, "handled": 59_999.0, "received": 65_000.0}
    result = a_result(a_round(duetime=figures, postgres={"accepted": 215_000.0}))
    table = next(one for one in tables(result) if one.title == "DueTime by its SDK")
    assert {row[0].split(" ")[0]: row[2] for row in table.rows if row[2]} == {
        "Producer.send": ">= 15,000 met",
        "handled": ">= 60,000 MISSED",
        "received": ">= 65,000 met",
    }
    result = a_result(a_round(duetime=figures | {"run": 48_000.0}))
    table = next(one for one in tables(result) if one.title == "DueTime by its SDK")
    assert [row[2] for row in table.rows if row[0].startswith("received")] == [""]
    assert [row[2] for row in table.rows if row[0].startswith("run")] == ["0.80 of handled, >= 0.80 met"]


def test_runs_are_reported_in_a_row(tmp_path: Path) -> None:
    files = []
    for number, accepted in enumerate((50.0, 120.0)):
        result = a_result(a_round(duetime={"accepted": accepted}, postgres={"accepted": 100.0}))
        files.append(tmp_path / f"run-{number}.json")
        files[-1].write_text(json.dumps(result))
    runs = history.read(files)
    table = history.table_of(runs)
    assert table.headings == ["", "run-0", "run-1", "target"]
    assert [row[1:] for row in table.rows] == [["0.50", "1.20", ">= 1.00"]]
    again = tmp_path / "again"
    again.mkdir()
    (again / "run-0.json").write_text(files[0].read_text())
    assert list(history.read([files[0], again / "run-0.json"])) == ["run-0", str(again / "run-0.json")]
    files[0].write_text("[]")
    with pytest.raises(ValueError, match="no rounds"):
        history.read(files)


def test_runs_are_drawn_in_a_row(tmp_path: Path) -> None:
    pictures = pytest.importorskip("bench.pictures", reason="matplotlib is not installed")
    late = {"accepted": 50.0, "late 1000 p50": 2.0}
    result = a_result(a_round(**{"duetime": late, "one process": late, "postgres": late}))
    pictures.draw_history({"first": result, "second": a_result(a_round())}, tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_text().count("</svg>") == 1


def test_modelled_rate_of_more_shards_follows_the_busiest_process() -> None:
    result = a_result(a_round())
    costs = {"client": 3.0, "gateway": 2.8, "store": 7.0, "scheduler": 1.0}
    result["cpu_us"] = {"duetime sustained": costs, "duetime batch": costs | {"gateway": 14.0}, "echo batch": costs}
    assert modelled(result).rows == [
        ["accepted, batches of 256", "gateways", "200,000", "1.4", "2.8", "0.2", "0.6"],
        ["delayed, sent and received", "stores", "400,000", "2.8", "1.1", "0.4", "1.2"],
    ]
    assert modelled(a_result(a_round())).rows == []


def test_occurrences_are_judged_by_messages_of_the_same_turn() -> None:
    def turns(*store_us: float) -> list[dict[str, float]]:
        return [{"store": us, "scheduler": 3.0} for us in store_us]

    used = {"message": turns(5.0, 5.0, 13.0), "interval": turns(9.0, 8.9, 13.0), "cron": turns(9.1, 9.1, 9.1)}
    late = {"usual": [dict.fromkeys(PERCENTILES, 2.0)] * 2, "beside": [dict.fromkeys(PERCENTILES, 4.0)] * 2}
    late["beside"][1] = dict.fromkeys(PERCENTILES, 4.4)
    found = {"count": 100_000, "cost_count": 20_000, "cpu_us": used, "put_per_s": 500.0, **late_by_turns(late)}
    cost, lateness = any_time_tables({"schedules": found})
    assert [row[1:] for row in cost.rows] == [
        ["5.0", "3.0", "1.00", "", ""],
        ["9.0", "3.0", "1.49", "1.00 to 1.50", "<= 1.5 times met"],
        ["9.1", "3.0", "1.51", "0.76 to 1.51", "<= 1.5 times MISSED"],
    ]
    assert lateness.rows[1] == ["p99", "2.0", "4.2", "2.10", "2.00 to 2.20", "<= 2 times MISSED"]
    assert lateness.rows[-1][:3] == ["schedules put/s", "", "500"]
