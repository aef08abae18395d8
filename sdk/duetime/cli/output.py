"""How commands print: JSON lines, tables, moments, lengths."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from duetime.client import message

# In a pipe a table is as wide as it needs to be: lines are not wrapped.
_PIPE_WIDTH = 1_000
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_BAR_WIDTH, _BAR_WIDTH_MIN = 40, 8
_EIGHTHS = " ▏▎▍▌▋▊▉"
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def print_json(value: dict[str, Any]) -> None:
    """One object on one line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=not _is_unicode()) + "\n")


def _is_unicode() -> bool:
    """Whether standard output takes any character."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


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
        print(f"{name:>{names}}  {count:>{counts},}  {bar}".rstrip())


def on_one_line(body: bytes, chars_max: int = 120) -> str:
    """A body for a terminal: no control characters, cut to a length."""
    text = body.decode("utf-8", "backslashreplace")
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[: chars_max + 1])
    return shown if len(shown) <= chars_max else shown[: chars_max - 1] + "…"
