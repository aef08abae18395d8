"""Features of all commands: forms of output, --watch, --wide, exit codes."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import structlog
import yaml as reader
from duetime.cli import output, yaml
from duetime.cli.app import run
from duetime.cli.common import completed
from hypothesis import given
from rich.console import Console

from tests.cli.cluster import DEADLINE_S
from tests.ending import ended

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
    max_leaves=20,
)


@given(st.dictionaries(_TEXTS, _VALUES, min_size=1))
def test_yaml_document_reads_back(value: dict[str, Any]) -> None:
    assert reader.safe_load(yaml.document(value)) == value


def test_documents_follow_each_other() -> None:
    text = yaml.document({"id": "a", "at": "2026-01-01T00:00:00.000Z", "no": "no", "n": [1, {"b": []}]})
    assert text == '---\nid: a\nat: "2026-01-01T00:00:00.000Z"\n"no": "no"\n"n":\n  - 1\n  - b: []\n'
    assert len(list(reader.safe_load_all(text + text))) == 2


def test_narrow_terminals_lose_columns_by_rank() -> None:
    columns = ["#shard", "name?2", "#count", "owner?1"]
    rows = [("0", "orders", "12", "vm-30833-5000"), ("1", "carts", "7", "vm-30833-5000")]

    def heads(width: int) -> tuple[list[str], list[str]]:
        console = Console(width=width, file=io.StringIO())
        table, left_out = output.fitting(columns, rows, console)
        console.print(table)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert max(map(len, lines)) <= width
        assert "…" not in "".join(lines)
        return [str(column.header) for column in table.columns], left_out

    assert heads(80) == (["shard", "name", "count", "owner"], [])
    assert heads(30) == (["shard", "name", "count"], ["owner"])
    assert heads(18) == (["shard", "count"], ["name", "owner"])


@pytest.mark.parametrize("width", [80, *(pytest.param(width, marks=pytest.mark.proof) for width in (110, 137))])
@pytest.mark.parametrize("words", [["lanes", "--all"], ["topics"], ["groups"], ["quotas", "list"], ["audit"]])
def test_tables_fit_the_terminal(server: str, width: int, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run(["send", "fitting", "x", "--delay", "30m"])
    run(["groups", "create", "fitting", "--backoff", "exponential:1s..10m,factor=3"])
    run(["quotas", "set", "topic", "fitting", "--messages-per-s", "100000"])
    text = on_terminal(words, width)
    table = [line for line in text.splitlines() if not line.startswith("(too narrow")]
    assert len(table) > 2
    assert max(map(len, table)) <= width
    assert "…" not in text
    if words[0] == "lanes":
        assert re.search(r"^ *0 +16 +30m +[1-9]", text, re.M)
    wide = on_terminal([*words, "--wide"], width)
    assert "too narrow" not in wide


def on_terminal(words: list[str], width: int) -> str:
    """Output of a command at a terminal of this width."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        environment = os.environ | {"COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "duetime", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        shown = read_until(terminal, lambda text: False)
        assert process.wait(DEADLINE_S) == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r", "")


def read_until(terminal: Any, enough: Callable[[str], bool]) -> str:
    """Reads until it is enough, or the other end is closed."""
    shown, end = "", time.monotonic() + DEADLINE_S
    while not enough(shown):
        readable, _, _ = select.select([terminal], [], [], max(end - time.monotonic(), 0))
        assert readable, f"it stops after {shown!r}"
        try:
            data = terminal.read(65_536)
        except OSError:  # all other ends are closed
            return shown
        if not data:
            return shown
        shown += data.decode()
    return shown


def test_a_form_is_chosen_before_or_after_the_command(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["topics", "create", "forms"])
    capsys.readouterr()
    for words in (["topics", "-o", "yaml"], ["topics", "list", "-o", "yaml"], ["topics", "-o", "yaml", "list"]):
        assert run(words) == 0
        names = [one["topic"] for one in reader.safe_load_all(capsys.readouterr().out)]
        assert "forms" in names
    assert run(["topics", "list", "-o", "json"]) == 0
    as_output = capsys.readouterr().out
    assert run(["topics", "list", "--json"]) == 0
    assert capsys.readouterr().out == as_output
    assert run(["topics", "list", "-o", "table"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["topic", "queues"]


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "-o", "xml"],
        ["topics", "--json", "-o", "yaml"],
        ["topics", "--watch", "0"],
        ["topics", "--watch", "5"],
        ["send", "a b", "x"],
        ["send", "orders", "x", "--level", "-1"],
        ["send", "orders", "x", "--key", "a b"],
        ["send", "orders", "x", "--tags", "a|b"],
        ["send", "orders", "x", "--property", "DELAY=1"],
        ["send", "orders", "x", "--delay", "30"],
        ["topics", "--watch", "50ms"],
        ["top", "--once", "--interval", "2"],
        ["topics", "--watch", "list"],
        ["send", "topic", "x", "--watch"],
        ["send", "topic", "x", "--delay", "abc"],
        ["send", "topic", "x", "--level", "abc"],
        ["reschedule", "id", "--delay", "5"],
        ["consume", "topic", "--group", "g", "--backoff", "7"],
        ["consume", "topic", "--group", "g", "--lease", "x"],
        ["groups", "create", "g", "--backoff", "7"],
        ["audit", "--since", "x"],
        ["transactions", "list", "--older-than", "30 m"],
        ["lanes", "pause", "30x"],
        ["outbox", "relay", "--database", "sqlite://", "--poll", "5"],
        ["outbox", "relay", "--database", "sqlite://", "--lease", "1s"],
        ["consume", "topic", "--group", "g", "--concurrency", "0"],
        ["topics", "--server", "non:sense"],
    ],
)
def test_wrong_usage_exits_with_2(server: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("duetime: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["up", "--port", "70000"], "Invalid value for '--port': '70000' is above 65535"),
        (["send"], "Missing argument 'TOPIC'; see `duetime send --help`"),
        (["lanes", "--quickly"], "No such option: --quickly; see `duetime lanes --help`"),
        (["audit", "--limit", "0"], "Invalid value for '--limit': '0' is below 1"),
        (["audit", "--limit", "x"], "Invalid value for '--limit': 'x' is not a whole number"),
        (["dlq", "redrive", "g", "--rate", "x"], "Invalid value for '--rate': 'x' is not a number"),
        (["backlog", "--by", "year"], "Invalid value for '--by': 'year' is not one of 'minute', 'hour', 'day'."),
    ],
)
def test_wrong_value_is_named_with_its_limit(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert capsys.readouterr().err == f"duetime: {text}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "describe", "nosuch"],
        ["topics", "create", "a b"],
        ["groups", "describe", "nosuch"],
        ["lanes", "pause", "999"],
        ["lanes", "pause", "45s"],
        ["pull", "fitting", "--sql", "size >"],
        ["send", "orders", "@/nosuch"],
        ["topics", "--server", "127.0.0.1:1"],
        ["topics", "--server", "nohost.invalid:9800"],
    ],
)
def test_rejected_command_prints_one_line_and_exits_with_1(
    server: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(["topics", "create", "fitting"])
    run(["send", "fitting", "x"])
    capsys.readouterr()
    assert run(words) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["lanes", "--watch"], ["lanes", "--watch=2s"]),
        (["lanes", "--watch", "--wide"], ["lanes", "--watch=2s", "--wide"]),
        (["lanes", "--watch", "500ms", "--wide"], ["lanes", "--watch", "500ms", "--wide"]),
        (["lanes", "--watch", "5"], ["lanes", "--watch", "5"]),
        (["send", "t", "--", "--watch"], ["send", "t", "--", "--watch"]),
    ],
)
def test_watch_has_a_default_length(given: list[str], made: list[str]) -> None:
    assert completed(given) == made


def test_a_watched_list_is_printed_again_until_it_is_interrupted(server: str) -> None:
    run(["topics", "create", "watched"])
    process = subprocess.Popen(
        [sys.executable, "-m", "duetime", "topics", "--watch", "100ms", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += b'"watched"' in line
        if seen == 3:
            break
    process.send_signal(signal.SIGINT)
    _, errors = ended(process, DEADLINE_S)
    assert (process.returncode, errors) == (0, b"")


def test_log_lines_of_a_cluster_here_are_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.get_logger().warning("store call failed")
    assert tuple(capsys.readouterr()) == ("", "")


def test_a_watch_survives_a_server_outage() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "duetime", "topics", "--watch", "100ms", "--server", "127.0.0.1:1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(3)]
    assert all(line.startswith(b"duetime: cannot connect to") for line in lines)
    process.send_signal(signal.SIGINT)
    ended(process, DEADLINE_S)
    assert process.returncode == 0


def test_a_watch_ends_with_its_reader(server: str) -> None:
    run(["topics", "create", "watched"])
    process = subprocess.Popen(
        [sys.executable, "-m", "duetime", "topics", "--watch", "100ms", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 0
    assert process.stderr is not None
    process.stderr.close()
