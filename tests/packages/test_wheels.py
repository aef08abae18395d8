"""Both distributions as people install them: built, in environments of their own, without the tree."""

import subprocess
import zipfile
from pathlib import Path

import pytest
from duetime_core.testing import LocalCluster

from tests.cli.cluster import Up
from tests.packages.building import PROJECT, environment_with

# Building compiles; installing asks the package index.
pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

SEND = """
import sys
from duetime import Message, Producer
with Producer(sys.argv[1]) as producer:
    print(producer.send("orders", b"cancel 42", delay="1h", keys=["42"]).lane)
    print(producer.send_many("orders", bodies=[b"a", b"b"], delay="1h").errors)
"""
READ = """
import sys
from duetime import Puller
with Puller(sys.argv[1], "orders", start="earliest") as puller:
    print(sorted(next(puller).body.decode() for _ in range(3)))
"""
# Oldest and newest requirements of the client; an empty text: the newest available.
RUNTIMES = {"oldest": ("==1.70.0", "==5.26.1"), "newest": ("", "")}


def run(python: Path, program: str, *arguments: str) -> list[str]:
    """The lines that it prints."""
    command = [python, "-P", "-W", "error", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as opened:
        return opened.namelist()


def test_client_for_any_platform_has_the_sdk_and_the_book_of_bytes_alone(client: Path) -> None:
    assert client.name.endswith("-py3-none-any.whl")
    tops = {name.split("/")[0] for name in names(client)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"duetime", "duetime_format"}
    assert [name for name in names(client) if name.endswith(".so")] == []


def test_compiled_client_has_the_reader(compiled_client: Path) -> None:
    assert not compiled_client.name.endswith("-none-any.whl")
    assert [name for name in names(compiled_client) if name.startswith("duetime_format/_view.") and name.endswith("so")]


def test_server_has_nothing_of_the_client(server: Path) -> None:
    tops = {name.split("/")[0] for name in names(server)}
    assert "duetime_store" in tops
    assert not tops & {"duetime", "duetime_format"}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_client_works_beside_old_and_new_runtimes(client: Path, tmp_path: Path, runtime: str) -> None:
    grpcio, protobuf = RUNTIMES[runtime]
    python = environment_with(tmp_path / "venv", f"grpcio{grpcio}", f"protobuf{protobuf}", client)
    with LocalCluster() as cluster:
        assert run(python, SEND, cluster.address) == ["17", "{}"]
        cluster.advance("1h")
        assert run(python, READ, cluster.address) == ["['a', 'b', 'cancel 42']"]


@pytest.mark.parametrize("kind", ["compiled_client", "client"])
def test_cluster_runs_from_its_wheel(server: Path, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A platform without the client's compiled wheel may compile the server: pip prefers a wheel for any platform."""
    client = request.getfixturevalue(kind)
    python = environment_with(
        tmp_path / "venv", "-c", PROJECT / "constraints.txt", server, f"duetime[cli,unpack] @ file://{client}"
    )
    places = "import duetime, duetime_core, duetime_format, duetime_store as s; print(duetime.__file__, s.__file__)"
    (told,) = run(python, places)
    assert told.count(str(tmp_path)) == 2
    with Up(tmp_path / "data", python=python) as up:
        program = SEND.replace("1h", "1s") + READ
        assert run(python, program, up.server)[2:] == ["['a', 'b', 'cancel 42']"]
        assert up.end()[0] == 0
