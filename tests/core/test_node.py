"""The life of a real process: ready line, signals, exit codes, and messages to the operator."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

SAMPLE = str(Path(__file__).parent / "sample_node.py")
DEADLINE_S = 60


class Process:
    """One run of the sample node."""

    def __init__(self, *arguments: str, supervised: bool = True, variables: Mapping[str, str] | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
        if supervised:
            environment["DUETIME_SUPERVISED"] = "1"
        environment |= variables or {}
        self.popen = subprocess.Popen(
            [sys.executable, SAMPLE, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> dict[str, object]:
        """The ready line."""
        assert self.popen.stdout is not None
        readable, _, _ = select.select([self.popen.stdout], [], [], DEADLINE_S)
        assert readable, "no ready line came"
        line: dict[str, object] = json.loads(self.popen.stdout.readline())
        return line

    def end(self) -> tuple[int, str, str]:
        """Exit code, the rest of standard output, standard error."""
        out, err = self.popen.communicate(timeout=DEADLINE_S)
        return self.popen.returncode, out, err


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.popen.kill()
        process.popen.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_cleanly(number: signal.Signals, started: list[Process]) -> None:
    process = Process("--log-format", "json")
    started.append(process)
    ready = process.ready()
    process.popen.send_signal(number)
    code, out, err = process.end()
    assert (code, out) == (0, "")
    assert ready["serving"] == "sample"
    phrases = [json.loads(line)["event"] for line in err.splitlines()]
    assert phrases == ["serving", "stopping", "stopped"]


def test_ready_line_names_ports_that_answer(started: list[Process]) -> None:
    process = Process()
    started.append(process)
    ready = process.ready()
    with grpc.insecure_channel(f"127.0.0.1:{ready['port']}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with urllib.request.urlopen(f"http://127.0.0.1:{ready['metrics_port']}/metrics", timeout=DEADLINE_S) as answer:
        assert answer.status == 200


def test_without_a_supervisor_there_is_no_ready_line(started: list[Process]) -> None:
    process = Process("--log-format", "json", "--metrics-port", "-1", supervised=False)
    started.append(process)
    assert process.popen.stderr is not None
    line = json.loads(process.popen.stderr.readline())
    assert (line["event"], line["metrics_port"]) == ("serving", -1)
    process.popen.terminate()
    assert process.end()[:2] == (0, "")


@pytest.mark.parametrize("flag", ["--port", "--metrics-port"])
def test_busy_port_is_one_line_and_exit_code_1(flag: str, started: list[Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = Process(flag, str(port))
        started.append(process)
        code, out, err = process.end()
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("duetime sample: cannot ")
    assert f"127.0.0.1:{port}" in err


def test_faulty_settings_are_one_line_and_exit_code_1() -> None:
    code, out, err = Process("--port", "70000", "--log-level", "LOUD").end()
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("duetime sample: ")
    assert "DUETIME_SAMPLE_PORT = '70000'" in err
    assert "DUETIME_SAMPLE_LOG_LEVEL = 'LOUD'" in err


def test_failed_start_is_one_line_and_exit_code_1() -> None:
    assert Process("--fail", "start").end() == (1, "", "duetime sample: the table is missing\n")


@pytest.mark.parametrize("fail", ["loop", "return"])
def test_death_of_a_loop_is_the_death_of_the_process(fail: str) -> None:
    process = Process("--fail", fail)
    process.ready()
    code, _, err = process.end()
    assert code == 1
    reasons = {
        "loop": "ended by a defect, ZeroDivisionError; its log has the trace",
        "return": "a loop of this process ended; its log has the reason",
    }
    assert reasons[fail] in err


def test_help_lists_each_setting_with_its_meaning() -> None:
    code, out, _ = Process("--help").end()
    assert code == 0
    assert "--metrics-port" in out
    assert "Prometheus port" in out
    assert "default factory" not in out


def test_supervised_process_ends_with_its_parent(started: list[Process]) -> None:
    script = (
        "import subprocess, sys, os\n"
        f"child = subprocess.Popen([sys.executable, {SAMPLE!r}], stdout=subprocess.PIPE, text=True)\n"
        "print(child.pid, child.stdout.readline(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    environment = os.environ | {"DUETIME_SUPERVISED": "1"}
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        watched = os.pidfd_open(pid)
        parent.kill()
        readable, _, _ = select.select([watched], [], [], DEADLINE_S)
        os.close(watched)
    assert readable, "the child outlived its parent"


def test_a_spare_starts_when_its_supervisor_needs_it() -> None:
    reading, writing = os.pipe()
    environment = os.environ | {"DUETIME_SUPERVISED": "1", "DUETIME_SPARE": "1"}
    spare = subprocess.Popen(
        [sys.executable, SAMPLE], env=environment, stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.close(reading)
    try:
        os.write(writing, b"\n")
        assert spare.stdout is not None
        assert json.loads(spare.stdout.readline())["serving"] == "sample"
        assert os.readlink(f"/proc/{spare.pid}/fd/0") == os.devnull
        # Its input was the supervisor's only before.
        os.close(writing)
        spare.terminate()
        assert spare.wait(DEADLINE_S) == 0
    finally:
        spare.kill()
        spare.communicate()


def test_a_spare_ends_with_its_supervisor() -> None:
    environment = os.environ | {"DUETIME_SUPERVISED": "1", "DUETIME_SPARE": "1", "DUETIME_SAMPLE_FAIL": "nosuch"}
    done = subprocess.run(
        [sys.executable, SAMPLE, "--wrong"], env=environment, input=b"", capture_output=True, timeout=DEADLINE_S
    )
    # It has read neither its settings nor its arguments.
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
