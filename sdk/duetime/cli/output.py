"""How commands print: JSON lines, YAML, tables, moments, lengths, errors."""

import json
import logging
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from duetime_format.texts import printable, visible
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from duetime.cli import yaml
from duetime.client import message
from duetime.client.errors import DueTimeError

# In a pipe a table is as wide as it needs to be: lines are not wrapped.
_PIPE_WIDTH = 1_000
_GAP_WIDTH = 2
_CLEAR = "\x1b[H\x1b[2J"
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_BAR_WIDTH, _BAR_WIDTH_MIN = 40, 8
_EIGHTHS = " ▏▎▍▌▋▊▉"
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
# `#late ms?3`: a column of numbers, of rank 3.
_COLUMN = re.compile(r"(?P<number>#?)(?P<name>[^?]*)(?:\?(?P<rank>[0-9]+))?")


class Form(StrEnum):
    """The form of what a command prints."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Style(NamedTuple):
    """The form of the output, and whether tables keep all columns however narrow the terminal is."""

    form: Form = Form.TABLE
    wide: bool = False


_AS_USUAL = Style()
# Of the command that runs.
STYLE: ContextVar[Style] = ContextVar("style", default=_AS_USUAL)


def print_json(value: dict[str, Any]) -> None:
    """One object: on one line of standard output, or as a YAML document where the command line asks for YAML."""
    if STYLE.get().form is Form.YAML:
        echo(yaml.document(value).removesuffix("\n"))
    else:
        echo(json.dumps(value, ensure_ascii=not _is_unicode()))


def echo(text: str = "", *, err: bool = False, flush: bool = False) -> None:
    """A line or several of standard output, or of standard error. All texts of commands pass here: a sender's control
    characters, which a terminal would obey, are escaped."""
    print(visible(text.replace("\r\n", "\n")), file=sys.stderr if err else sys.stdout, flush=flush or err)


def error_text(error: DueTimeError, how: str = "with --topic") -> str:
    """An error in one sentence; of an ambiguous id with how the command takes a topic."""
    return f"{error} {how}" if error.reason == "ID_AMBIGUOUS" else str(error)


def print_error(text: str) -> None:
    """On one line of standard error. The error of a process of the cluster names the process already."""
    line = " ".join(text.split())
    echo(line if line.startswith("duetime ") else f"duetime: {line}", err=True)


def clear_screen() -> None:
    """Clears the terminal."""
    sys.stdout.write(_CLEAR)


class LogFormatter(logging.Formatter):
    """Log lines, whose values may be a sender's."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _is_unicode() -> bool:
    """Whether standard output takes any character."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table. Columns whose name starts with `#` hold numbers. Where the terminal is too narrow, columns whose name
    ends with a rank are left out, those of low rank (`?1`) first; without a rank a column always stays."""
    console = Console(highlight=False, markup=False)
    if STYLE.get().wide or not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PIPE_WIDTH)
    table, left_out = fitting(columns, rows, console)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    print("\n".join(line for line in lines if line))
    if left_out:
        echo(f"(too narrow for: {', '.join(left_out)}; --wide shows all)")


def fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> tuple[Table, list[str]]:
    """The table with as many columns as the console has room for, and the names of those left out."""
    rows = [[printable(cell) for cell in row] for row in rows]
    parsed = [match for column in columns if (match := _COLUMN.fullmatch(column))]
    texts = [[match["name"], *(row[number] for row in rows)] for number, match in enumerate(parsed)]
    widths = [max(map(cell_len, column)) + _GAP_WIDTH for column in texts]
    kept = {number for number, match in enumerate(parsed) if not match["rank"]}
    room = console.width + _GAP_WIDTH - sum(widths[number] for number in kept)
    for number in sorted(set(range(len(parsed))) - kept, key=lambda number: -int(parsed[number]["rank"])):
        if widths[number] <= room:
            room -= widths[number]
            kept.add(number)
    shown = [parsed[number] for number in sorted(kept)]
    table = _table(shown, [[row[number] for number in sorted(kept)] for row in rows])
    return table, [match["name"] for match in parsed if match not in shown]


def _table(columns: Sequence[re.Match[str]], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP_WIDTH - 1, 0, 0), header_style="bold"
    )
    for column in columns:
        # What is too long for any terminal, such as the name of a topic, goes on in the next line.
        how: Any = {"justify": "right", "no_wrap": True} if column["number"] else {"overflow": "fold"}
        table.add_column(column["name"], **how)
    for row in rows:
        table.add_row(*row)
    return table


def iso(moment: datetime | None) -> str | None:
    """With milliseconds and time zone; for machines in UTC, as the SDK's moments are."""
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment_or_none(at_ms: int) -> datetime | None:
    """The moment of Unix milliseconds; 0 stands for none."""
    return message.moment(at_ms) if at_ms else None


def local(moment: datetime | None) -> str:
    """For people: in their time zone, which it names, with milliseconds; options that take a time take it too."""
    return iso(None if moment is None else moment.astimezone()) or "-"


def length(length_ms: int) -> str:
    """`30m` for 1,800,000: in the largest unit that divides it."""
    for unit, unit_ms in _UNITS_MS:
        if length_ms >= unit_ms and length_ms % unit_ms == 0:
            return f"{length_ms // unit_ms}{unit}"
    return f"{length_ms}ms"


def now_ms() -> int:
    """This machine's clock, Unix milliseconds."""
    return time.time_ns() // 1_000_000


def about(length_ms: int) -> str:
    """In at most two units: `3h 5m`, `12s`, `340ms`."""
    if length_ms < 1_000:
        return f"{length_ms}ms"
    rest = length_ms // 1_000
    parts: list[str] = []
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, seconds)
        if count and len(parts) < 2:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


def size(count: int) -> str:
    """`1.2 GB` for 1,234,567,890."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_BYTE_UNITS[unit]}" if unit else f"{count} B"


def print_chart(rows: Sequence[tuple[str, int]]) -> None:
    """A bar for each row of a name and a count; the longest is that of the largest count. Lines fit a terminal
    of some 40 columns or more."""
    most = max((count for _, count in rows), default=0)
    names = max((len(name) for name, _ in rows), default=0)
    counts = max((len(f"{count:,}") for _, count in rows), default=0)
    room = shutil.get_terminal_size().columns - names - counts - 4
    width = max(min(room, _BAR_WIDTH), _BAR_WIDTH_MIN)
    for name, count in rows:
        # A count above 0 is seen, however small it is.
        eighths = max(count * width * 8 // most, 1) if count else 0
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip() if _is_unicode() else "#" * -(-eighths // 8)
        echo(f"{name:>{names}}  {count:>{counts},}  {bar}".rstrip())


def on_one_line(body: bytes, chars_max: int = 120) -> str:
    """A body for a terminal: no control characters, cut to a length."""
    text = body.decode("utf-8", "backslashreplace")
    shown = printable(text[: chars_max + 1])
    return shown if len(shown) <= chars_max else shown[: chars_max - 1] + "…"
