"""How commands print: JSON lines, tables, moments, lengths."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from duetime.client import message

# In a pipe a table is as wide as it needs to be: lines are not wrapped.
_PIPE_WIDTH = 1_000
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def print_json(value: dict[str, Any]) -> None:
    """One object on one line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; columns whose name starts with `#` hold numbers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PIPE_WIDTH)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    print("\n".join(line for line in lines if line))


def iso(moment: datetime | None) -> str | None:
    """For machines: in UTC, with milliseconds."""
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment_or_none(at_ms: int) -> datetime | None:
    """The moment of Unix milliseconds; 0 stands for none."""
    return message.moment(at_ms) if at_ms else None


def local(moment: datetime | None) -> str:
    """For people: in their time zone, with milliseconds, and with the date unless it is today."""
    if moment is None:
        return "-"
    here = moment.astimezone()
    day = "" if here.date() == datetime.now().astimezone().date() else f"{here:%Y-%m-%d} "
    return f"{day}{here:%H:%M:%S}.{here.microsecond // 1000:03d}"


def length(length_ms: int) -> str:
    """`30m` for 1,800,000: in the largest unit that divides it."""
    for unit, unit_ms in _UNITS_MS:
        if length_ms >= unit_ms and length_ms % unit_ms == 0:
            return f"{length_ms // unit_ms}{unit}"
    return f"{length_ms}ms"


def on_one_line(body: bytes, chars_max: int = 120) -> str:
    """A body for a terminal: no control characters, cut to a length."""
    text = body.decode("utf-8", "backslashreplace")
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[: chars_max + 1])
    return shown if len(shown) <= chars_max else shown[: chars_max - 1] + "…"
