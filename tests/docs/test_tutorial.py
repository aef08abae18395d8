"""The tutorial, done step by step in an empty folder, as its reader does it.

A comment above each block gives the reader's step:

    <!-- step: file NAME -->     writes it to a file
    <!-- step: append NAME -->   adds it to the end of a file
    <!-- step: run -->           runs it in the first terminal
    <!-- step: background -->    runs it in a terminal of its own, and leaves it running
    <!-- step: prints -->        compares it with the end of the last run's output; `…` matches any text

A step without a block, `<!-- step: ctrl-c COMMAND -->`, presses Ctrl-C in the terminal of a running command.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packages.building import build

PROJECT = Path(__file__).resolve().parents[2]
TUTORIAL = PROJECT / "docs" / "tutorial.md"
DEADLINE_S = 60.0
INSTALL_S = 600.0

_STEP = re.compile(r"^<!-- step: (?P<does>.+?) -->\n(?:```\w*\n(?P<text>.*?)^```$)?", re.M | re.S)


@dataclass(frozen=True)
class Step:
    does: str
    text: str
    line: int


def steps() -> list[Step]:
    page = TUTORIAL.read_text()
    return [
        Step(found["does"], found["text"] or "", page.count("\n", 0, found.start()) + 1)
        for found in _STEP.finditer(page)
    ]


def keep_port() -> socket.socket:
    """A port that no other process is given while the socket is open; a server may listen there."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    return kept


class Reader:
    """A reader with terminals and both distributions as wheels, and nothing else of the project."""

    def __init__(self, folder: Path, wheels: Path, opened: ExitStack) -> None:
        self._folder = folder
        self._opened = opened
        kept = opened.enter_context(keep_port())
        self._port = int(kept.getsockname()[1])
        # Commands run in the first terminal, so that a later block finds its folder and variables.
        self._said = ""
        self.printed: list[str] = []
        # Running commands by their text.
        self.background: dict[str, subprocess.Popen[str]] = {}
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "WHEELS": str(wheels),
            "DUETIME_SERVER": f"127.0.0.1:{self._port}",
            "DUETIME_STORE_RESERVE_BYTES": "0",
            "DUETIME_STORE_DISK_USED_MAX": "1",
            **{name: value for name, value in os.environ.items() if name.lower().startswith(("pip_", "http", "ssl_"))},
        }

    @property
    def shop(self) -> Path:
        return self._folder / "shop"

    def do(self, step: Step) -> None:
        verb, _, name = step.does.partition(" ")
        if verb == "file":
            (self.shop / name).write_text(step.text)
        elif verb == "append":
            with (self.shop / name).open("a") as file:
                file.write(f"\n\n{step.text}")
        elif verb == "run":
            self._run(step)
        elif verb == "background":
            process = self.start(f". .venv/bin/activate\nexec env {self._with_port(step.text)}")
            self.background[step.text] = process
            if "duetime up" in step.text:
                self._wait_for_cluster(process)
        elif verb == "ctrl-c":
            self.ctrl_c(name)
        else:
            assert verb == "prints", step
            self._compare(step)

    def _run(self, step: Step) -> None:
        inside = "" if "cd shop" in step.text else "cd shop\n. .venv/bin/activate\n"
        script = f"set -eu\n{inside}{self._said}{step.text}"
        self._said += "".join(f"{line}\n" for line in step.text.splitlines() if line.startswith(("export ", "unset ")))
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=INSTALL_S if "pip install" in step.text else DEADLINE_S,
        )
        assert done.returncode == 0, f"line {step.line}:\n{done.stdout}{done.stderr}"
        self.printed = done.stdout.splitlines()

    def start(self, script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.shop,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._opened.callback(_end, process)
        return process

    def ctrl_c(self, command: str) -> None:
        """Ends the running command that begins with this."""
        (text,) = [text for text in self.background if text.startswith(command)]
        process = self.background.pop(text)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0

    def _wait_for_cluster(self, process: subprocess.Popen[str]) -> None:
        """Waits for the printed line, as a reader does."""
        give_up_at_s = time.monotonic() + DEADLINE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            assert time.monotonic() < give_up_at_s, "the cluster does not start"
            assert process.poll() is None, "the cluster has ended"
            time.sleep(0.1)

    def _with_port(self, command: str) -> str:
        return command.replace("duetime up", f"duetime up --port {self._port}")

    def unit(self, name: str) -> subprocess.Popen[str]:
        """Starts the command of a unit of systemd, with this reader's folder."""
        (command,) = re.findall(r"^ExecStart=(.*)$", (self.shop / name).read_text(), re.M)
        here = self._with_port(command).replace("/srv/shop", shlex.quote(str(self.shop)))
        return self.start(f"exec {here}")

    def _compare(self, step: Step) -> None:
        expected = step.text.splitlines()
        got = self.printed[-len(expected) :]
        patterns = [re.escape(line).replace("…", ".*") for line in expected]
        assert len(got) == len(expected), f"line {step.line}: {self.printed}"
        assert [line for line, pattern in zip(got, patterns, strict=True) if not re.fullmatch(pattern, line)] == []


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE_S)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Builds wheels without compilation, which takes most of a build's time."""
    folder = tmp_path / "dist"
    for place in (PROJECT, PROJECT / "sdk"):
        wheel = build(place, tmp_path / f"build-{place.name}", DUETIME_PURE="1")
        folder.mkdir(exist_ok=True)
        wheel.rename(folder / wheel.name)
    return folder


@pytest.fixture
def reader(tmp_path: Path, wheels: Path) -> Iterator[Reader]:
    folder = tmp_path / "home"
    folder.mkdir()
    with ExitStack() as opened:
        yield Reader(folder, wheels, opened)


def test_every_block_has_a_step() -> None:
    assert len([step for step in steps() if step.text]) == TUTORIAL.read_text().count("```") // 2 > 20


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_tutorial_can_be_followed(reader: Reader) -> None:
    for step in steps():
        reader.do(step)
    # "Stop the cluster in your terminal with Ctrl-C first."
    reader.ctrl_c("duetime up")
    assert not reader.background
    units = [reader.unit(name) for name in ("shop-worker.service", "duetime.service")]
    place = """python -c 'import tasks; tasks.place("61")'"""
    reader.do(Step("run", f"until TIME_TO_PAY=1s {place}; do sleep 0.2; done", 0))
    reader.do(Step("run", "until test -e mails/61-cancelled; do sleep 0.2; done", 0))
    for unit in units:
        unit.send_signal(signal.SIGTERM)
        assert unit.wait(DEADLINE_S) == 0
