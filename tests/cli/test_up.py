"""`duetime up` with real processes, one of all services and one of each: its output, refusals, restarts and data."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest
from _pytest.mark import ParameterSet
from duetime import Message, NotFound, Producer, Puller, Receipt
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc

from tests.cli.cluster import Up, alive, run_duetime

NAMES = ("gateway", "scheduler", "retry", "store")


def proof(value: list[str], name: str) -> ParameterSet:
    """A way that the gate leaves out, since another one shows the rule."""
    return pytest.param(value, id=name, marks=pytest.mark.proof)


both_ways = pytest.mark.parametrize(
    ("options", "processes"),
    [
        pytest.param([], ["cluster"], id="one"),
        pytest.param(["--processes"], [*NAMES], id="four", marks=pytest.mark.proof),
    ],
)


def strangers(root: Path) -> list[str]:
    """Files that users other than the owner may read, write or list."""
    found = [root, *root.rglob("*")]
    assert {"metadata.db", "commitlog", "logs"} <= {path.name for path in found}
    assert any(path.suffix == ".log" for path in found)
    return [f"{path} {path.stat().st_mode:o}" for path in found if path.stat().st_mode & 0o077]


def answers(port: int) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            return True
    except ConnectionRefusedError:
        return False


@both_ways
def test_ready_line_has_the_address_and_sigterm_ends_it_cleanly(
    tmp_path: Path, options: list[str], processes: list[str]
) -> None:
    with Up(tmp_path / "deep" / "data", *options) as up:
        assert up.ready["port"] > 0
        assert up.ready["pid"] == up.process.pid
        pids = {up.pid(name) for name in NAMES}
        assert len(pids) == len(processes)
        assert strangers(tmp_path / "deep" / "data") == []
        assert all(answers(process["metrics_port"]) for process in up.ready["processes"].values())
        assert up.end() == (0, "")
    assert not any(alive(pid) for pid in pids)
    logs = tmp_path / "deep" / "data" / "logs"
    assert {path.stem for path in logs.iterdir()} - {"metadata"} == {*processes}
    for name in processes:
        assert "stopped" in (logs / f"{name}.log").read_text()


def test_in_one_process_only_the_gateway_listens_by_default(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        told = {name: (one["address"], one["port"]) for name, one in up.ready["processes"].items()}
        assert told == {
            "gateway": (up.server, up.ready["port"]),
            **dict.fromkeys(("scheduler", "retry", "store"), (None, None)),
        }
        assert listening(up.pid("store")) == {up.ready["port"], up.ready["processes"]["store"]["metrics_port"]}
    with Up(tmp_path, "--inner-ports") as up:
        inner = {one["port"] for one in up.ready["processes"].values()}
        assert len(inner) == 4
        assert listening(up.pid("store")) == inner | {up.ready["processes"]["store"]["metrics_port"]}
        with grpc.insecure_channel(up.ready["processes"]["scheduler"]["address"]) as channel:
            lane = scheduler_pb2.LaneRequest(shard=0, level=1)
            assert scheduler_pb2_grpc.SchedulerStub(channel).PauseLane(lane, timeout=60).paused


def listening(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    links = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    inodes = {str(link)[8:-1] for link in links if str(link).startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def test_one_process_has_the_metrics_of_all_services_on_one_page(tmp_path: Path) -> None:
    with Up(tmp_path) as up, Producer(up.server) as producer:
        producer.send("orders", b"hello")
        pages = {one["metrics_port"] for one in up.ready["processes"].values()}
        assert len(pages) == 1
        page = read_page(pages.pop(), "metrics")
        assert 'duetime_gateway_messages_total{outcome="stored",process="gateway"} 1.0' in page
        assert 'duetime_store_messages_in_total{process="store"} 1.0' in page
        for name in NAMES:
            assert f'duetime_calls_in_flight_max{{process="{name}"}}' in page
        samples = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
        assert len(samples) == len(set(samples))
        # Metrics of the process appear once.
        once = ("duetime_loop_lag_seconds_count", "process_resident_memory_bytes", "duetime_build_info")
        assert [sum(sample.startswith(name) for sample in samples) for name in once] == [1, 1, 1]
        kinds = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
        assert len(kinds) == len(set(kinds))
        assert read_page(up.ready["processes"]["store"]["metrics_port"], "readyz") == "ready\n"
        assert read_page(up.ready["processes"]["store"]["metrics_port"], "healthz") == "alive\n"


def read_page(port: int, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=60) as answer:
        return str(answer.read().decode())


def test_each_line_of_the_shared_log_names_its_process(tmp_path: Path) -> None:
    with Up(tmp_path, environment={"DUETIME_LOG_FORMAT": "json"}) as up:
        assert up.end() == (0, "")
    lines = [json.loads(line) for line in (tmp_path / "logs" / "cluster.log").read_text().splitlines()]
    assert {line.get("process") for line in lines} <= {"cluster", *NAMES}
    assert [line["process"] for line in lines if line["event"] == "recovered"] == ["store"]
    assert [line["process"] for line in lines if line["event"] == "shard reached"] == ["gateway"]
    assert [line["event"] for line in lines if line["process"] == "cluster"] == ["serving", "stopping", "stopped"]


def test_settings_of_each_service_count_in_one_process(tmp_path: Path) -> None:
    settings = {"DUETIME_GATEWAY_AUTO_CREATE_TOPICS": "false", "DUETIME_DELAY_LEVELS": "1s 2s"}
    with Up(tmp_path, environment=settings) as up, Producer(up.server) as producer:
        with pytest.raises(NotFound):
            producer.send("orders", b"hello")
        with grpc.insecure_channel(up.server) as channel:
            lanes = gateway_pb2_grpc.GatewayStub(channel).ListLanes(gateway_pb2.ListLanesRequest(), timeout=60).lanes
        assert {lane.level for lane in lanes if lane.level < 1_000} == {1, 2}


def test_ctrl_c_ends_it_clean(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        assert up.end(signal.SIGINT) == (0, "")


@both_ways
def test_sigterm_while_it_starts_ends_it_clean(tmp_path: Path, options: list[str], processes: list[str]) -> None:
    # Its log appears with its first child.
    command = [sys.executable, "-m", "duetime", "up", "--data", str(tmp_path), "--port", "0", *options]
    process = subprocess.Popen(command)
    while not (tmp_path / "logs" / f"{processes[-1]}.log").exists():
        os.sched_yield()
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize("before", [proof([], "after one"), pytest.param(["--processes"], id="after four")])
@pytest.mark.parametrize("after", [pytest.param([], id="by one"), proof(["--processes"], "by four")])
def test_pending_messages_are_found_again(tmp_path: Path, before: list[str], after: list[str]) -> None:
    with Up(tmp_path, *before) as up, Producer(up.server) as producer:
        receipts = producer.send_many([Message("orders", b"%d" % n, delay=("1s", "5s")[n % 2]) for n in range(100)])
        assert all(isinstance(receipt, Receipt) for receipt in receipts)
        up.end()
    with Up(tmp_path, *after) as up, Puller(up.server, "orders") as puller:
        messages = []
        while len(messages) < 100:
            messages += puller.poll(wait="30s")
        assert puller.poll(wait="300ms") == []
    assert sorted(int(message.body) for message in messages) == list(range(100))
    assert all(message.late_ms is not None and message.late_ms >= 0 for message in messages)


@pytest.mark.parametrize(
    "names", [pytest.param(["store"], id="store"), proof(["gateway", "scheduler", "retry", "store"], "each")]
)
def test_a_killed_process_is_restarted_on_its_port(tmp_path: Path, names: list[str]) -> None:
    with Up(tmp_path, "--processes") as up, Producer(up.server, timeout="60s") as producer:
        for name in names:
            producer.send("orders", f"before {name}".encode(), delay="1s")
            os.kill(up.pid(name), signal.SIGKILL)
            line = up.read_line(errors=True)
            assert line == f"duetime: {name} (pid {up.pid(name)}) ended by SIGKILL; restarting it\n"
            producer.send("orders", f"after {name}".encode(), delay="1s")
        with Puller(up.server, "orders", timeout="60s") as puller:
            bodies: list[str] = []
            while len(bodies) < 2 * len(names):
                bodies += [message.body.decode() for message in puller.poll(wait="30s")]
        assert sorted(bodies) == sorted(f"{when} {name}" for name in names for when in ("before", "after"))
        assert up.end() == (0, "")


@pytest.mark.proof
def test_one_process_that_is_killed_is_restarted_on_its_port(tmp_path: Path) -> None:
    with Up(tmp_path) as up, Producer(up.server, timeout="60s") as producer:
        producer.send("orders", b"before", delay="1s")
        os.kill(up.pid("store"), signal.SIGKILL)
        line = up.read_line(errors=True)
        assert line == f"duetime: cluster (pid {up.pid('store')}) ended by SIGKILL; restarting it\n"
        producer.send("orders", b"after", delay="1s")
        with Puller(up.server, "orders", timeout="60s") as puller:
            bodies: list[bytes] = []
            while len(bodies) < 2:
                bodies += [message.body for message in puller.poll(wait="30s")]
        assert sorted(bodies) == [b"after", b"before"]
        assert up.end() == (0, "")


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        done = run_duetime("up", "--data", tmp_path, "--port", "0")
        assert done.returncode == 1
        assert done.stdout == b""
        expected = (
            f"duetime: data directory {tmp_path} is in use by another cluster (pid {up.process.pid}); "
            "stop that one, or give another directory: --data DIR\n"
        )
        assert done.stderr.decode() == expected
        assert up.end() == (0, "")


def test_a_busy_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        done = run_duetime("up", "--data", tmp_path, "--port", str(port))
    assert done.returncode == 1
    expected = f"can't listen on 127.0.0.1:{port}: address already in use; give another port, or 0 for any free one"
    assert done.stderr.decode() == f"duetime: {expected}\n"


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


@pytest.mark.parametrize("options", [proof([], "one"), pytest.param(["--processes"], id="four")])
@pytest.mark.parametrize("service", [pytest.param("store", marks=pytest.mark.proof), "scheduler"])
def test_a_service_that_cannot_start_ends_it_with_its_own_words(
    tmp_path: Path, options: list[str], service: str
) -> None:
    variable = f"DUETIME_{service.upper()}_FLUSH_MODUS"
    done = run_duetime("up", "--data", tmp_path, "--port", "0", *options, environment={variable: "sync"})
    assert done.returncode == 1
    assert done.stderr.decode() == f"duetime {service}: {variable} is not a setting of this process\n"
    assert done.stdout == b""


@both_ways
def test_other_delay_levels_than_the_datas_are_refused(
    tmp_path: Path, options: list[str], processes: list[str]
) -> None:
    Up(tmp_path).__exit__()
    levels = {"DUETIME_DELAY_LEVELS": "1s 7s"}
    done = run_duetime("up", "--data", tmp_path, "--port", "0", *options, environment=levels)
    assert done.returncode == 1
    assert done.stderr.startswith(b"duetime store: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.proof
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


@pytest.mark.parametrize("options", [pytest.param([], id="one"), proof(["--processes"], "four")])
def test_beyond_this_machine_it_needs_the_operator_s_word(tmp_path: Path, options: list[str]) -> None:
    done = run_duetime("up", "--data", tmp_path, "--port", "0", "--host", "0.0.0.0", *options)
    assert (done.returncode, done.stdout) == (1, b"")
    (line,) = done.stderr.decode().splitlines()
    assert "0.0.0.0 is reachable from other machines, without TLS and authentication" in line
    assert "DUETIME_INSECURE=1" in line
    with Up(tmp_path, "--host", "0.0.0.0", *options, environment={"DUETIME_INSECURE": "1"}) as up:
        assert up.server == f"127.0.0.1:{up.ready['port']}"
        assert run_duetime("topics", "--server", up.server).returncode == 0
        # Only the gateway.
        log = Path(up.ready["processes"]["gateway"]["log"]).read_text()
        assert log.count("listening beyond this machine") == 1
        code, _ = up.end()
        assert code == 0
    for service in ("store", "retry", "scheduler"):
        log = Path(up.ready["processes"][service]["log"])
        assert not options or "listening beyond" not in log.read_text()


def test_foreign_host_is_reported(tmp_path: Path) -> None:
    done = run_duetime("up", "--data", tmp_path, "--port", "9", "--host", "192.0.2.1")
    assert done.returncode == 1
    assert done.stderr == b"duetime: can't listen on 192.0.2.1:9: cannot assign requested address\n"
