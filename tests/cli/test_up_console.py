"""The console of `duetime up`, and `duetime console`: where they are, and that neither disturbs the cluster."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from duetime import Producer

from tests.cli.cluster import Up, alive, deadline, run_duetime


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def read_soon(url: str, text: str = "") -> str:
    """The page, once something listens there and the page has a text: counts follow the messages."""
    give_up_at = deadline()
    page = "nothing"
    while time.monotonic() < give_up_at:
        with suppress(ConnectionError, urllib.error.URLError):
            page = read(url)
            if text in page:
                return page
        time.sleep(0.05)
    raise AssertionError(f"the console does not show {text!r} but {page}")


def pid_of(data: Path, but: int = 0) -> int:
    """The console's process, which its log does not name."""
    give_up_at = deadline()
    while time.monotonic() < give_up_at:
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != but and is_console(entry, data):
                return int(entry.name)
        time.sleep(0.05)
    raise AssertionError("there is no console")


def is_console(entry: Path, data: Path) -> bool:
    try:
        words = (entry / "cmdline").read_bytes().split(b"\0")
        return b"duetime_console" in words and str(data).encode() in (entry / "environ").read_bytes()
    except OSError:
        return False


def test_console_comes_with_the_cluster_and_its_death_disturbs_nothing(tmp_path: Path) -> None:
    with Up(tmp_path, "--console-port", "0", console=True) as up, Producer(up.server) as producer:
        url = up.ready["console"]
        producer.send("orders", b"a", delay="1h")
        read_soon(url, "<dt>pending</dt><dd>1</dd>")
        assert (tmp_path / "console.secret").stat().st_mode & 0o077 == 0
        first = pid_of(tmp_path)
        os.kill(first, signal.SIGKILL)
        producer.send("orders", b"b", delay="1h")
        second = pid_of(tmp_path, but=first)
        read_soon(url, "<dt>pending</dt><dd>2</dd>")
        assert "console (pid " in up.read_line(errors=True)
        assert all(alive(one["pid"]) for one in up.ready["processes"].values())
        assert up.end() == (0, "")
        assert not alive(second)


def test_default_port_falls_back_but_named_port_fails(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        done = run_duetime("up", "--data", tmp_path, "--port", "0", "--console-port", str(port))
        assert done.returncode == 1
        assert f"can't listen on 127.0.0.1:{port}" in done.stderr.decode()
    with Up(tmp_path / "one", console=True) as one, Up(tmp_path / "two", console=True) as two:
        assert one.ready["console"] != two.ready["console"]


def test_without_a_console_there_is_none(tmp_path: Path) -> None:
    with Up(tmp_path, "--no-console", console=True) as up:
        assert "console" not in up.ready
    assert not (tmp_path / "logs" / "console.log").exists()


def test_command_shows_a_cluster_and_ends_clean(server: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "duetime", "console", "--server", server, "--port", "0", "--read-only"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"DUETIME_CONSOLE_SECRET_FILE": str(tmp_path / "secret")},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    url = re.fullmatch(rf"The console of {server} is at (http://127\.0\.0\.1:\d+/)\n", line)
    assert url, line
    assert "read-only" in read(url[1])
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()


def test_command_reports_faults_in_one_line(tmp_path: Path) -> None:
    for options, variables, words in (
        (["--host", "0.0.0.0"], {}, "without TLS"),
        (["--tls-cert", "x"], {}, "must be set together"),
        ([], {"DUETIME_CONSOLE_PROT": "1"}, "DUETIME_CONSOLE_PROT is not a setting"),
        ([], {"DUETIME_CONSOLE_SECRET": "short"}, "fewer than 16"),
    ):
        done = run_duetime("console", "--port", "0", *options, environment=variables)
        assert done.returncode == 1
        (line,) = done.stderr.decode().splitlines()
        assert words in line
        assert "short" not in line
