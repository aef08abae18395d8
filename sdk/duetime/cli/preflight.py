"""Checks before the cluster starts: its software, its directory, its ports."""

import base64
import errno
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from duetime.cli.files import write_private
from duetime.client.errors import DueTimeError

HOST = "127.0.0.1"
# Wildcard addresses, and the loopback address of this machine for each.
_ALL = {"0.0.0.0": HOST, "::": "::1"}  # noqa: S104 (listened on only where the user says so)
LOCK_FILE = "lock"
SECRETS_KEY_FILE = "secrets.key"
_SECRETS_KEYS = ("DUETIME_SECRETS_KEY", "DUETIME_GATEWAY_SECRETS_KEY")
_KEY_BYTES = 32
_BACKLOG = 128
_SERVER_PACKAGES = ("alembic", "numpy", "prometheus_client", "pydantic_settings", "sqlalchemy", "structlog")


class CannotStart(DueTimeError):
    """The cluster can't start; the text is the line for the user."""


def check_software() -> None:
    """Raises CannotStart if only the client is installed, or servers do not run on the system."""
    if sys.platform != "linux":
        raise CannotStart("the cluster runs on Linux; on macOS use Docker, on Windows WSL or Docker")
    if missing := [name for name in _SERVER_PACKAGES if find_spec(name) is None]:
        raise CannotStart(
            f"the cluster needs the server extra ({missing[0]} is missing): pip install 'duetime[server]'"
        )


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Locks the data directory for this process; creates it if it is missing.

    Raises:
        CannotStart: it can't be created or written to, or another process holds it.
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
    # Windows has no fcntl; the other commands work there.
    import fcntl

    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CannotStart(
                f"data directory {directory} is in use by another cluster (pid {lock.read().strip() or 'unknown'}); "
                "stop that one, or give another directory: --data DIR"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def secrets_key(data: Path, *, may_make: bool) -> dict[str, str]:
    """The setting with the key that encrypts secrets of webhooks, from the data directory; empty: there is none, or the
    environment has one.

    Raises:
        CannotStart: it can't be read or written.
    """
    if any(os.environ.get(name) for name in _SECRETS_KEYS):
        return {}
    path = data / SECRETS_KEY_FILE
    try:
        if may_make and not path.exists():
            write_private(path, base64.b64encode(secrets.token_bytes(_KEY_BYTES)) + b"\n")
            # A webhook whose key is lost in a power cut needs a new secret.
            for each in (path, data):
                number = os.open(each, os.O_RDONLY)
                os.fsync(number)
                os.close(number)
        return {"secrets_key": path.read_text().strip()} if path.exists() else {}
    except OSError as error:
        raise CannotStart(f"can't use {path}: {(error.strerror or str(error)).lower()}") from error


def address_of(host: str, port: int) -> str:
    """The address of the listener, from this machine."""
    host = _ALL.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_port(port: int, host: str = HOST) -> None:
    """Raises CannotStart if the port is unavailable."""
    with _bound(host, port) as probe:
        try:
            probe.listen(1)
        except OSError as error:
            raise _not_listening(host, port, error) from error


def _bound(host: str, port: int) -> socket.socket:
    """Raises: CannotStart."""
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise _not_listening(host, port, error) from error
    return held


def _not_listening(host: str, port: int, error: OSError) -> CannotStart:
    hint = "; give another port, or 0 for any free one" if error.errno == errno.EADDRINUSE else ""
    return CannotStart(f"can't listen on {host}:{port}: {(error.strerror or str(error)).lower()}{hint}")


class Ports:
    """Ports reserved for our processes while this is open, including their starts and restarts.

    A bound socket that does not listen allows another one to listen on its port if both set SO_REUSEADDR, as servers
    do. The kernel assigns the port to no other process, neither for listening on any port nor for outgoing connections.
    A port that was only checked to be free may be in use by the time a process listens on it.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, port: int = 0, host: str = HOST) -> int:
        """Reserves a port; 0: any free one. Raises: CannotStart: it is in use."""
        held = _bound(host, port)
        self._held.append(held)
        return int(held.getsockname()[1])

    def listen(self, port: int = 0) -> socket.socket:
        """A listening socket for a process to inherit. Two of them never share a port; reserved ports of two `Ports`
        may. Raises: CannotStart.
        """
        held = _bound(HOST, port)
        self._held.append(held)
        try:
            held.listen(_BACKLOG)
        except OSError as error:
            raise _not_listening(HOST, port, error) from error
        return held

    def close(self) -> None:
        while self._held:
            self._held.pop().close()
