"""`duetime top`: one screen for scripts, a live one at a terminal."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest
from duetime.cli.app import run

from tests.cli.cluster import DEADLINE_S
from tests.cli.test_common import read_until


def test_once_prints_one_screen(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["send", "top", "x", "--delay", "30m"])
    run(["groups", "create", "of_top"])
    capsys.readouterr()
    assert run(["top", "--once", "--interval", "100ms"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"DueTime at {server}, ")
    assert "pending " in text
    assert re.search(r"scheduled \d+\.\d/s, delivered \d+\.\d/s", text)
    assert "30m" in text
    assert "of_top" in text


def test_once_as_json_has_the_rates(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["send", "top", "x", "--delay", "30m"])
    capsys.readouterr()
    assert run(["top", "--once", "--interval", "100ms", "--json"]) == 0
    (screen,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert screen["pending_count"] >= 1
    # Messages of other tests may fall due meanwhile.
    assert screen["accepted_per_s"] == 0
    assert {"restored_per_s", "overdue_count"} <= screen.keys()
    assert any(lane["delay_ms"] == 1_800_000 and lane["restored_per_s"] == 0 for lane in screen["lanes"])


def test_without_a_server_it_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once", "--server", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("duetime: cannot connect to 127.0.0.1:1")


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_live_screen_at_a_terminal_ends_with_a_key(server: str, key: bytes) -> None:
    run(["send", "top", "x", "--delay", "30m"])
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        process = subprocess.Popen(
            # The command gets a new session, so that Ctrl-C at its terminal reaches it.
            ["setsid", "--ctty", "--wait", sys.executable, "-m", "duetime", "top", "--interval", "100ms"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        shown = read_until(terminal, lambda text: text.count("scheduled") >= 2)
        assert "pending" in shown
        terminal.write(key)
        read_until(terminal, lambda text: False)
        assert process.wait(DEADLINE_S) == 0
