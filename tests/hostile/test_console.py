"""Strangers at the console's port, in a process with 1,024 descriptors: it has to serve everybody else meanwhile."""

import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from duetime.cli.certs import certs
from duetime_console.connections import HEAD_MS
from typer.testing import CliRunner

from tests.hostile.rig import CONSOLE_MB_MAX, DESCRIPTORS, START_DEADLINE_S, STOP_DEADLINE_S, Peaks, Rig, told

ANSWER_S_MAX = 5.0
# Time for the sweep, and for a busy machine.
SLACK_S = 20.0


@contextmanager
def console(server: str, **settings: object) -> Iterator[int]:
    """The port of a console in a process of its own, whose memory has to stay within its container's limit."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DUETIME_")}
    environment |= {"DUETIME_SUPERVISED": "1", "DUETIME_CONSOLE_SERVER": server, "DUETIME_CONSOLE_PORT": "0"}
    environment |= {"DUETIME_CONSOLE_SECRET": "a secret of the tests that is long enough"}
    environment |= {f"DUETIME_CONSOLE_{key.upper()}": str(value) for key, value in settings.items()}
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$0" "$@"']
    process = subprocess.Popen(
        [*limited, sys.executable, "-P", "-m", "duetime_console"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], START_DEADLINE_S)
        assert readable
        port = json.loads(process.stdout.readline())["port"]
        with Peaks(process.pid) as peaks:
            yield port
        assert process.poll() is None, "a stranger ended it"
        told(console_mb=peaks.mb[process.pid])
        assert peaks.mb[process.pid] < CONSOLE_MB_MAX
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def answer_s(port: int, host: str = "127.0.0.1") -> float:
    """The time of a new caller's request."""
    began = time.monotonic()
    connection = HTTPConnection("127.0.0.1", port, timeout=60, source_address=(host, 0))
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    return time.monotonic() - began


def silent(port: int, count: int, ends: ExitStack, said: bytes = b"") -> list[socket.socket]:
    found = []
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=("127.0.0.2", 0))
        ends.callback(one.close)
        one.sendall(said)
        found.append(one)
    return found


def until_ended(one: socket.socket) -> None:
    one.settimeout(HEAD_MS / 1_000 + SLACK_S)
    try:
        while one.recv(65_536):
            pass
    except ConnectionError:
        pass


@pytest.mark.proof
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nhost: localhost\r\n"], ids=["silent", "half a head"])
def test_console_serves_beside_silent_connections(said: bytes) -> None:
    with console("127.0.0.1:1") as port, ExitStack() as ends:
        held = silent(port, DESCRIPTORS + 76, ends, said)
        same_s, other_s = answer_s(port, "127.0.0.2"), answer_s(port, "127.0.0.3")
        told(connections=len(held), same_host_s=same_s, other_host_s=other_s)
        assert max(same_s, other_s) < ANSWER_S_MAX
        until_ended(held[-1])


@pytest.mark.proof
def test_console_with_tls_serves_beside_missing_handshakes(tmp_path: Path) -> None:
    made = CliRunner().invoke(certs, ["init", str(tmp_path / "certs")])
    assert made.exit_code == 0, made.output
    own = tmp_path / "certs" / "gateway"
    files = {"tls_cert_file": own / "tls.crt", "tls_key_file": own / "tls.key"}
    with console("127.0.0.1:1", **files) as port, ExitStack() as ends:
        held = silent(port, DESCRIPTORS + 76, ends)
        began = time.monotonic()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=60)) as one:
            one.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert one.recv(65_536).startswith(b"HTTP/1.1 200")
        took_s = time.monotonic() - began
        told(connections=len(held), tls_s=took_s)
        assert took_s < ANSWER_S_MAX
        until_ended(held[-1])


@pytest.mark.proof
@pytest.mark.parametrize("auth", ["off", "required"])
def test_console_serves_beside_bodies_that_are_hard_to_read(start: Callable[..., Rig], auth: str) -> None:
    rig = start({"gateway": {"auth": auth}} if auth == "required" else {})
    names = "{" + ", ".join(f'"{number}": 1' for number in range(33_000)) + ', "0": 1}'
    bodies = [names, "[" * 400_000, "[" + "{}," * 2_500_000 + "{}]", '"' + '\\"' * 3_900_000 + '"']
    with console(rig.address) as port:
        for body in bodies:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
                head = "POST /api/v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                one.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
                took_s = answer_s(port)
                status = one.recv(65_536)[:12]
            told(auth=auth, body_bytes=len(body), other_s=took_s, status=status)
            assert took_s < ANSWER_S_MAX
            assert status == (b"HTTP/1.1 401" if auth == "required" else b"HTTP/1.1 400")
