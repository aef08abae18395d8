"""`duetime work` as processes: runs, drain, restarts, time limits, reload, and one line for each failed import."""

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from duetime import App, DeadLetters
from duetime.cli import worker, workers
from duetime.cli.preflight import CannotStart
from duetime_core.testing import LocalCluster

from tests.cli.cluster import DEADLINE_S, alive

SHOP = """
    import asyncio, json, os, threading, time
    from pathlib import Path
    from duetime import App, current

    app = App(os.environ["GROUP"])

    def note(text):
        line = {"text": text, "attempt": current().attempt, "pid": os.getpid()}
        with Path("runs").open("a") as runs:
            runs.write(json.dumps(line) + "\\n")

    @app.task
    async def run(text: str):
        note(text)

    @app.task
    def wait(name: str):
        note(f"begin {name}")
        while not Path(name).exists():
            time.sleep(0.01)
        note(f"end {name}")

    @app.task
    async def wait_async(name: str):
        note(f"begin {name}")
        while not Path(name).exists():
            await asyncio.sleep(0.01)
        note(f"end {name}")

    @app.task(retry="1s")
    def hang():
        note("hang")
        if current().attempt == 1:
            threading.Event().wait()

    @app.task
    def hold():
        note("hold")
        if current().attempt == 1:
            sum(range(10**13))
"""


class Work:
    """A running `duetime work shop:app`."""

    def __init__(self, folder: Path, group: str, server: str, *options: str) -> None:
        self.folder = folder
        self.app = App(group, server)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "duetime", "work", "shop:app", *options],
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ | {"GROUP": group, "DUETIME_SERVER": server},
        )
        self.lines: list[str] = []

    def send(self, task: str, **arguments: str) -> None:
        self.app.producer.send(self.app.name, arguments, tags=task)

    def runs(self) -> list[dict[str, str | int]]:
        path = self.folder / "runs"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until_run(self, *texts: str) -> None:
        """Waits until tasks have noted these texts, in any order."""
        until(lambda: sorted(str(run["text"]) for run in self.runs()) == sorted(texts))

    def until_printed(self, pattern: str) -> str:
        """Waits for a line on standard error; returns the first group of the pattern."""
        stream = self.process.stderr
        assert stream is not None
        while True:
            readable, _, _ = select.select([stream], [], [], DEADLINE_S)
            assert readable, f"no {pattern!r}: {self.lines}"
            line = stream.readline()
            assert line, f"it ended without {pattern!r}: {self.lines}"
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found[found.re.groups and 1]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode


def until(condition: Callable[[], object]) -> None:
    """Waits for another process."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def working(folder: Path, group: str, nodes: LocalCluster, *options: str, code: str = SHOP) -> Iterator[Work]:
    (folder / "shop.py").write_text(textwrap.dedent(code))
    work = Work(folder, group, nodes.address, *options)
    try:
        yield work
    finally:
        if work.process.poll() is None:
            work.end()
        assert work.process.stderr is not None
        work.process.stderr.close()
        work.app.close()


def page(url: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url + path, timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_stopped_worker_finishes_its_task(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes) as work:
        work.send("wait_async", name="gate")
        work.until_run("begin gate")
        pid = int(work.runs()[0]["pid"])
        # As systemd does, to every process of the service; and once more by the supervisor.
        os.kill(pid, signal.SIGTERM)
        work.until_printed("stopping; 1 handlers are running")
        work.process.send_signal(signal.SIGTERM)
        work.until_printed("draining; a second signal cancels running tasks")
        os.kill(pid, signal.SIGTERM)
        (tmp_path / "gate").touch()
        assert work.process.wait(DEADLINE_S) == 0
    assert [run["text"] for run in work.runs()] == ["begin gate", "end gate"]


@pytest.mark.proof
def test_processes_share_the_tasks_and_return_the_rest(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes, "--processes", "2", "--concurrency", "1", "--metrics-port", "0") as work:
        url = work.until_printed("health and metrics at (.*)/metrics")
        assert page(url, "/healthz") == (200, "ok\n")
        assert page(url, "/nothing")[0] == 404
        until(lambda: page(url, "/readyz") == (200, "2 of 2 processes serve\n"))
        for name in ("one", "two", "three"):
            work.send("wait", name=name)
        until(lambda: len(work.runs()) == 2)
        begun = [str(run["text"]).removeprefix("begin ") for run in work.runs()]
        assert len({run["pid"] for run in work.runs()}) == 2
        until(lambda: "\nduetime_worker_running 2\n" in page(url, "/metrics")[1])
        work.process.send_signal(signal.SIGTERM)
        work.until_printed("draining")
        assert page(url, "/readyz")[0] == 503
        for name in begun:
            (tmp_path / name).touch()
        assert work.process.wait(DEADLINE_S) == 0
        work.until_run(*(f"{when} {name}" for name in begun for when in ("begin", "end")))
    # The third was returned, and has lost no attempt.
    (missing,) = {"one", "two", "three"} - set(begun)
    (tmp_path / missing).touch()
    with working(tmp_path, group, nodes) as work:
        until(lambda: len(work.runs()) == 6)
        assert {run["attempt"] for run in work.runs()} == {1}
        assert work.end(signal.SIGINT) == 0


SCHEDULED = """
    @app.every("1m")
    async def poll(occurrence):
        note(f"{occurrence.schedule} {occurrence.planned_at:%S}")
"""


def test_first_process_puts_the_schedules(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes, "--processes", "2", code=SHOP + SCHEDULED) as work:
        work.until_printed(f"schedule poll of {group}: next at")
        work.until_printed(f"consuming {group} as {group}")
        nodes.advance("1m")
        until(lambda: [run for run in work.runs() if str(run["text"]).startswith("poll")])
        assert work.end() == 0
    assert not [line for line in work.lines if "schedule poll" in line][1:]


@pytest.mark.proof
def test_rejected_schedule_is_one_line_and_wrong_usage(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    code = SHOP + SCHEDULED.replace("1m", "0 25 * * *")
    with working(tmp_path, group, nodes, code=code) as work:
        work.until_printed(r"^duetime: .*cron expression '0 25 \* \* \*': invalid hour")
        assert work.process.wait(DEADLINE_S) == 2


@pytest.mark.proof
def test_failed_import_is_one_line_and_wrong_usage(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes, "--processes", "3", code="import nowhere") as work:
        _, errors = work.process.communicate(timeout=DEADLINE_S)
    place = "(shop.py, line 1)"
    assert errors == f"duetime: can't import shop: ModuleNotFoundError: No module named 'nowhere' {place}\n"
    assert work.process.returncode == 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory; modules of it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = dict(sys.modules)
    yield tmp_path
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


@pytest.mark.parametrize(
    ("spec", "code", "says"),
    [
        ("shop", "", "'shop' is not MODULE:APP, such as shop:app"),
        (":app", "", "':app' is not MODULE:APP"),
        ("nowhere:app", "", "can't import nowhere: ModuleNotFoundError: No module named 'nowhere'"),
        ("shopping:app", "x = 1", "module shopping has no 'app'"),
        ("shopping:app.tasks", "app = 1", "module shopping has no 'app.tasks'"),
        ("shopping:app", "app = 1", "shopping:app is int, not duetime.App"),
        ("shopping:app", "\n1 / 0", "can't import shopping: ZeroDivisionError: division by zero (shopping.py, line 2)"),
        ("shopping:app", "app = 1 +", "can't import shopping: SyntaxError: invalid syntax (shopping.py, line 1)"),
        ("shopping:app", "None.app", "'NoneType' object has no attribute 'app' (shopping.py, line 1)"),
        ("shopping:app", "class End(BaseException): ...\nraise End", "shopping: End (shopping.py, line 2)"),
        ("shopping:app", "raise SystemExit(3)", "can't import shopping: SystemExit: 3 (shopping.py, line 1)"),
    ],
)
def test_import_errors_have_their_place(folder: Path, spec: str, code: str, says: str) -> None:
    (folder / "shopping.py").write_text(code)
    with pytest.raises(CannotStart) as raised:
        worker.load(spec)
    assert says in str(raised.value)


def test_app_is_found_in_a_package_of_the_working_directory(folder: Path) -> None:
    (folder / "shopping").mkdir()
    (folder / "shopping" / "tasks.py").write_text("import duetime\nclass Of:\n    app = duetime.App('shop')\n")
    found = worker.load("shopping.tasks:Of.app")
    assert isinstance(sys.modules["shopping.tasks"], ModuleType)
    assert found.name == "shop"


@pytest.mark.proof
def test_killed_process_is_restarted(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes) as work:
        work.send("wait", name="gate")
        work.until_run("begin gate")
        os.kill(int(work.runs()[0]["pid"]), signal.SIGKILL)
        work.until_printed("worker 0 ended by SIGKILL; restarting it now")
        (tmp_path / "gate").touch()
        work.send("run", text="next")
        until(lambda: any(run["text"] == "next" for run in work.runs()))
        nodes.advance("61s")
        until(lambda: ("end gate", 2) in [(run["text"], run["attempt"]) for run in work.runs()])


@pytest.mark.proof
def test_process_whose_code_holds_the_interpreter_is_replaced(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes, "--time-limit", "1s") as work:
        work.send("hold")
        work.until_printed("Timeout")
        work.until_printed("in hold")
        work.until_printed("worker 0 ended with exit code 1; restarting it now")
        nodes.advance("61s")
        work.until_run("hold", "hold")
        assert [run["attempt"] for run in work.runs()] == [1, 2]


HOSTED = """
    @app.task(process=True, retry="1s", timeout="1s")
    def render():
        note("render")
        if current().attempt == 1:
            sum(range(10**13))

    @app.task(process=True)
    def wait_hosted(name: str):
        wait(name)
"""


def test_time_limit_ends_the_process_of_a_task_and_not_the_worker(
    tmp_path: Path, group: str, nodes: LocalCluster
) -> None:
    # The limit of the other task is longer: it runs until the test has seen it run.
    options = "--time-limit", "1h", "--metrics-port", "0", "--pool", "1"
    with working(tmp_path, group, nodes, *options, code=SHOP + HOSTED) as work:
        url = work.until_printed("health and metrics at (.*)/metrics")
        work.send("render")
        work.until_printed("TimeoutError: the handler has run for more than 1 s")
        until(lambda: "\nduetime_worker_retried_total 1\n" in page(url, "/metrics")[1])
        nodes.advance("2s")
        work.until_run("render", "render")
        assert [run["attempt"] for run in work.runs()] == [1, 2]
        for _ in range(2):
            work.send("wait_hosted", name="gate")
        until(lambda: "\nduetime_worker_pool_waiting 1\n" in page(url, "/metrics")[1])
        assert "\nduetime_worker_pool_running 1\n" in page(url, "/metrics")[1]
        (tmp_path / "gate").touch()
        until(lambda: "\nduetime_worker_pool_waiting 0\n" in page(url, "/metrics")[1])
        assert work.end() == 0
    assert not [line for line in work.lines if "ended" in line]
    assert not [run for run in work.runs() if alive(int(run["pid"]))]


@pytest.mark.proof
def test_drain_waits_for_a_task_in_a_process(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes, code=SHOP + HOSTED) as work:
        work.send("wait_hosted", name="gate")
        work.until_run("begin gate")
        pid = int(work.runs()[0]["pid"])
        # As systemd does, to every process of the service.
        os.kill(pid, signal.SIGTERM)
        work.process.send_signal(signal.SIGTERM)
        work.until_printed("stopping; 1 handlers are running")
        (tmp_path / "gate").touch()
        assert work.process.wait(DEADLINE_S) == 0
        until(lambda: not alive(pid))
    assert [run["text"] for run in work.runs()] == ["begin gate", "end gate"]


@pytest.mark.proof
def test_process_of_a_task_ends_with_a_killed_worker(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes, code=SHOP + HOSTED) as work:
        work.send("render")
        work.until_run("render")
        work.send("run", text="one")
        work.until_run("render", "one")
        hosted, worker = (int(run["pid"]) for run in work.runs())
        os.kill(worker, signal.SIGKILL)
        until(lambda: not alive(hosted))


LEAVING = """
    if not Path("again").exists():
        Path("again").touch()
        threading.Thread(target=threading.Event().wait).start()

    @app.task(max_attempts=1)
    async def leave():
        sys.exit(78)
"""


@pytest.mark.proof
def test_process_whose_task_exits_is_replaced(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    code = SHOP.replace("threading, time", "sys, threading, time") + LEAVING
    with working(tmp_path, group, nodes, "--metrics-port", "0", code=code) as work:
        url = work.until_printed("health and metrics at (.*)/metrics")
        until(lambda: page(url, "/readyz")[0] == 200)
        work.send("leave")
        work.until_printed("SystemExit: 78")
        until(lambda: page(url, "/readyz") == (503, "0 of 1 processes serve\n"))
        work.until_printed("worker 0 ended with exit code 1; restarting it now")
        until(lambda: page(url, "/readyz")[0] == 200)


@pytest.mark.proof
def test_process_of_a_thread_that_hangs_is_replaced(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes, "--time-limit", "1s", "--drain", "100ms") as work:
        work.send("hang")
        work.until_printed("TimeoutError: the handler has run for more than 1 s")
        work.until_printed(r"\(hang\) runs beyond the time limit; this process ends")
        work.until_printed("worker 0 ended with exit code 70; restarting it now")
        nodes.advance("2s")
        work.until_run("hang", "hang")
        assert [run["attempt"] for run in work.runs()] == [1, 2]
    with DeadLetters(nodes.address, group) as letters:
        assert list(letters.list()) == []


@pytest.mark.proof
def test_changed_file_restarts_the_processes(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes, "--reload") as work:
        work.send("run", text="one")
        work.until_run("one")
        (tmp_path / "shop.py").write_text("1 / 0")
        work.until_printed("shop.py has changed; restarting")
        work.until_printed("can't import shop: ZeroDivisionError")
        work.until_printed("worker 0 ended with exit code 78; restarting it when a file changes")
        (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP).replace("    note(text)", "    note(text.upper())"))
        work.send("run", text="two")
        until(lambda: len(work.runs()) == 2)
        assert work.end() == 0


@pytest.mark.proof
def test_changes_do_not_cancel_a_running_task(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes, "--reload") as work:
        work.send("wait_async", name="gate")
        work.until_run("begin gate")
        for number in range(2):
            (tmp_path / f"other{number}.py").touch()
            work.until_printed(f"other{number}.py has changed; restarting")
        work.send("run", text="next")
        (tmp_path / "gate").touch()
        work.until_run("begin gate", "end gate", "next")
        assert {run["attempt"] for run in work.runs()} == {1}
        assert len({run["pid"] for run in work.runs()}) == 2


STUCK = """
    import os, signal, threading
    from pathlib import Path

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(f"began{os.getpid()}").touch()
    threading.Event().wait()
"""


async def test_change_during_the_import_kills_a_process_that_does_not_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "stuck.py").write_text(textwrap.dedent(STUCK))
    monkeypatch.setattr(workers, "STOP_GRACE_S", 0.0)
    monkeypatch.setattr(workers, "RELOAD_CHECK_S", 0.01)
    options = worker.WorkerOptions("stuck:app", [], 1, drain_s=0.0, time_limit_s=None, report_fd=-1, pool=1)
    running = asyncio.create_task(workers.WorkerSupervisor(options, 1, reloads=True).run("", None))
    await asyncio.to_thread(until, lambda: len(list(folder.glob("began*"))) == 1)
    (folder / "other.py").touch()
    await asyncio.to_thread(until, lambda: len(list(folder.glob("began*"))) == 2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


@pytest.mark.proof
def test_processes_end_with_their_supervisor(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes) as work:
        work.send("run", text="one")
        work.until_run("one")
        work.end(signal.SIGKILL)
        until(lambda: not alive(int(work.runs()[0]["pid"])))


@pytest.mark.proof
def test_second_signal_ends_running_tasks(tmp_path: Path, group: str, nodes: LocalCluster) -> None:
    with working(tmp_path, group, nodes, "--drain", "1h") as work:
        work.send("hang")
        work.until_run("hang")
        work.process.send_signal(signal.SIGINT)
        work.until_printed("stopping; 1 handlers are running")
        assert work.end(signal.SIGINT) == 0
        assert not alive(int(work.runs()[0]["pid"]))
