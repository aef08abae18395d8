"""Output of commands: JSON lines, YAML, tables, times, lengths, errors."""

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
from typing import TYPE_CHECKING, Any, NamedTuple

from duetime_format.printing import echo
from duetime_format.texts import printable, visible

from duetime.cli import yaml
from duetime.client import message
from duetime.client.errors import DueTimeError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Tables in a pipe are as wide as needed: lines are not wrapped.
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
    """The output format of a command."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Style(NamedTuple):
    """The output format, and whether tables keep all columns on a narrow terminal."""

    form: Form = Form.TABLE
    wide: bool = False


_AS_USUAL = Style()
# The style of the running command.
STYLE: ContextVar[Style] = ContextVar("style", default=_AS_USUAL)


def print_json(value: dict[str, Any]) -> None:
    """Prints one object: on one line of standard output, or as a YAML document if the command line requests YAML."""
    if STYLE.get().form is Form.YAML:
        echo(yaml.document(value).removesuffix("\n"))
    else:
        echo(json.dumps(value, ensure_ascii=not _is_unicode()))


def error_text(error: DueTimeError, how: str = "with --topic") -> str:
    """An error in one sentence; of an ambiguous id with how the command takes a topic."""
    return f"{error} {how}" if error.reason == "ID_AMBIGUOUS" else str(error)


def print_error(text: str) -> None:
    """Prints an error on one line of standard error. Errors of cluster processes already start with their names."""
    line = " ".join(text.split())
    echo(line if line.startswith("duetime ") else f"duetime: {line}", err=True)


def clear_screen() -> None:
    """Clears the terminal."""
    sys.stdout.write(_CLEAR)


class LogFormatter(logging.Formatter):
    """Formats log lines; their values may come from a message."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _is_unicode() -> bool:
    """Whether standard output accepts all characters."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table. Columns whose name starts with `#` hold numbers. If the terminal is too narrow, columns with a
    rank at the end of their name are left out, low ranks (`?1`) first; columns without a rank always stay."""
    # Imported where it is needed, as below: most commands print no table, and a start takes a fifth longer with it.
    from rich.console import Console

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


def fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], console: "Console") -> "tuple[Table, list[str]]":
    """The table with as many columns as fit on the console, and the names of the others."""
    from rich.cells import cell_len

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


def _table(columns: Sequence[re.Match[str]], rows: Sequence[Sequence[str]]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP_WIDTH - 1, 0, 0), header_style="bold"
    )
    for column in columns:
        # Values too long for any terminal, such as topic names, wrap.
        how: Any = {"justify": "right", "no_wrap": True} if column["number"] else {"overflow": "fold"}
        table.add_column(column["name"], **how)
    for row in rows:
        table.add_row(*row)
    return table


def iso(moment: datetime | None) -> str | None:
    """A time for machines, with milliseconds and time zone; UTC, as in the SDK."""
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment_or_none(at_ms: int) -> datetime | None:
    """The time of Unix milliseconds; 0 means none."""
    return message.moment(at_ms) if at_ms else None


def local(moment: datetime | None) -> str:
    """A time for people: local, with the time zone and milliseconds; options accept this form too."""
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
    """A length in at most two units: `3h 5m`, `12s`, `340ms`."""
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
    """Prints a bar for each row of a name and a count; the largest count has the longest bar. Lines fit a terminal of
    about 40 columns or more."""
    most = max((count for _, count in rows), default=0)
    names = max((len(name) for name, _ in rows), default=0)
    counts = max((len(f"{count:,}") for _, count in rows), default=0)
    room = shutil.get_terminal_size().columns - names - counts - 4
    width = max(min(room, _BAR_WIDTH), _BAR_WIDTH_MIN)
    for name, count in rows:
        # A count above 0 stays visible, however small.
        eighths = max(count * width * 8 // most, 1) if count else 0
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip() if _is_unicode() else "#" * -(-eighths // 8)
        echo(f"{name:>{names}}  {count:>{counts},}  {bar}".rstrip())


def on_one_line(body: bytes, chars_max: int = 120) -> str:
    """A body for a terminal: without control characters, cut to a length."""
    text = body.decode("utf-8", "backslashreplace")
    shown = printable(text[: chars_max + 1])
    return shown if len(shown) <= chars_max else shown[: chars_max - 1] + "…"
