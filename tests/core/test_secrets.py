"""Passwords that people give processes, and all that processes print."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from duetime_core.node.settings import StoreClientSettings
from duetime_core.telemetry.logs import configure_logs
from duetime_core.telemetry.secrets import masked
from duetime_format.hosts import is_loopback
from hypothesis import given
from hypothesis import strategies as st

PROJECT = Path(__file__).resolve().parents[2]
PASSWORD = "Tr0ub4dor:3/x"
SERVICES = ["gateway", *(pytest.param(name, marks=pytest.mark.proof) for name in ("scheduler", "retry"))]
URL = f"postgresql+psycopg://duetime:{PASSWORD}@127.0.0.1:1/duetime"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (URL, "postgresql+psycopg://duetime:***@127.0.0.1:1/duetime"),
        (f"can't reach {URL}: refused", "can't reach postgresql+psycopg://duetime:***@127.0.0.1:1/duetime: refused"),
        ("host=db user=u password=geheim dbname=d", "host=db user=u password=*** dbname=d"),
        ("http://otlp:4318?token=abc&x=1", "http://otlp:4318?token=***&x=1"),
        ("Authorization: Bearer abcdefgh.ijkl", "Authorization: Bearer ***"),
        (f"user dt_{'a' * 12}_{'b2' * 26}, and more", f"user dt_{'a' * 12}_***, and more"),
        ("sqlite:////var/lib/duetime/meta.db", "sqlite:////var/lib/duetime/meta.db"),
        ("http://127.0.0.1:9800", "http://127.0.0.1:9800"),
        ("basic information about a token", "basic information about a token"),
    ],
)
def test_passwords_are_masked_and_the_rest_is_shown(text: str, told: str) -> None:
    assert masked(text) == told


@given(st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="'\""), min_size=9))
def test_no_password_of_a_url_is_shown(password: str) -> None:
    assert password not in masked(f"postgresql://user:{password}@host/db failed").removeprefix("postgresql://user:***")


def test_settings_do_not_show_the_database_url() -> None:
    settings = StoreClientSettings(database_url=URL, stores="0=127.0.0.1:9801")
    assert PASSWORD not in repr(settings) + str(settings)


def test_no_log_line_has_a_password(capfd: pytest.CaptureFixture[str]) -> None:
    configured = structlog.get_config()
    handlers = logging.root.handlers[:]
    try:
        configure_logs("store", "INFO", "json")
        log = structlog.get_logger()
        log.info(f"reached {URL}", database=URL, error=str(ValueError(URL)))
        try:
            raise ValueError(URL)
        except ValueError:
            log.exception("failed")
        logging.getLogger("driver").warning("can't reach %s", URL)
    finally:
        structlog.configure(**configured)
        structlog.contextvars.clear_contextvars()
        logging.root.handlers[:] = handlers
    _, told = capfd.readouterr()
    assert told.count("***") >= 4
    assert PASSWORD not in told


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("fault", [["--port", "70000"], ["--stores", "nonsense"]], ids=["port", "stores"])
def test_process_that_cannot_start_logs_no_password(service: str, fault: list[str]) -> None:
    arguments = ["--database-url", URL, "--stores", "0=127.0.0.1:1", *fault]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    done = subprocess.run(
        [sys.executable, "-m", f"duetime_{service}", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert PASSWORD not in done.stdout + done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_process_without_its_database_logs_no_password(service: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    with subprocess.Popen(
        [sys.executable, "-m", f"duetime_{service}", "--database-url", URL, "--stores", "0=127.0.0.1:1"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        told = []
        try:
            for line in process.stdout:
                told.append(line)
                if "metadata database does not answer" in line:
                    break
        finally:
            process.terminate()
            told += process.stdout
    assert any("metadata database does not answer" in line for line in told)
    assert PASSWORD not in "".join(told)


def test_fault_of_several_settings_hides_the_password() -> None:
    """Its input is all settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    done = subprocess.run(
        [sys.executable, "-m", "duetime_scheduler", "--database-url", URL, "--stores", "0=h:1", "--lease-ms", "300"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "lease_ms 300 is below three ticks" in done.stderr
    assert PASSWORD not in done.stderr


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("store-0", False),
    ],
)
def test_loopback_is_known(host: str, only_here: bool) -> None:
    assert is_loopback(host) is only_here


def test_servers_and_channels_are_made_in_one_place_each() -> None:
    made: dict[str, list[str]] = {}
    for folder in ("format", "core", "shard", "sdk", "services", "spark"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            if "v1" not in path.parts:
                for call in ("insecure_channel(", "secure_channel(", "aio.server(", "grpc.server(", "_port(address"):
                    if call in path.read_text():
                        made.setdefault(call, []).append(path.name)
    assert made["aio.server("] == ["fronts.py"]
    assert made["_port(address"] == ["fronts.py"]
    assert "grpc.server(" not in made
    # One of the cluster's processes, one that connects to nothing, one of the SDK; those that follow certificates are
    # the same for all.
    assert made["insecure_channel("] == ["channels.py", "failover.py", "connection.py"]
