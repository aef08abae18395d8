"""Lengths of time as arguments: one rule for delays, timeouts, leases and others (duetime_format.lengths)."""

from datetime import timedelta
from functools import lru_cache

from duetime_format.lengths import Length, whole_ms

from duetime.client.errors import InvalidArgument

__all__ = ["Length", "limit_seconds", "milliseconds", "seconds"]


def milliseconds(length: Length, field: str, kind: type[InvalidArgument] = InvalidArgument) -> int:
    """Milliseconds of `"1h30m"` or a timedelta; `field` names the argument in errors, which are of `kind`.

    Raises:
        InvalidArgument: the length is neither, or negative.
    """
    try:
        # Other types may have no hash.
        return _known_ms(length) if isinstance(length, str | timedelta) else whole_ms(length)
    except ValueError as error:
        raise kind.of(field, str(error)) from None


def seconds(length: Length, field: str) -> float:
    """As `milliseconds`, in seconds. Raises: InvalidArgument."""
    return milliseconds(length, field) / 1000


def limit_seconds(length: Length | None, field: str) -> float | None:
    """The limit of a run, in seconds; None: there is none. Raises: InvalidArgument: also for 0, which none keeps."""
    found = None if length is None else seconds(length, field)
    if found == 0:
        raise InvalidArgument.of(field, f"{length!r} is below 1 ms; without a limit it is None")
    return found


@lru_cache(maxsize=1024)
def _known_ms(length: Length) -> int:
    return whole_ms(length)
