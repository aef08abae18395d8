"""What must hold before the cluster starts: its software, its directory, its ports."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from duetime.client.errors import DueTimeError

HOST = "127.0.0.1"
LOCK_FILE = "lock"
_SERVER_PACKAGES = ("alembic", "numpy", "prometheus_client", "pydantic_settings", "sqlalchemy", "structlog")


class CannotStart(DueTimeError):
    """The cluster can't start; the text is the one line that the user sees."""


def check_software() -> None:
    """Raises CannotStart when only the client is installed."""
    if missing := [name for name in _SERVER_PACKAGES if find_spec(name) is None]:
        raise CannotStart(
            f"the cluster needs the server extra ({missing[0]} is missing): pip install 'duetime[server]'"
        )


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Holds the data directory, made when missing, for this process alone.

    Raises:
        CannotStart: it can't be made or written to, or another process holds it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "logs").mkdir(exist_ok=True)
        lock = (directory / LOCK_FILE).open("a+")
    except OSError as error:
        reason = (
            "it is not a directory" if isinstance(error, FileExistsError) else (error.strerror or str(error)).lower()
        )
        raise CannotStart(f"can't use {directory} as data directory: {reason}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CannotStart(
                f"data directory {directory} is in use by another cluster (pid {lock.read().strip() or 'unknown'})"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def check_port(port: int) -> None:
    """Raises CannotStart when the port can't be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            raise CannotStart(f"can't listen on {HOST}:{port}: {(error.strerror or str(error)).lower()}") from error


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, chosen at once so that they differ."""
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            probe = held.enter_context(socket.socket())
            probe.bind((HOST, 0))
            ports.append(int(probe.getsockname()[1]))
        return ports
