"""Tasks in processes: outcomes, time limits, deaths, signals and the end of each process."""

import os
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from duetime import App, InvalidArgument, LeasedMessage, Reject, Retry
from duetime.client.consuming.failing import HostedError, handler_error
from duetime_core.testing import LocalCluster

from tests.sdk.consuming import consuming, until

HEAVY = """
    import os, signal, sys, threading
    from pathlib import Path
    from duetime import App, Context, Reject, Retry

    app = App(os.environ.get("GROUP", "heavy"), os.environ.get("DUETIME_SERVER"))

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
        if does == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
"""


class Sent:
    """A delivery without a server."""

    id, topic, tags, keys, schedule, content_type = "7F", "heavy", "work", (), "", "application/json"
    born_at, due_at, planned_at = datetime(2026, 1, 1, tzinfo=UTC), None, None

    def __init__(self, does: str, attempt: int) -> None:
        self.attempt = attempt
        self.body = f'{{"does":"{does}"}}'.encode()
        self.properties: dict[str, str] = {}


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
    heavy.app.processes.handler(heavy.work.__wrapped__, timeout_s)(cast("LeasedMessage", Sent(does, attempt)))


def notes(tmp_path: Path) -> list[tuple[int, str, int]]:
    lines = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
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


def test_failed_import_in_the_process_is_the_error_of_the_task(heavy: Any) -> None:
    heavy.app.processes.modules = ["nowhere"]
    with pytest.raises(HostedError, match="No module named 'nowhere'") as raised:
        call(heavy, "nothing")
    assert handler_error(raised.value).type == "ModuleNotFoundError"


async def coroutine() -> None: ...
def plain() -> None: ...


def test_functions_that_no_process_can_run_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop")
    with pytest.raises(InvalidArgument, match="a coroutine function shares its event loop"):
        app.task(process=True)(coroutine)
    with pytest.raises(InvalidArgument, match="is no function of a module"):
        app.every("1h", name="local", process=True)(lambda: None)
    app.task(process=True)(plain)
    monkeypatch.setattr(plain, "__module__", "__main__")
    with pytest.raises(InvalidArgument, match="plain is in the started program"):
        app.consumer()


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
