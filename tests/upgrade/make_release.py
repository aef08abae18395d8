"""Writes a release's data for later versions: tests/upgrade/fixtures/VERSION.

    make release-fixtures
    python -m tests.upgrade.make_release [--work DIR]      DIR keeps the installed release; default: a temporary one

To be run once for each release, from a clone that has its commit (release.py). It installs the release into an
environment of its own and lets its processes and its SDK write everything:

    clean.tar.xz       store-0/ and metadata.db of a cluster that was stopped (scene.py)
    clean.json         its manifest, with the output of the release's `duetime store inspect` (`inspect`)
    killed.tar.xz      the same of a `duetime up` whose processes were killed with -9 at one moment under load, with
                       `inspect.json` and `events`: the output of client.py by then, and ["killed", at_ms]
    postgresql.sql     the metadata database of a scene played on PostgreSQL, as pg_dump writes it
    postgresql.json    the gateway's answers for it
    contract.binpb     a FileDescriptorSet of proto/

Needs network for the packages, and PostgreSQL's programs on this machine. Fixtures of former releases stay as they are.
"""

import argparse
import json
import os
import signal
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from bench.processes import Processes
from tests.postgresql import find_programs, own_server
from tests.upgrade.release import FIXTURES, install

HERE = Path(__file__).parent
# Small files, and nothing that depends on how full this machine's disk is.
KILLED_SETTINGS = {
    "DUETIME_STORE_SEGMENT_BYTES": str(1 << 20),
    "DUETIME_STORE_QUEUE_FILE_UNITS": "1000",
    "DUETIME_STORE_INDEX_SLOTS": "5000",
    "DUETIME_STORE_INDEX_ENTRIES": "20000",
    "DUETIME_STORE_RESERVE_BYTES": "0",
    "DUETIME_STORE_CHECKPOINT_MS": "3000",
    "DUETIME_STORE_DISK_USED_MAX": "1",
}
LOAD_S = 15.0


def pack(archive: Path, directory: Path, *names: str) -> None:
    """Some entries of a directory as .tar.xz, without whose they were."""

    def nobody(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for name in names:
            packed.add(directory / name, name, filter=nobody)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def run(python: Path, *arguments: str | Path) -> str:
    """Output of a program of the release."""
    command = [str(python), "-P", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def play(python: Path, work: Path, *database_url: str) -> Any:
    """The manifest of a scene."""
    path = work / "manifest.json"
    run(python, HERE / "scene.py", work, path, *database_url)
    return json.loads(path.read_text())


def make_clean(python: Path, work: Path) -> None:
    """A cluster that was stopped."""
    manifest = play(python, work)
    manifest["inspect"] = json.loads(run(python, "-m", "duetime", "store", "inspect", work / "store-0", "--json"))
    pack(FIXTURES / "clean.tar.xz", work, "store-0", "metadata.db")
    write_json(FIXTURES / "clean.json", manifest)


def make_killed(python: Path, work: Path) -> None:
    """A cluster whose processes all ended at one moment, while a client sent and consumed."""
    events = work / "events"
    cluster = Processes(work, KILLED_SETTINGS, python=str(python))
    cluster.start()
    with events.open("w") as output:
        command = [str(python), "-P", str(HERE / "client.py"), cluster.address, "load"]
        client = subprocess.Popen(command, stdout=output)
    time.sleep(LOAD_S)
    # The supervisor first, which would start the others again.
    pids = [cluster.pid, client.pid, *cluster.pids().values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    killed_at_ms = time.time_ns() // 1_000_000
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    client.wait()
    cluster.stop()
    data = work / "data"
    # The client's last line may be cut off.
    lines = [line for line in events.read_text().split("\n") if line.endswith("]")]
    (data / "events").write_text("\n".join([*lines, json.dumps(["killed", killed_at_ms])]) + "\n")
    (data / "inspect.json").write_text(run(python, "-m", "duetime", "store", "inspect", data / "store-0", "--json"))
    databases = sorted(path.name for path in data.glob("metadata.db*"))
    pack(FIXTURES / "killed.tar.xz", data, "store-0", *databases, "inspect.json", "events")


def make_postgresql(python: Path, work: Path) -> None:
    """The metadata database on PostgreSQL."""
    programs = find_programs()
    assert programs is not None, "no PostgreSQL on this machine"
    with own_server() as server:
        manifest = play(python, work, server.url)
        plain = make_url(server.url).set(drivername="postgresql").render_as_string()
        command = [str(programs / "pg_dump"), "--inserts", "--no-owner", "--no-privileges", plain]
        dump = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    # Leave out lines for psql alone, and settings unknown to servers of other versions.
    lines = [line for line in dump.splitlines() if line and not line.startswith(("\\", "--", "SET "))]
    (FIXTURES / "postgresql.sql").write_text("\n".join(lines) + "\n")
    write_json(FIXTURES / "postgresql.json", manifest["answers"])


def make_contract(tree: Path) -> None:
    """The descriptors of the release's .proto files."""
    from grpc_tools import protoc

    protos = sorted(str(path) for path in (tree / "proto").rglob("*.proto"))
    arguments = [f"-I{tree / 'proto'}", f"--descriptor_set_out={FIXTURES / 'contract.binpb'}"]
    assert protoc.main(["protoc", *arguments, *protos]) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="writes the fixtures of a release")
    parser.add_argument("--work", type=Path, help="where the release is installed, and stays")
    options = parser.parse_args()
    FIXTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="duetime-release-") as scratch:
        installed = (options.work or Path(scratch) / "release").absolute()
        python = install(installed)
        for make in (make_clean, make_killed, make_postgresql):
            work = Path(scratch) / make.__name__
            work.mkdir()
            make(python, work)
        make_contract(installed / "tree")
    for path in sorted(FIXTURES.iterdir()):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
