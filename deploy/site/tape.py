"""Records the demonstration as a picture: `docs/pictures/tape.svg`.

`make tape` runs real commands on a terminal of its own and draws their output; nothing is written by hand.
"""

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from deploy.site.documents import PROJECT

TAPE = PROJECT / "docs" / "pictures" / "tape.svg"
COLUMNS, ROWS = 104, 40
DEADLINE_S = 60.0
PORT = 9800

_ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n")
# This part would be fetched from another host.
_FONTS = re.compile(r"\s*@font-face \{\{.*?\}\}", re.S)


class Screen:
    """The lines of a terminal, for the output of rich's spinner and our commands: with colours and cursor moves."""

    def __init__(self) -> None:
        self._lines: list[str] = [""]
        self._row = 0

    def write(self, text: str) -> None:
        at = 0
        for found in _ESCAPE.finditer(text):
            self._lines[self._row] += text[at : found.start()]
            at = found.end()
            self._control(found)
        self._lines[self._row] += text[at:]

    def _control(self, found: re.Match[str]) -> None:
        if found[0] == "\n":
            self._row += 1
            if self._row == len(self._lines):
                self._lines.append("")
        elif found[2] == "A":
            self._row = max(self._row - int(found[1] or 1), 0)
        elif found[2] == "K":
            self._lines[self._row] = ""
        elif found[2] == "m":
            self._lines[self._row] += found[0]

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._lines]


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment
        )
        os.close(theirs)
        self._screen = Screen()
        self._all = ""

    def read_until(self, done: Callable[[str], bool]) -> list[str]:
        """The screen once `done` holds for all output, or at its end."""
        give_up_at_s = time.monotonic() + DEADLINE_S
        while not done(self._all):
            readable, _, _ = select.select([self._ours], [], [], max(give_up_at_s - time.monotonic(), 0))
            if not readable:
                raise TimeoutError(f"it only wrote {self._all!r}")
            try:
                part = os.read(self._ours, 65_536).decode()
            except OSError:  # it has ended
                break
            self._all += part
            self._screen.write(part)
        return self._screen.lines()

    def end(self) -> None:
        self._process.terminate()
        try:
            self.read_until(lambda _: False)
        finally:
            self._process.wait()
            os.close(self._ours)


def session(folder: Path, duetime: Path) -> Iterator[str]:
    """The lines of the tape: a prompt with each command, and its output."""
    yield "$ duetime up --demo"
    cluster = Terminal([str(duetime), "up", "--demo", "--port", str(PORT)], folder)
    try:
        shown = cluster.read_until(lambda text: "Try next" in text)
        yield from shown[: next(number for number, line in enumerate(shown) if "stays up" in line)]
        receipt = yield from _shown(folder, duetime, "send", "orders", "cancel 42", "--delay", "30m", "--key", "42")
        yield from _shown(folder, duetime, "pending", "--topic", "orders")
        yield from _shown(folder, duetime, "cancel", next(iter(re.findall(r"\b[0-9A-F]{32}\b", receipt))))
    finally:
        cluster.end()


def _shown(folder: Path, duetime: Path, *arguments: str) -> Generator[str, None, str]:
    words = [f'"{word}"' if " " in word else word for word in arguments]
    yield f"$ duetime {' '.join(words)}"
    terminal = Terminal([str(duetime), *arguments], folder)
    lines = terminal.read_until(lambda _: False)
    terminal.end()
    lines = [line for line in lines if line]
    yield from lines
    yield ""
    return "\n".join(lines)


def drawn(lines: list[str]) -> str:
    """The lines as SVG that loads nothing."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        text = Text.from_ansi(line)
        if line.startswith("$ "):
            text.stylize("bold cyan")
        console.print(text, soft_wrap=True)
    return console.export_svg(
        title="duetime", theme=DIMMED_MONOKAI, code_format=_FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="tape"
    )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="shop-") as folder:
        lines = list(session(Path(folder), Path(sys.executable).with_name("duetime")))
        # The path of temporary files on this machine is irrelevant.
        lines = [line.replace(str(Path(folder).resolve()), "/srv/shop") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    TAPE.write_text(drawn(lines) + "\n")
    print(f"{TAPE.relative_to(PROJECT)}: {len(lines)} lines")


if __name__ == "__main__":
    main()
