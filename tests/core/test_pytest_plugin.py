"""The pytest plugin, by pytest runs of their own."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PLUGIN = "duetime_core.pytest_plugin"

TESTS = """
import os
from datetime import UTC, datetime, timedelta
import pytest
from duetime import Consumer, Producer, Receiver

addresses = set()

def test_what_is_due_is_there(duetime_cluster):
    assert os.environ["DUETIME_SERVER"] == duetime_cluster.address
    addresses.add(duetime_cluster.address)
    began = duetime_cluster.now
    with Producer() as producer, Receiver(topic="orders", group="billing") as receiver:
        for delay in ("2h", "3h", "4h"):
            producer.send("orders", delay, delay=delay)
        assert receiver.receive(wait="0s") == []
        duetime_cluster.advance("1h59m59s")
        assert receiver.receive(wait="0s") == []
        duetime_cluster.advance("1s")
        (message,) = receiver.receive(wait="30s")
        assert message.body == b"2h"
        assert duetime_cluster.now - began == timedelta(hours=2)
        assert message.due_at == duetime_cluster.now
        receiver.ack(message)
        duetime_cluster.advance(timedelta(hours=2))
        assert sorted(one.body for one in receiver.receive(wait="30s")) == [b"3h", b"4h"]
    assert repr(duetime_cluster).startswith(f"RunningCluster({duetime_cluster.address}, 20")

def test_due_time_of_the_real_clock_falls_due(duetime_cluster):
    with Producer() as producer, Receiver(topic="orders", group="billing") as receiver:
        producer.send("orders", b"x", deliver_at=datetime.now(UTC) + timedelta(hours=1))
        duetime_cluster.advance("59m")
        assert receiver.receive(wait="0s") == []
        duetime_cluster.advance("2m")
        (message,) = receiver.receive(wait="30s")
        receiver.ack(message)

def test_bare_number_moves_no_clock(duetime_cluster):
    with pytest.raises(ValueError, match="30 has no unit: 30 seconds are '30s'"):
        duetime_cluster.advance(30)

def test_second(duetime_cluster):
    addresses.add(duetime_cluster.address)
    with Producer() as producer:
        producer.send("parcels", b"x")

def test_count(request):
    expected = 1 if request.config.getini("duetime_cluster_scope") == "module" else 2
    assert len(addresses) == expected
"""


def run_pytest(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest in an environment with this plugin alone."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:duetime",
        "-p",
        PLUGIN,
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        "-p",
        "no:asyncio",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [*command, "-q", "-rA", "--rootdir", str(folder), *arguments],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("scope", ["function", pytest.param("module", marks=pytest.mark.proof)])
def test_tests_have_a_cluster_with_a_movable_clock(tmp_path: Path, scope: str) -> None:
    """The server's variable is as before when the cluster has ended."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_later.py").write_text(
        "import os\ndef test_variable(): assert os.environ['DUETIME_SERVER'] == 'before:1'\n"
    )
    done = run_pytest(tmp_path, "-o", f"duetime_cluster_scope={scope}", DUETIME_SERVER="before:1")
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def test_without_the_server_the_fixture_names_the_package(tmp_path: Path) -> None:
    """The plugin has loaded nothing heavy by then."""
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "assert not {'grpc', 'duetime.client', 'sqlalchemy', 'duetime_core.testing'} & set(sys.modules)\n"
        "sys.modules['structlog'] = None\n"
    )
    (tmp_path / "test_it.py").write_text("def test_a(duetime_cluster): pass\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "the fixture duetime_cluster needs the server: pip install 'duetime[server]'" in done.stdout


def test_package_has_the_entry_point() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"duetime": PLUGIN}
