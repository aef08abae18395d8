"""A job as a scheduler starts it: configured by environment variables, safe to repeat, with a meaningful exit code."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from duetime_core.metadata import upgrade
from duetime_spark.cli import main
from sqlalchemy import create_engine, text

from tests.format import golden


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A one-shot of the whole environment: two sources, files, a database."""
    sources = [golden.unpack(name, tmp_path) for name in golden.NAMES[:2]]
    database_url = f"sqlite:///{tmp_path / 'metadata.db'}"
    upgrade(database_url)
    found = {
        "DUETIME_SPARK_SOURCES": " ".join(map(str, sources)),
        "DUETIME_SPARK_OUT": str(tmp_path / "out"),
        "DUETIME_SPARK_HTML": str(tmp_path / "page.html"),
        "DUETIME_DATABASE_URL": database_url,
        "DUETIME_SPARK_JSON": "true",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def digests(root: Path) -> dict[str, str]:
    """Contents of the files, by their folders: Spark gives them new names each time."""
    return {
        str(path.parent.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*.parquet")
    }


@pytest.mark.proof
@pytest.mark.usefixtures("spark")
def test_repeated_on_one_snapshot_it_leaves_the_same(
    variables: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, files = [], []
    for _ in range(2):
        assert main(["backlog"]) == 0
        told.append(json.loads(capsys.readouterr().out))
        files.append(digests(tmp_path / "out"))
    assert told[0] == told[1]
    assert files[0] == files[1]
    assert len(told[0]["shards"]) == 2
    expected = sum(golden.summary(name)["pendingTotal"] for name in golden.NAMES[:2])
    assert told[0]["pending_count"] == expected
    assert "<h1>Backlog</h1>" in (tmp_path / "page.html").read_text()
    with create_engine(variables["DUETIME_DATABASE_URL"]).connect() as connection:
        rows = connection.execute(text("SELECT job, snapshot_id FROM backlog_reports")).all()
    assert rows == [("backlog", told[0]["snapshot_id"])]


@pytest.mark.parametrize(
    ("name", "value", "code", "words"),
    [
        ("SPARK_SOURCES", "/nowhere", 1, "/nowhere is not a store directory"),
        ("SPARK_SOURCES", "grpc://127.0.0.1:1", 1, "grpc://127.0.0.1:1 does not answer"),
        ("DATABASE_URL", "sqlite:////nowhere/meta.db", 1, "metadata database /nowhere/meta.db does not exist"),
        ("SPARK_SOURSES", "/tmp", 1, "DUETIME_SPARK_SOURSES: not a setting of duetime spark; the settings are "),
        ("SPARK_STRICT", "perhaps", 2, "DUETIME_SPARK_STRICT"),
    ],
)
def test_error_is_one_line_and_an_exit_code(
    variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.setenv(f"DUETIME_{name}", value)
    assert main(["backlog"]) == code
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert words in told.err


def test_module_is_the_command(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_SPARK_SOURCES", "/nowhere")
    command = [sys.executable, "-m", "duetime_spark", "backlog"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "duetime: directory: /nowhere is not a store directory: it does not exist\n"
