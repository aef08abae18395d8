"""What must hold of every image, read from the Dockerfiles: the engine is asked by `make compose-test`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SERVERS = sorted(PROJECT.glob("services/*/Dockerfile"))
DOCKERFILES = [*SERVERS, PROJECT / "spark" / "Dockerfile"]
SHARED = ("requirements", "packages", "compiler", "wheel")


def stages(path: Path) -> dict[str, str]:
    """The text of each stage by its name; the last has none."""
    parts = re.split(r"^(?=FROM )", path.read_text(), flags=re.M)[1:]
    return {(named[1] if (named := re.match(r"FROM \S+ AS (\w+)", part)) else ""): part for part in parts}


def test_every_service_has_its_dockerfile() -> None:
    assert [path.parent for path in SERVERS] == sorted(path.parent for path in PROJECT.glob("services/*/README.md"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_shared_stages_are_the_same_text_so_that_they_are_built_once(path: Path) -> None:
    found, first = stages(path), stages(DOCKERFILES[0])
    assert {name: found[name] for name in SHARED} == {name: first[name] for name in SHARED}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_image_is_not_root_and_says_what_it_is(path: Path) -> None:
    last = stages(path)[""]
    assert "USER 10001:10001" in last
    assert "STOPSIGNAL SIGTERM" in last
    assert re.search(r'^ENTRYPOINT \["python", "-P", "-m", "duetime_\w+"\]$', last, re.M)
    for label in ("title", "description", "version", "licenses"):
        assert f"org.opencontainers.image.{label}=" in last
    version = re.search(r'^version = "(.+)"', (PROJECT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    assert f'image.version="{version[1]}"' in last


@pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.parent.name)
def test_server_asks_its_own_port_for_its_health(path: Path) -> None:
    last = stages(path)[""]
    port = re.search(r"DUETIME_[A-Z]+_PORT=(\d+)", last)
    asked = re.search(r'CMD \["python", "-P", "-m", "duetime_core.health", "127.0.0.1:(\d+)"\]', last)
    assert port is not None
    assert asked is not None
    assert port[1] == asked[1]
    assert f"EXPOSE {port[1]} " in last


def test_requirements_are_those_of_the_extras_and_their_extras() -> None:
    def of(*extras: str) -> set[str]:
        command = [sys.executable, "deploy/docker/requirements.py", *extras]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
        return {re.split(r"[>=<]", line)[0] for line in done.stdout.splitlines()}

    assert {"grpcio", "typer", "numpy"} <= of("server")
    assert not {"pyspark", "pytest"} & of("server")
    assert of("spark") == of("server") | {"fsspec", "plotly", "pyarrow", "pyspark"}
    assert of("build") == {"cython", "hatchling", "setuptools"}


def test_what_an_image_is_made_of_is_in_the_lock_file() -> None:
    """What these bring along is checked in the images themselves."""
    locked = {line.split("==")[0].lower() for line in (PROJECT / "constraints.txt").read_text().split()}
    command = [sys.executable, "deploy/docker/requirements.py", "spark", "build"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    direct = {re.split(r"[\[>=<]", line)[0] for line in done.stdout.splitlines()}
    assert direct - {name.replace("_", "-") for name in locked} == set()
