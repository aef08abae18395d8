"""`duetime consume` as a process: exit codes of commands, their input, and the end of the process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from duetime.cli.consume import _check_program
from duetime_core.testing import LocalCluster

from tests.sdk.groups import Groups

DEADLINE_S = 60.0


class Consumed(Groups):
    """Its topic and group are those of the command."""

    topic = group = ""

    def fill_with(self, count: int) -> None:
        self.nodes.run(self.fill(self.topic, count))


@pytest.fixture
def gateway(nodes: LocalCluster, topic: str, group: str) -> Iterator[Consumed]:
    gateway = Consumed(nodes)
    gateway.topic, gateway.group = topic, group
    nodes.run(gateway.start())
    yield gateway
    nodes.run(gateway.stop())


@contextmanager
def consuming(gateway: Consumed, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "duetime", "consume", gateway.topic, "--group", gateway.group, *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"DUETIME_SERVER": gateway.address},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=DEADLINE_S)
    return process.returncode, output, errors


def until(condition: Callable[[], object]) -> None:
    """Waits for another process."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_messages_are_printed_and_done(gateway: Consumed) -> None:
    gateway.fill_with(3)
    with consuming(gateway, "--json", "--count", "2") as process:
        code, output, errors = ended(process)
    assert (code, errors) == (0, "")
    printed = [json.loads(line) for line in output.splitlines()]
    assert [(one["body"], one["id"], one["attempt"]) for one in printed] == [("0", "id-0", 1), ("1", "id-1", 1)]
    assert gateway.bodies("ack") == [b"0", b"1"]
    # Messages fetched beyond the count were returned.
    assert gateway.leases == {}


def test_a_reader_that_has_enough_ends_it(gateway: Consumed) -> None:
    gateway.fill_with(10)
    with consuming(gateway) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        gateway.nodes.run(gateway.put(gateway.topic, b"more"))
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert len(gateway.bodies("nack")) == 1
    assert gateway.leases == {}


def test_a_command_gets_the_body_and_the_fields(gateway: Consumed) -> None:
    sent: dict[str, Any] = {"tags": "paid", "keys": ["a", "b"], "properties": {"color": "red"}}
    gateway.nodes.run(gateway.put(gateway.topic, b"cancel 42\xff", ids="id-%d", **sent))
    names = "ID TOPIC GROUP ATTEMPT TAGS KEYS PROPERTIES QUEUE OFFSET DUE_AT"
    command = "od -An -v -c; " + "".join(f'echo "|{name}=$DUETIME_{name}"; ' for name in names.split())
    with consuming(gateway, "--exec", command, "--count", "1") as process:
        code, output, errors = ended(process)
    assert (code, errors) == (0, "")
    body, *fields = output.replace("\n", "").split("|")
    assert body.split() == [*"cancel", *"42", "377"]
    assert fields == [
        "ID=id-0",
        f"TOPIC={gateway.topic}",
        f"GROUP={gateway.group}",
        "ATTEMPT=1",
        "TAGS=paid",
        "KEYS=a b",
        'PROPERTIES={"color": "red"}',
        "QUEUE=0",
        "OFFSET=0",
        "DUE_AT=",
    ]
    assert gateway.bodies("ack") == [b"cancel 42\xff"]


def test_the_exit_code_settles_the_message(gateway: Consumed) -> None:
    gateway.fill_with(6)
    # The body is the case; 5 is a command that does not read its input.
    command = """
    read -r case
    case $case in
      0) exit 0 ;;
      1) exit 75 ;;
      2) echo "no such table" >&2; exit 3 ;;
      3) exit 65 ;;
      4) kill -9 $$ ;;
    esac
    """
    options = ("--backoff", "1s,5s", "--max-attempts", "7", "--reject-code", "65", "--concurrency", "2")
    with consuming(gateway, "--exec", command, "--count", "6", *options) as process:
        code, _, errors = ended(process)
    assert code == 0
    assert sorted(gateway.bodies("ack")) == [b"0", b"5"]
    assert sorted(gateway.bodies("nack")) == [b"1", b"2", b"4"]
    assert gateway.bodies("dead") == [b"3"]
    by_error = {
        nack.error.type + ": " + nack.error.message: nack for request in gateway.nacks for nack in request.nacks
    }
    hows = ("exit code 75", "exit code 3: no such table", "exit code 65", "ended by SIGKILL")
    expected = {f"ExitCode: {how}" for how in hows}
    assert set(by_error) == expected
    assert by_error["ExitCode: exit code 3: no such table"].error.trace.endswith("no such table\n")
    assert {request.policy.max_attempts for request in gateway.nacks} == {7}
    lines = errors.splitlines()
    assert "duetime: id-2: attempt 1 failed: ExitCode: exit code 3: no such table" in lines
    assert f"duetime: id-3: became a dead letter of {gateway.group} after attempt 1" in lines
    assert "no such table" in lines
    # A retry by 75 is no noise, and no trace is printed.
    assert len(lines) == 4


def test_a_long_standard_error_keeps_its_end(gateway: Consumed) -> None:
    gateway.fill_with(1)
    command = "head -c 200000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1"
    with consuming(gateway, "--exec", command, "--count", "1") as process:
        assert ended(process)[0] == 0
    trace = gateway.nacks[0].nacks[0].error.trace
    assert trace.endswith("xxthe end\n")
    assert len(trace) > 3_500
    assert re.match(r"duetime\.cli\.consume\.ExitCode: exit code 1: x{119}…\nxx", trace)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_the_command_its_time(gateway: Consumed, number: signal.Signals, tmp_path: Path) -> None:
    gateway.fill_with(2)
    begun, go = tmp_path / "begun", tmp_path / "go"
    command = f"touch {begun}; while ! test -e {go}; do sleep 0.02; done"
    with consuming(gateway, "--exec", command) as process:
        until(begun.exists)
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        go.touch()
        code, _, errors = ended(process)
    assert (code, errors) == (0, "")
    assert gateway.bodies("ack") == [b"0"]
    assert gateway.leases == {}


def test_a_command_that_does_not_end_in_time_is_ended_with_its_children(gateway: Consumed, tmp_path: Path) -> None:
    gateway.fill_with(1)
    child = tmp_path / "child"
    command = f"trap '' TERM; sleep 1000 & echo $! > {child}.new; mv {child}.new {child}; wait; wait"
    with consuming(gateway, "--exec", command, "--drain", "100ms") as process:
        until(child.exists)
        process.send_signal(signal.SIGTERM)
        code, _, errors = ended(process)
    assert code == 0
    assert "cancelling 1 handlers after 0.1 s" in errors
    assert gateway.bodies("break off") == [b"0"]
    until(lambda: not Path(f"/proc/{child.read_text().strip()}/cmdline").exists() or zombie(child.read_text().strip()))


def zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_second_signal_breaks_commands_off(gateway: Consumed, tmp_path: Path) -> None:
    gateway.fill_with(1)
    begun = tmp_path / "begun"
    with consuming(gateway, "--exec", f"touch {begun}; sleep 1000") as process:
        until(begun.exists)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 0
    assert gateway.bodies("break off") == [b"0"]
    assert gateway.leases == {}


def test_permanent_rejection_is_one_line(gateway: Consumed) -> None:
    gateway.nodes.run(gateway.make_topic(gateway.topic, 1))
    with consuming(gateway, "--sql", "size >> 5") as process:
        code, output, errors = ended(process)
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert errors.startswith("duetime: sql: ")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--backoff", "later"), "backoff: 'later' is not one of levels, exponential"),
        (("--lease", "1ms"), "lease: '1ms' is not within 10 ms and 12 h"),
        (("--server", "no:where"), "server: 'no:where' is not HOST:PORT"),
    ],
)
def test_usage_errors_are_one_line(gateway: Consumed, options: tuple[str, ...], why: str) -> None:
    with consuming(gateway, *options) as process:
        code, output, errors = ended(process)
    assert (code, output) == (2, "")
    assert why in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("options", [(), ("--timeout", "60s")], ids=["endless", "timeout"])
def test_surviving_child_process_does_not_hold_the_message(
    gateway: Consumed, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """It keeps standard error open, as a service that a script has started."""
    pid_file = tmp_path / "pid"
    gateway.fill_with(2)
    command = f"echo last words >&2; sleep 300 > /dev/null & echo $! > {pid_file}"
    with consuming(gateway, "--exec", command, "--count", "2", *options) as process:
        try:
            code, _, errors = ended(process)
        finally:
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert (code, errors) == (0, "last words\n" * 2)
    assert sorted(gateway.bodies("ack")) == [b"0", b"1"]


@pytest.mark.parametrize("command", ["./no-such-program --now", "no-such-program < /dev/null", "/etc/passwd", "/etc"])
def test_a_program_that_does_not_exist_is_reported_before_any_message(gateway: Consumed, command: str) -> None:
    gateway.fill_with(1)
    with consuming(gateway, "--exec", command) as process:
        code, output, errors = ended(process)
    assert (code, output) == (2, "")
    assert f"{command.split()[0]}: no such program" in errors
    assert gateway.calls["Receive"] == 0


@pytest.mark.parametrize("command", ["if true; then cat; fi", "read body; echo $body", "(exit 0)", "X=1 true", "'"])
def test_a_shell_may_be_given_more_than_a_program(command: str) -> None:
    _check_program(command)
