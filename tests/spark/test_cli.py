"""`duetime spark` for its users: errors at once and in one line, results as text, JSON, page and files."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from duetime_spark.cli import main
from pyspark.sql import SparkSession

from tests.format import golden

NAME = "rmq-4.9.8-clean"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack(NAME, tmp_path_factory.mktemp("golden"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    """The one line of a command that fails."""
    assert main(list(arguments)) == code
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert told.err.startswith("duetime: ")
    return told.err


class TestBadInput:
    """None of these needs a session: they return immediately."""

    @pytest.fixture(autouse=True)
    def _no_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise AssertionError("Spark was started")

        monkeypatch.setattr("duetime_spark.session.start", fail)

    def test_no_directory(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert "it does not exist" in refused(capsys, "backlog", str(tmp_path / "none"))

    def test_a_directory_of_something_else(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert "is not a store directory" in refused(capsys, "audit", str(tmp_path))

    def test_unreachable_endpoint(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "grpc://127.0.0.1:1 does not answer" in refused(capsys, "backlog", "grpc://127.0.0.1:1")

    def test_no_java(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert "install Java 17 or newer" in refused(capsys, "backlog", str(tmp_path))

    def test_a_page_that_can_not_be_written(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert "can't write" in refused(capsys, "backlog", str(tmp_path), "--html", str(tmp_path / "none" / "a.html"))

    @pytest.mark.parametrize(
        ("option", "value"), [("--now", "soon"), ("--levels", "3x"), ("--conf", "memory=3g"), ("--listed", "0")]
    )
    def test_wrong_usage(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, value: str) -> None:
        job = "audit" if option == "--listed" else "backlog"
        assert option in refused(capsys, job, str(tmp_path), option, value, code=2)


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.proof
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", golden.NAMES)
def test_backlog_of_a_broker_is_its_manifest(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = golden.summary(name)
    found = told(capsys, "backlog", str(golden.unpack(name, tmp_path)))
    timers = {"1000": len(golden.pending_timers(name))} if "timer" in expected else {}
    wanted = expected["pendingPerDelayLevel"] | timers
    levels = dict.fromkeys(wanted, 0)
    for row in found["pending"]:
        levels[str(row["level"])] += row["count"]
    assert levels == wanted
    assert {str(lane["level"]): lane["pending_count"] for lane in found["lanes"]} == wanted


@pytest.mark.proof
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", golden.NAMES)
def test_records_restored_by_a_broker_are_proven(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By message ids: a broker marks no copy with its lane entry."""
    expected = golden.summary(name)
    found = told(capsys, "audit", str(golden.unpack(name, tmp_path)))
    # A half message with a delay: 5.3.3 took it from its lane and put it nowhere.
    lost = ["rawhalfdelay"] if name == "rmq-5.3.3-clean" else []
    assert [one["id"] for one in found["violations"]] == lost
    assert found["is_proven"] == (not lost)
    levels = [row for row in found["lanes"] if row["level"] < 1_000]
    ended = {str(row["level"]): row["restored"] + row["missing"] for row in levels}
    marks = expected["delayOffsetAfterLoad"]
    assert {level: count for level, count in ended.items() if count} == {
        level: offset for level, offset in marks.items() if offset
    }


def test_backlog_in_all_its_forms(
    spark: SparkSession,
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page, out = tmp_path / "backlog.html", tmp_path / "out"
    command = ("backlog", str(store), "--now", "2100-01-01", "--html", str(page), "--out", str(out))
    assert main(list(command)) == 0
    text = capsys.readouterr().out
    assert "345 pending" in text
    assert "345 overdue" in text
    html = page.read_text()
    assert "<h1>Backlog</h1>" in html
    assert not re.search("<(script|link|img|iframe)[^>]* (src|href)=", html)

    first = {path.relative_to(out).parent for path in out.rglob("*.parquet")}
    assert {str(path).split("/")[1] for path in first} == {"lanes", "pending"}
    assert all("/day=20" in str(path) and "/snapshot=" in str(path) for path in first)
    files = {path.name for path in out.rglob("*.parquet")}

    # Environment variables have the same effect as options. Files of the same snapshot are replaced.
    page.unlink()
    options = {"SOURCES": store, "OUT": out, "HTML": page, "NOW": "2100-01-01", "JSON": "true", "STRICT": "true"}
    for name, value in options.items():
        monkeypatch.setenv(f"DUETIME_SPARK_{name}", str(value))
    assert main(["backlog"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pending_count"], found["overdue_count"], found["findings"]) == (345, 345, [])
    assert page.read_text() == html
    assert {path.relative_to(out).parent for path in out.rglob("*.parquet")} == first
    assert not files & {path.name for path in out.rglob("*.parquet")}
    rows = spark.read.parquet(str(out / "backlog" / "pending")).agg({"count": "sum"}).first()
    assert rows is not None
    assert rows[0] == 345


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("options", "code"), [pytest.param((), 0, marks=pytest.mark.proof), (("--strict",), 3)])
def test_damage_is_reported_and_exits_with_3_under_strict(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], code: int
) -> None:
    broken = shutil.copytree(store, tmp_path / "broken")
    unit = next(golden.units(NAME))
    segment = sorted((broken / "commitlog").iterdir())[0]
    with segment.open("r+b") as file:
        file.seek(unit["physicalOffset"] + 90)
        file.write(b"\xff\xff\xff\xff")
    found = told(capsys, "backlog", str(broken), *options, code=code)
    assert [finding["path"] for finding in found["findings"]] == [f"commitlog/{segment.name}"]
    assert found["pending_count"] == 345
