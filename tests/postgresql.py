"""A PostgreSQL server for the tests: in a container, or by the machine's own programs; always on 127.0.0.1 only.

DUETIME_TEST_POSTGRES=container | local   takes that way and no other
DUETIME_TEST_REQUIRE_POSTGRES=1           a server that can't be had fails the tests instead of skipping them
"""

import contextlib
import gc
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IMAGE = "postgres:16"
PORT = 5432
ENGINE_TIMEOUT_S = 5
START_TIMEOUT_S = 60


class NoPostgres(Exception):
    """There is no way to run a server here; the text says why."""


@contextmanager
def postgres_server() -> Iterator[str]:
    """A running server: the URL of its database `postgres`, as its superuser."""
    way = os.environ.get("DUETIME_TEST_POSTGRES", "")
    if way == "container" or (not way and _engine_answers()):
        with _container() as url:
            yield url
    else:
        with _local() as url:
            yield url


def _engine_answers() -> bool:
    import docker

    client = None
    with contextlib.suppress(docker.errors.DockerException):
        client = docker.from_env(timeout=ENGINE_TIMEOUT_S)
    if client is None:
        # It forgets to close the socket to an engine that does not answer.
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()
        return False
    try:
        client.images.get(IMAGE)
    except (docker.errors.DockerException, OSError):
        # An engine without the image would have to fetch it: the machine's own server is quicker and needs no network.
        return find_programs() is None and _pings(client)
    finally:
        client.close()
    return True


def _pings(client: object) -> bool:
    try:
        return bool(client.ping())  # type: ignore[attr-defined]
    except Exception:
        return False


@contextmanager
def _container() -> Iterator[str]:
    # Read by testcontainers when it is imported. Without the mode it would not use the published port where the tests
    # themselves run in a container.
    os.environ.setdefault("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
    os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")
    # Its reaper is one more image to fetch; this fixture ends its container itself.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    from testcontainers.community.postgres import PostgresContainer

    container = PostgresContainer(IMAGE, username="postgres", password="postgres", dbname="postgres")
    # A free port, on this address only.
    container.ports = {f"{PORT}/tcp": ("127.0.0.1", 0)}
    # As the local server has it: it keeps nothing that a crash may take.
    container.with_command("-c fsync=off -c synchronous_commit=off -c full_page_writes=off")
    with container:
        yield container.get_connection_url(driver="psycopg")


def find_programs() -> Path | None:
    """The directory of the newest initdb and pg_ctl."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("pg_ctl")
    return Path(on_path).resolve().parent if on_path else None


def _programs() -> Path:
    programs = find_programs()
    if programs is None:
        raise NoPostgres("no Docker engine answers, and initdb and pg_ctl are not on this machine")
    return programs


class LocalServer:
    """A server of this machine's programs, which a test may stop, freeze and start again. It keeps its port."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self._directory = directory
        # The server refuses to run as root.
        as_user = []
        if os.geteuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
            as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        data = str(directory / "data")
        self._control = [*as_user, str(programs / "pg_ctl"), "-D", data, "-w", "-t", str(START_TIMEOUT_S)]
        initdb = [*as_user, str(programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        port = _free_port()
        self._options = f"-c listen_addresses=127.0.0.1 -p {port} -k {directory} -c fsync=off"
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        _run(initdb, directory)

    def start(self) -> None:
        log = str(self._directory / "log")
        _run([*self._control, "-l", log, "-o", self._options, "start"], self._directory)

    def stop(self) -> None:
        """At once, as when the machine dies."""
        _run([*self._control, "-m", "immediate", "stop"], self._directory)

    def freeze(self) -> None:
        """All its processes stand still; connections stay, and the kernel takes new ones for it."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        """The server's, the first of them its parent: nobody is born while it stands still."""
        first = int((self._directory / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]


@contextmanager
def own_server() -> Iterator[LocalServer]:
    """A running server of the test's own. Raises: NoPostgres."""
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="duetime-postgres-") as made:
        server = LocalServer(programs, Path(made))
        server.start()
        try:
            yield server
        finally:
            server.thaw()
            server.stop()


@contextmanager
def _local() -> Iterator[str]:
    with own_server() as server:
        yield server.url


def _run(command: list[str], directory: Path) -> None:
    # The server inherits its output: it would keep a pipe open, but not a file.
    with (directory.parent / f"{directory.name}.out").open("w+") as output:
        try:
            ended = subprocess.run(
                command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=START_TIMEOUT_S
            )
            if ended.returncode:
                output.seek(0)
                raise NoPostgres(f"{' '.join(command)}: {output.read().strip()}")
        finally:
            Path(output.name).unlink()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
