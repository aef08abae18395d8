"""`duetime up` with real processes: what it says, refuses, restarts and keeps."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from duetime import Message, Producer, Puller, Receipt

from tests.cli.cluster import Up, alive, run_duetime


def strangers(root: Path) -> list[str]:
    """What users other than its owner may read, write or list."""
    found = [root, *root.rglob("*")]
    assert {"metadata.db", "commitlog", "gateway.log"} <= {path.name for path in found}
    return [f"{path} {path.stat().st_mode:o}" for path in found if path.stat().st_mode & 0o077]


def test_it_says_where_it_serves_and_ends_clean_on_sigterm(tmp_path: Path) -> None:
    with Up(tmp_path / "deep" / "data") as up:
        assert up.ready["port"] > 0
        assert up.ready["pid"] == up.process.pid
        pids = [up.pid(name) for name in ("gateway", "scheduler", "retry", "store")]
        assert strangers(tmp_path / "deep" / "data") == []
        for process in up.ready["processes"].values():
            with socket.create_connection(("127.0.0.1", process["metrics_port"]), timeout=10):
                pass
        assert up.end() == (0, "")
    assert not any(alive(pid) for pid in pids)
    logs = tmp_path / "deep" / "data" / "logs"
    for name in ("gateway", "scheduler", "retry", "store"):
        assert "stopped" in (logs / f"{name}.log").read_text()


def test_ctrl_c_ends_it_clean(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        assert up.end(signal.SIGINT) == (0, "")


def test_sigterm_while_it_starts_ends_it_clean(tmp_path: Path) -> None:
    # Its log appears with its first child.
    process = subprocess.Popen([sys.executable, "-m", "duetime", "up", "--data", tmp_path, "--port", "0"])
    while not (tmp_path / "logs" / "store.log").exists():
        os.sched_yield()
    process.terminate()
    assert process.wait(60) == 0


def test_pending_messages_are_found_again(tmp_path: Path) -> None:
    with Up(tmp_path) as up, Producer(up.server) as producer:
        receipts = producer.send_many([Message("orders", b"%d" % n, delay=("1s", "5s")[n % 2]) for n in range(100)])
        assert all(isinstance(receipt, Receipt) for receipt in receipts)
        up.end()
    with Up(tmp_path) as up, Puller(up.server, "orders") as puller:
        messages = []
        while len(messages) < 100:
            messages += puller.poll(wait="30s")
        assert puller.poll(wait="300ms") == []
    assert sorted(int(message.body) for message in messages) == list(range(100))
    assert all(message.late_ms is not None and message.late_ms >= 0 for message in messages)


def test_a_killed_process_is_restarted_on_its_port(tmp_path: Path) -> None:
    names = ("store", "gateway", "scheduler", "retry")
    with Up(tmp_path) as up, Producer(up.server, timeout=30) as producer:
        for name in names:
            producer.send("orders", f"before {name}".encode(), delay="1s")
            os.kill(up.pid(name), signal.SIGKILL)
            line = up.read_line(errors=True)
            assert line == f"duetime: {name} (pid {up.pid(name)}) ended by SIGKILL; restarting it in 0.2 s\n"
            producer.send("orders", f"after {name}".encode(), delay="1s")
        with Puller(up.server, "orders", timeout=30) as puller:
            bodies: list[str] = []
            while len(bodies) < 2 * len(names):
                bodies += [message.body.decode() for message in puller.poll(wait="30s")]
        assert sorted(bodies) == sorted(f"{when} {name}" for name in names for when in ("before", "after"))
        assert up.end() == (0, "")


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        done = run_duetime("up", "--data", tmp_path, "--port", "0")
        assert done.returncode == 1
        assert done.stdout == b""
        expected = f"duetime: data directory {tmp_path} is in use by another cluster (pid {up.process.pid})\n"
        assert done.stderr.decode() == expected
        assert up.end() == (0, "")


def test_a_busy_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        done = run_duetime("up", "--data", tmp_path, "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.decode() == f"duetime: can't listen on 127.0.0.1:{port}: address already in use\n"


@pytest.mark.parametrize(("name", "reason"), [("file", "it is not a directory"), ("file/below", "not a directory")])
def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    done = run_duetime("up", "--data", tmp_path / name, "--port", "0")
    assert done.returncode == 1
    assert done.stderr.decode() == f"duetime: can't use {tmp_path / name} as data directory: {reason}\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_an_unwritable_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = run_duetime("up", "--data", tmp_path / "data", "--port", "0")
    assert (done.returncode, b"permission denied" in done.stderr) == (1, True)


def test_a_process_that_cannot_start_ends_it_with_its_own_words(tmp_path: Path) -> None:
    done = run_duetime("up", "--data", tmp_path, "--port", "0", environment={"DUETIME_STORE_FLUSH_MODUS": "sync"})
    assert done.returncode == 1
    assert done.stderr == b"duetime store: DUETIME_STORE_FLUSH_MODUS is not a setting of this process\n"
    assert done.stdout == b""


def test_other_delay_levels_than_the_datas_are_refused(tmp_path: Path) -> None:
    Up(tmp_path).__exit__()
    done = run_duetime("up", "--data", tmp_path, "--port", "0", environment={"DUETIME_DELAY_LEVELS": "1s 7s"})
    assert done.returncode == 1
    assert done.stderr.startswith(b"duetime store: ")
    assert done.stderr.count(b"\n") == 1


def test_the_demonstration_speaks_plain_text_in_a_pipe(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "duetime", "up", "--demo", "--data", tmp_path, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while lines[-1] and " lanes --server " not in lines[-1]:
        lines.append(process.stdout.readline())
    process.terminate()
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    text = "".join(lines) + rest
    assert text.startswith("DueTime serves at 127.0.0.1:")
    assert text.count(" ms late ") == 6
    assert "\x1b" not in text
