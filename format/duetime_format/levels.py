"""The delay level table: a cluster value, equal on every node and part of the data's meaning."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from duetime_format.lengths import written

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LEVEL_COUNT_MAX = 256
DELAY_MS_MAX = 10 * 366 * 86_400_000
# The limit in errors.
DELAY_MAX = f"{written(DELAY_MS_MAX)} (ten years)"
DELAY_DIGITS_MAX = 12


def parse_delay_ms(text: str) -> int:
    """Milliseconds of `30s`, `5m`, `2h` or `1d`: a whole number above 0 and its unit.

    Raises:
        ValueError: anything else, or more than ten years.
    """
    number, unit = text[:-1], text[-1:]
    if unit not in UNIT_MS or not (number.isascii() and number.isdigit()) or not number.strip("0"):
        raise ValueError(f"delay {text!r} is not a whole number above 0 followed by s, m, h or d")
    # Python rejects numbers of thousands of digits.
    delay_ms = int(number) * UNIT_MS[unit] if len(number) <= DELAY_DIGITS_MAX else DELAY_MS_MAX + 1
    if delay_ms > DELAY_MS_MAX:
        raise ValueError(f"delay {text!r} is longer than ten years")
    return delay_ms


@dataclass(frozen=True)
class DelayLevels:
    """Delays by level, 1 to `highest`. Level n is lane n and queue n - 1 of SCHEDULE_TOPIC_XXXX."""

    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "DelayLevels":
        """Parses `1s 5s 10s`, separated by blanks.

        Raises:
            ValueError: no level, too many, a malformed one, or the same delay twice.
        """
        names = tuple(text.split())
        if not 1 <= len(names) <= LEVEL_COUNT_MAX:
            raise ValueError(f"{len(names)} delay levels; the table has 1 to {LEVEL_COUNT_MAX}")
        delays = [parse_delay_ms(name) for name in names]
        if len(set(delays)) != len(delays):
            raise ValueError(f"delay levels {text!r} hold one delay twice")
        return cls(names)

    @cached_property
    def delays_ms(self) -> Sequence[int]:
        return tuple(parse_delay_ms(name) for name in self.names)

    @cached_property
    def level_by_ms(self) -> dict[int, int]:
        return {delay_ms: index + 1 for index, delay_ms in enumerate(self.delays_ms)}

    @property
    def highest(self) -> int:
        return len(self.names)

    def delay_ms(self, level: int) -> int:
        """Delay of a level, 1 to `highest`."""
        return self.delays_ms[level - 1]

    def delay_at_most_ms(self, level: int) -> int:
        """As `delay_ms`; for a level above `highest`, the highest's."""
        return self.delay_ms(min(level, self.highest))

    def level_of(self, delay_ms: int) -> int | None:
        """The level with exactly this delay."""
        return self.level_by_ms.get(delay_ms)

    def __str__(self) -> str:
        return " ".join(self.names)
