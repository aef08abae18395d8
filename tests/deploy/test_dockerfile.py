"""Conditions of every image, read from the Dockerfile: `make compose-test` checks them on the engine."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
DOCKERFILE = (PROJECT / "Dockerfile").read_text()
NATIVE = (PROJECT / "deploy" / "docker" / "native.Dockerfile").read_text()
SERVERS = ("gateway", "store", "scheduler", "retry", "webhooks")
TARGETS = (*SERVERS, "console", "spark")


def stages() -> dict[str, tuple[str, str]]:
    """Base and text of each stage, by name."""
    parts = re.split(r"^(?=FROM )", DOCKERFILE, flags=re.M)[1:]
    heads = [re.match(r"FROM (\S+) AS (\w+)\n", part) for part in parts]
    assert None not in heads, "every stage has a name"
    return {head[2]: (head[1], part) for head, part in zip(heads, parts, strict=True) if head}


def lineage(target: str) -> str:
    """The text of a stage after those that it is made from, as the image has it."""
    found = stages()
    text = ""
    while target in found:
        target, part = found[target]
        text = part + text
    return text


def test_every_service_has_a_target_with_its_module() -> None:
    packages = {path.name for path in PROJECT.glob("services/*/duetime_*")} | {"duetime_console", "duetime_spark"}
    started = [re.findall(r'^ENTRYPOINT \["python", "-P", "-m", "(\w+)"\]$', lineage(name), re.M) for name in TARGETS]
    assert sorted(started) == sorted([package] for package in packages)


def test_compose_builds_every_target_from_the_root() -> None:
    services = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"].values()
    built = [(service["image"].partition(":")[0], service["build"]) for service in services if "build" in service]
    # Each by one service: two of them would build it twice.
    natives = {name: {} if name == "spark" else {"args": ["NATIVE_IMAGE"]} for name in TARGETS}
    expected = [(f"duetime/{name}", {"context": ".", "target": name} | natives[name]) for name in sorted(TARGETS)]
    assert sorted(built, key=lambda one: one[0]) == expected


def test_pipeline_stages_follow_the_servers() -> None:
    """A builder without BuildKit runs all stages above its target."""
    order = list(stages())
    servers_end = max(order.index(name) for name in (*SERVERS, "console"))
    assert min(order.index("pipeline"), order.index("spark")) > servers_end


@pytest.mark.parametrize("target", TARGETS)
def test_image_is_not_root_and_has_labels(target: str) -> None:
    text = lineage(target)
    assert re.findall(r"^USER (.+)$", text, re.M) == ["10001:10001"]
    assert "STOPSIGNAL SIGTERM" in text
    assert f'image.title="duetime/{target}"' in text
    for label in ("description", "licenses"):
        assert f"org.opencontainers.image.{label}=" in text
    for place in (PROJECT, PROJECT / "sdk"):
        version = tomllib.loads((place / "pyproject.toml").read_text())["project"]["version"]
        assert f'image.version="{version}"' in text


@pytest.mark.parametrize("target", SERVERS)
def test_server_asks_its_own_port_for_its_health(target: str) -> None:
    """This port takes no TLS, even if the others do."""
    _, text = stages()[target]
    port = re.search(rf"DUETIME_{target.upper()}_PROBE_PORT=(\d+)", text)
    asked = re.search(r'CMD \["python", "-P", "-m", "duetime_core.health", "127.0.0.1:(\d+)"\]', text)
    assert port is not None
    assert asked is not None
    assert port[1] == asked[1]
    told = re.findall(rf"DUETIME_{target.upper()}_\w*PORT=(\d+)", text)
    assert sorted(told) == sorted(re.findall(r"\d+", text.partition("EXPOSE ")[2].partition("\n")[0]))


def test_requirements_are_those_of_both_distributions_and_of_the_extras() -> None:
    def of(*extras: str) -> set[str]:
        command = [sys.executable, "deploy/docker/requirements.py", *extras]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
        return {re.split(r"[>=<]", line)[0] for line in done.stdout.splitlines()}

    assert {"grpcio", "typer", "numpy"} <= of()
    assert not {"duetime", "pyspark", "pytest"} & of()
    assert of("spark") == of() | {"fsspec", "plotly", "pyarrow", "pyspark"}
    assert of("build") == {"cython", "hatchling", "setuptools"}
    assert of("native") == {"grpcio-tools", "maturin"}


def test_images_use_the_lock_file() -> None:
    """Their dependencies are checked in the images themselves."""
    locked = {line.split("==")[0].lower() for line in (PROJECT / "constraints.txt").read_text().split()}
    direct: set[str] = set()
    for extra in ("spark", "build", "native"):
        command = [sys.executable, "deploy/docker/requirements.py", extra]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
        direct |= {re.split(r"[\[>=<]", line)[0] for line in done.stdout.splitlines()}
    assert direct - {name.replace("_", "-") for name in locked} == set()


LOCKS = {
    "servers": ("otel", "rocketmq"),
    "spark": ("spark", "otel", "rocketmq"),
    "build": ("build",),
    "native": ("native",),
}


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Version and hashes by package."""
    text = (PROJECT / "deploy" / "docker" / f"requirements-{name}.txt").read_text().replace("\\\n", "")
    # Some packages are for some versions of Python.
    without_markers = re.sub(r" ; .*?(?= --hash)", "", text)
    lines = [line.split() for line in without_markers.splitlines() if line and not line.startswith("#")]
    found = {}
    for requirement, *hashes in lines:
        package, _, version = requirement.partition("==")
        assert re.fullmatch(r"[\w.-]+", package), f"{requirement} is more than a package"
        found[plain(package)] = version, hashes
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_images_packages_are_pinned_with_hashes_in_the_versions_of_the_constraints(name: str) -> None:
    constraints = dict(line.split("==") for line in (PROJECT / "constraints.txt").read_text().split())
    versions = {plain(package): version for package, version in constraints.items()}
    for package, (version, hashes) in locked(name).items():
        assert versions[package] == version, package
        assert hashes, package
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), package


@pytest.mark.parametrize("name", LOCKS)
def test_images_packages_are_all_that_the_extras_ask_for(name: str) -> None:
    command = [sys.executable, "deploy/docker/requirements.py", *LOCKS[name]]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    asked = {plain(re.split(r"[\[>=<]", line)[0]) for line in done.stdout.splitlines()}
    assert asked <= locked(name).keys()


def test_images_install_nothing_without_its_hash() -> None:
    lines = (DOCKERFILE + NATIVE).replace("\\\n", " ").splitlines()
    installs = [part for line in lines for part in line.split("&&") if re.search(r"\bpip\b.* install ", part)]
    assert len(installs) == 6
    for one in installs:
        assert "--require-hashes" in one or "--no-deps" in one, one
    assert {f"requirements-{name}.txt" for name in LOCKS} == set(
        re.findall(r"--requirement (\S+)", DOCKERFILE + NATIVE)
    )


def test_documents_that_the_wheel_has_are_copied_into_the_build() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    documents = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"])
    (line,) = re.findall(r"^COPY (docs/.+) docs/$", DOCKERFILE, re.M)
    assert set(line.split()) == documents
    ignored = (PROJECT / ".dockerignore").read_text().split()
    assert {f"!{document}" for document in documents} <= set(ignored)
