"""Tasks in processes: outcomes, time limits, deaths, signals and the end of each process."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from duetime import App, InvalidArgument, LeasedMessage, Middleware, Reject, Retry
from duetime.client.consuming.failing import HostedError, handler_error
from duetime.client.consuming.leased import DeliveryAttempt, leased
from duetime_core.testing import LocalCluster
from duetime_format import record

from tests.sdk.consuming import consuming, until
from tests.tap import WAIT_S

HEAVY = """
    import os, signal, sys, threading, time
    from pathlib import Path
    from duetime import App, Context, Middleware, Reject, Retry

    class Noting(Middleware):
        def before(self, message):
            self.note("before", message)

        def after(self, message):
            self.note("after", message)

        def failed(self, message, error):
            self.note(f"failed:{type(error).__name__}", message)
            raise error

        def note(self, hook, message):
            with Path(os.environ["NOTES"] + ".hooks").open("a") as notes:
                notes.write(f"{os.getpid()} {hook} {message.attempt}\\n")

    app = App(os.environ.get("GROUP", "heavy"), os.environ.get("DUETIME_SERVER"), middleware=[Noting()])

    class TooHeavy(Exception):
        def __init__(self, kilos, limit):
            super().__init__(f"{kilos} kg")

    @app.task(process=True, timeout="3s", max_attempts=2, retry="1s")
    def work(does: str, context: Context):
        with Path(os.environ["NOTES"]).open("a") as notes:
            notes.write(f"{os.getpid()} {does} {context.attempt}\\n")
        if does == "retry":
            raise Retry("30s") from TooHeavy(7, 5)
        if does == "reject":
            raise Reject("never")
        if does == "fail":
            raise TooHeavy(7, 5)
        if does == "exit":
            sys.exit(3)
        if does == "hang":
            threading.Event().wait()
        if does == "hold" and context.attempt == 1:
            sum(range(10**13))
        if does == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if does in ("die-alone", "hang-alone"):
            os.system("sleep 600 & echo $! >> $NOTES.children")
            if (child := os.fork()) == 0:
                while True:
                    signal.pause()
            with Path(os.environ["NOTES"] + ".children").open("a") as notes:
                notes.write(f"{child}\\n")
            if does == "die-alone":
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
        if does == "close":
            sys.stdout.close()
        if does == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)

    @app.task(process=True)
    def wait(does: str = ""):
        Path(os.environ["NOTES"] + ".pid").write_text(str(os.getpid()))
        Path(os.environ["NOTES"]).touch()
        while not Path(os.environ["NOTES"] + ".gate").exists():
            time.sleep(0.01)
"""


def delivery(does: str, attempt: int) -> LeasedMessage:
    """A delivery without a server."""
    sent = record.Record("heavy", 0, f'{{"does":"{does}"}}'.encode(), b"TAGS\x01work")
    (message,) = leased(record.encode(sent), 0, DeliveryAttempt("heavy", False, b"0123456789", 0, 0.0), [attempt])
    return message


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    (tmp_path / "heavy.py").write_text(textwrap.dedent(HEAVY))
    monkeypatch.syspath_prepend(tmp_path)
    import heavy  # type: ignore[import-not-found]

    with heavy.app:
        yield heavy
    del sys.modules["heavy"]


def call(heavy: Any, does: str, timeout_s: float | None = None, attempt: int = 3) -> None:
    middleware = heavy.app._middleware
    heavy.app.processes.handler(heavy.work.__wrapped__, timeout_s, middleware)(delivery(does, attempt))


def ended(pid: int) -> bool:
    """Whether a process has ended. It may remain until another process has read its exit code."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] in ("", "Z")


def notes(tmp_path: Path, file: str = "notes") -> list[tuple[int, str, int]]:
    lines = [line.split() for line in (tmp_path / file).read_text().splitlines()]
    return [(int(pid), does, int(attempt)) for pid, does, attempt in lines]


def test_process_is_used_again_after_each_outcome(heavy: Any, tmp_path: Path) -> None:
    call(heavy, "nothing")
    with pytest.raises(Retry) as retry:
        call(heavy, "retry")
    with pytest.raises(Reject, match="never"):
        call(heavy, "reject")
    with pytest.raises(HostedError, match="7 kg") as failed:
        call(heavy, "fail")
    with pytest.raises(HostedError, match="3"):
        call(heavy, "exit")
    call(heavy, "terminated")
    call(heavy, "close")
    call(heavy, "nothing")
    assert retry.value.after_s == 30
    for error in (handler_error(retry.value), handler_error(failed.value)):
        assert (error.type, error.message) == ("TooHeavy", "7 kg")
    assert "heavy.py" in error.trace
    assert "hosted.py" not in error.trace
    found = notes(tmp_path)
    assert len({pid for pid, _, _ in found}) == 1
    assert found[0][0] != os.getpid()
    assert {attempt for _, _, attempt in found} == {3}


def test_time_limit_and_death_end_one_process(heavy: Any, tmp_path: Path) -> None:
    for does in ("hang", "hold"):
        with pytest.raises(TimeoutError, match=r"the handler has run for more than 2 s"):
            call(heavy, does, timeout_s=2.0, attempt=1)
    with pytest.raises(HostedError, match="the process of the task ended by SIGKILL") as raised:
        call(heavy, "die")
    assert handler_error(raised.value).type == "ProcessEnded"
    call(heavy, "nothing")
    pids = [pid for pid, _, _ in notes(tmp_path)]
    assert len(set(pids)) == 4
    for pid in pids[:3]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    heavy.app.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[3], 0)


@pytest.mark.parametrize("does", ["die-alone", "hang-alone"])
async def test_processes_that_a_task_has_started_end_with_it(heavy: Any, tmp_path: Path, does: str) -> None:
    error = HostedError if does == "die-alone" else TimeoutError
    with pytest.raises(error):
        call(heavy, does, timeout_s=5.0 if does == "hang-alone" else WAIT_S)
    children = [int(line) for line in (tmp_path / "notes.children").read_text().splitlines()]
    assert len(children) == 2
    for child in children:
        await until(partial(ended, child))


def test_middleware_runs_beside_the_function_and_here_after_the_end_of_its_process(heavy: Any, tmp_path: Path) -> None:
    call(heavy, "nothing")
    with pytest.raises(HostedError, match="7 kg"):
        call(heavy, "fail")
    with pytest.raises(HostedError, match="SIGKILL"):
        call(heavy, "die")
    with pytest.raises(TimeoutError):
        call(heavy, "hang", timeout_s=1.0)
    processes = [pid for pid, _, _ in notes(tmp_path)]
    first, late = dict.fromkeys(processes)
    assert notes(tmp_path, "notes.hooks") == [
        *((first, "before", 3), (first, "after", 3)),
        *((first, "before", 3), (first, "failed:TooHeavy", 3)),
        *((first, "before", 3), (os.getpid(), "failed:HostedError", 3)),
        *((late, "before", 3), (os.getpid(), "failed:TimeoutError", 3)),
    ]


def test_further_tasks_wait_for_a_process(heavy: Any, tmp_path: Path) -> None:
    processes = heavy.app.processes
    processes.limit(1)
    wait = processes.handler(heavy.wait.__wrapped__, None)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(wait, delivery("", 1))
        wait_until((tmp_path / "notes").exists)
        second = threads.submit(call, heavy, "nothing")
        wait_until(lambda: processes.counts() == {"pool_running": 1, "pool_waiting": 1})
        assert not notes(tmp_path)
        (tmp_path / "notes.gate").touch()
        assert (first.result(WAIT_S), second.result(WAIT_S)) == (None, None)
    assert processes.counts() == {"pool_running": 0, "pool_waiting": 0}
    assert [does for _, does, _ in notes(tmp_path)] == ["nothing"]


def test_process_at_work_ends_after_its_task_when_the_app_is_closed(heavy: Any, tmp_path: Path) -> None:
    wait = heavy.app.processes.handler(heavy.wait.__wrapped__, None)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(wait, delivery("", 1))
        wait_until((tmp_path / "notes").exists)
        heavy.app.close()
        (tmp_path / "notes.gate").touch()
        assert running.result(WAIT_S) is None
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "notes.pid").read_text()), 0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_failed_import_in_the_process_is_the_error_of_the_task(heavy: Any) -> None:
    heavy.app.processes.modules = ["nowhere"]
    with pytest.raises(HostedError, match="No module named 'nowhere'") as raised:
        call(heavy, "nothing")
    assert handler_error(raised.value).type == "ModuleNotFoundError"


async def coroutine() -> None: ...
def plain() -> None: ...


class Awaiting(Middleware):
    async def before(self, message: LeasedMessage) -> None: ...


def test_functions_that_no_process_can_run_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop")
    with pytest.raises(InvalidArgument, match="a coroutine function shares its event loop"):
        app.task(process=True)(coroutine)
    with pytest.raises(InvalidArgument, match="is no function of a module"):
        app.every("1h", name="local", process=True)(lambda: None)
    awaiting = App("shop", middleware=[Awaiting()])
    awaiting.task(process=True)(plain)
    with pytest.raises(InvalidArgument, match=r"Awaiting.before is a coroutine function, and .* is not"):
        awaiting.consumer()
    app.task(process=True)(plain)
    monkeypatch.setattr(plain, "__module__", "__main__")
    with pytest.raises(InvalidArgument, match="plain is in the started program"):
        app.consumer()


@pytest.mark.usefixtures("quick")
async def test_worker_receives_no_more_tasks_in_processes_than_it_has_processes(
    monkeypatch: pytest.MonkeyPatch, nodes: LocalCluster, group: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("GROUP", group)
    monkeypatch.setenv("DUETIME_SERVER", nodes.address)
    heavy: Any = request.getfixturevalue("heavy")
    heavy.app.processes.limit(1)
    heavy.app.producer.send_many([heavy.wait.message() for _ in range(3)])
    consumer = heavy.app.consumer()
    async with consuming(consumer):
        await until((tmp_path / "notes").exists)
        assert consumer.stats.received == 1
        (tmp_path / "notes.gate").touch()
        await until(lambda: consumer.stats.handled == 3)


@pytest.mark.usefixtures("quick")
async def test_code_that_holds_the_interpreter_fails_once_and_runs_again(
    monkeypatch: pytest.MonkeyPatch, nodes: LocalCluster, group: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("GROUP", group)
    monkeypatch.setenv("DUETIME_SERVER", nodes.address)
    heavy: Any = request.getfixturevalue("heavy")
    await heavy.work.asend("hold")
    consumer = heavy.app.consumer()
    async with consuming(consumer):
        await until(lambda: consumer.stats.retried == 1)
        nodes.advance("2s")
        await until(lambda: consumer.stats.handled == 1)
    assert [(does, attempt) for _, does, attempt in notes(tmp_path)] == [("hold", 1), ("hold", 2)]
