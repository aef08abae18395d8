"""Times of cron expressions in time zones: calendar by cronsim, zones by the `tzdata` package.

An expression has five fields (minute, hour, day of month, month, day of week), six with a first one for seconds, or is
one of `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly` and `@annually`. Fields take `*`, numbers,
English names of three letters, lists, ranges and steps; days take `L` and `LW` (last day, last weekday), days of the
week `5L` (the last Friday) and `1#2` (the second Monday). If both kinds of days are restricted, either one matches.

Two nights of a year differ, as in Debian's cron:

- An expression with a fixed hour (neither minute nor hour begins with `*`) occurs once a day. A time within the gap of
  a clock set forward occurs at the end of the gap, or not at all (`in_gap="skip"`). A repeated time occurs in the first
  pass, or in both (`in_fold="both"`).
- One with a wildcard follows real time: each instant whose wall time matches, so none in a gap and two in a fold.

cronsim reads only wall times here. With a zone of its own, version 2.8 returns past times in the second pass of a fold
(`findings/cronsim-repeated-hour.sh`).
"""

import copy
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Literal
from zlib import crc32
from zoneinfo import ZoneInfo

import tzdata
from cronsim import CronSim, CronSimError
from duetime_format.limits import CRON_CHARS_MAX

InGap = Literal["end", "skip"]
InFold = Literal["first", "both"]

_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS = (5, 6)
# No clock was ever set back by more than a day.
_FOLD_MAX = timedelta(hours=26)
_NO_TIME = timedelta(0)
_SECOND = timedelta(seconds=1)
_EPOCH = datetime(1970, 1, 1)


class CronTimes:
    """The occurrences of one expression in one zone. It holds no position, so threads may share it."""

    def __init__(self, expression: str, zone: str, in_gap: InGap, in_fold: InFold) -> None:
        """Take checked arguments; see `cron_times`."""
        self.expression = expression
        self.zone = zone
        self._zone = _zone(zone)
        self._calendar = _calendar(expression)
        fixed = not any(field.startswith("*") for field in self._calendar.parts[1:3])
        self._in_gap: InGap = in_gap if fixed else "skip"
        self._in_fold: InFold = in_fold if fixed else "both"

    def after(self, moment_ms: int) -> int:
        """Return the first occurrence later than a moment; both are UTC epoch times in ms.

        Raises:
            ValueError: None occurs in the fifty years after it.

        """
        moment_s = moment_ms // 1000
        moment = datetime.fromtimestamp(moment_s, UTC)
        local = moment.astimezone(self._zone)
        if (soon := self._before_change(local, moment_s)) is not None:
            return soon * 1000
        # If the clock will be set back soon, instants after this one have earlier wall times.
        set_back = _offset(local) - _offset((moment + _FOLD_MAX).astimezone(self._zone))
        found: int | None = None
        for wall in self._walls(local.replace(tzinfo=None) - max(set_back, _NO_TIME)):
            earliest_s, instants = self._instants(wall)
            for instant in instants:
                if instant > moment_s and (found is None or instant < found):
                    found = instant
            if found is not None and earliest_s >= found:
                break
        if found is None:
            message = f"cron expression {self.expression!r} has no time in the fifty years after {moment:%Y-%m-%d}"
            raise ValueError(message)
        return found * 1000

    def _before_change(self, local: datetime, moment_s: int) -> int | None:
        """Return the next instant if it is soon, and the clock does not change before it: earlier walls are then past.

        It is the common case, and without it a search in the day before a change would walk an hour of seconds. Within
        the time of one change equal offsets mean none; in a year they may hide two.
        """
        wall = next(self._walls(local.replace(tzinfo=None)), None)
        instants = () if wall is None else self._instants(wall)[1]
        if instants and 0 < instants[0] - moment_s <= _FOLD_MAX.total_seconds():
            return instants[0] if self._offset_at(instants[0]) == _offset(local) else None
        return None

    def _walls(self, start: datetime) -> Iterator[datetime]:
        """Yield matching wall times later than one."""
        calendar = copy.copy(self._calendar)
        calendar.dt = start
        return calendar

    def _instants(self, wall: datetime) -> tuple[int, tuple[int, ...]]:
        """Return a lower bound for the instants of this and of later wall times, and the instants of this one, in s."""
        before = _offset(wall.replace(tzinfo=self._zone))
        after = _offset(wall.replace(tzinfo=self._zone, fold=1))
        wall_s = (wall - _EPOCH) // _SECOND
        early, late = sorted((wall_s - before // _SECOND, wall_s - after // _SECOND))
        if before == after:
            return early, (early,)
        if before > after:
            return early, (early, late) if self._in_fold == "both" else (early,)
        end = self._gap_end(early, late)
        return end, (end,) if self._in_gap == "end" else ()

    def _gap_end(self, low: int, high: int) -> int:
        """Return the first second with the later offset; it is after `low`, and `high` at the latest."""
        before = self._offset_at(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset_at(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _offset_at(self, moment_s: int) -> timedelta:
        return _offset(datetime.fromtimestamp(moment_s, self._zone))


@lru_cache(maxsize=2_048)
def cron_times(expression: str, zone: str = "UTC", *, in_gap: InGap = "end", in_fold: InFold = "first") -> CronTimes:
    """Return the times of a cron expression (at most 256 characters) in a zone of the IANA database.

    Raises:
        ValueError: The expression, the zone or a policy is invalid; the text names the field.

    """
    if in_gap not in ("end", "skip"):
        message = f"in_gap is {in_gap!r}, not 'end' or 'skip'"
        raise ValueError(message)
    if in_fold not in ("first", "both"):
        message = f"in_fold is {in_fold!r}, not 'first' or 'both'"
        raise ValueError(message)
    return CronTimes(expression, zone, in_gap, in_fold)


def _calendar(expression: str) -> CronSim:
    if len(expression) > CRON_CHARS_MAX:
        message = f"cron expression has {len(expression)} characters; the limit is {CRON_CHARS_MAX}"
        raise ValueError(message)
    named = _NICKNAMES.get(expression.strip().lower(), expression)
    count = len(named.split())
    if count not in _FIELDS:
        message = f"cron expression {expression!r} has {count} fields, not 5 (minute hour day month weekday) or 6"
        raise ValueError(message)
    try:
        return CronSim(named, _EPOCH)
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")
        message = f"cron expression {expression!r}: invalid {field}"
        raise ValueError(message) from error


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    names = _zone_names()
    if name not in names:
        near = get_close_matches(name.lower(), [known.lower() for known in names], n=1)
        hint = next((f"; did you mean {known}?" for known in names if [known.lower()] == near), "")
        message = f"unknown time zone {name!r}{hint}"
        raise ValueError(message)
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def zones_version() -> str:
    """The release of the zones, such as "2026a"."""
    version: str = tzdata.IANA_VERSION
    return version


def zone_digests() -> dict[str, str]:
    """The CRC-32 of each zone's rules, in hexadecimal digits. Reads 600 small files, in some 40 ms."""
    folder = files("tzdata").joinpath("zoneinfo")
    return {name: f"{crc32(folder.joinpath(*name.split('/')).read_bytes()):08x}" for name in sorted(_zone_names())}


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split())


def _offset(moment: datetime) -> timedelta:
    offset = moment.utcoffset()
    assert offset is not None
    return offset
