"""gRPC's former engine is used where gRPC has it, unless the user has chosen another."""

import os
import subprocess
import sys

import pytest
from duetime import engine
from duetime.engine import FORMER_ENGINE, VARIABLE, choose_engine, has_switches

CONNECT = """
import os
import duetime.engine
duetime.engine.FORMER_ENGINE = os.environ.get("ENGINE", duetime.engine.FORMER_ENGINE)
{}
try:
    channel.unary_unary("/a/b")(b"", timeout=0.01)
except Exception:
    pass
print(os.environ.get("GRPC_EXPERIMENTS"))
"""
CLIENT = """
from duetime.client.connection import GatewayConnection
channel = GatewayConnection("127.0.0.1:1").make_blocking_channel(None)
"""
SERVER = """
import duetime_core
from duetime_core.rpc.channels import make_blocking_channel
channel = make_blocking_channel("127.0.0.1:1")
"""


def connect(how: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A process that opens a channel, with the lines of gRPC's core on its standard error."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    return subprocess.run(
        [sys.executable, "-c", CONNECT.format(how)],
        env=others | environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("how", [CLIENT, SERVER], ids=["client", "server"])
def test_the_installed_grpc_reads_and_knows_the_switches(how: str) -> None:
    """It prints a line for each unknown one: once this fails, KNOWN_BEFORE is this release."""
    process = connect(how)
    assert process.stdout.strip() == FORMER_ENGINE
    assert "experiment" not in process.stderr
    assert "Unknown experiment: never_existed" in connect(how, ENGINE="-never_existed").stderr


@pytest.mark.parametrize("chosen", ["", "event_engine_client"])
def test_the_user_s_own_choice_is_kept(chosen: str) -> None:
    assert connect(CLIENT, GRPC_EXPERIMENTS=chosen).stdout.strip() == chosen


def test_an_application_that_has_loaded_grpc_keeps_its_engine() -> None:
    assert connect("import grpc\n" + CLIENT).stdout.strip() == "None"


@pytest.mark.parametrize(
    ("version", "known"),
    [("1.79.3", False), ("1.80.0", True), ("1.85.1", True), ("1.86.0", False), ("2.0.0", False), ("", False)],
)
def test_switches_are_used_with_the_releases_that_have_them(
    version: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has_switches(f'__version__ = """{version}"""') == known
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delitem(sys.modules, "grpc", raising=False)
    monkeypatch.setattr(engine, "_installed", lambda: version)
    choose_engine()
    assert os.environ.get(VARIABLE) == (FORMER_ENGINE if known else None)
