"""gRPC's former engine is used where gRPC has it, unless the user has chosen another."""

import os
import subprocess
import sys

import grpc
import pytest
from duetime.engine import FORMER_ENGINE, VARIABLE, choose_engine, has_switches

CONNECT = """
import os
from duetime import Producer

try:
    Producer("127.0.0.1:1", timeout="1ms").send("orders", b"1")
except Exception:
    pass
print(os.environ["GRPC_EXPERIMENTS"])
"""


def connect(**environment: str) -> "subprocess.CompletedProcess[str]":
    """A process that opens a channel, with the lines of gRPC's core on its standard error."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    return subprocess.run(
        [sys.executable, "-c", CONNECT],
        env=others | environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_installed_grpc_knows_the_switches() -> None:
    """It prints a line for each unknown one: once this fails, KNOWN_BEFORE is this release."""
    assert has_switches(grpc.__version__)
    process = connect()
    assert process.stdout.strip() == FORMER_ENGINE
    assert "experiment" not in process.stderr
    assert "Unknown experiment" in connect(GRPC_EXPERIMENTS="-never_existed").stderr


@pytest.mark.parametrize("chosen", ["", "event_engine_client"])
def test_the_user_s_own_choice_is_kept(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, chosen)
    choose_engine()
    assert os.environ[VARIABLE] == chosen


@pytest.mark.parametrize(
    ("version", "known"),
    [("1.79.3", False), ("1.80.0", True), ("1.85.1", True), ("1.86.0", False), ("2.0.0", False), ("unknown", False)],
)
def test_switches_are_used_with_the_releases_that_have_them(
    version: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(grpc, "__version__", version)
    choose_engine()
    assert os.environ.get(VARIABLE) == (FORMER_ENGINE if known else None)
