"""Formats exceptions for log lines: class and location, without their texts.

The text of an unexpected exception may contain user data: a body, a token. For expected ones, the caller chooses the
text to log.
"""

import traceback
from types import TracebackType

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def name_of(error: BaseException) -> str:
    """The class; for the operating system's errors also their text, which contains no user data."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {error.strerror}" if isinstance(error, OSError) and error.strerror else name


def trace_of(error: BaseException) -> str:
    """The stack of an exception, after those of its causes, and before those of the members of a group."""
    told: list[str] = []
    _tell(error, told, set())
    return "".join(told).rstrip("\n")


def format_exception(exc_info: ExcInfo) -> str:
    """The interface for structlog."""
    return trace_of(exc_info[1])


def _tell(error: BaseException, told: list[str], seen: set[int]) -> None:
    seen.add(id(error))
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None and id(earlier) not in seen:
        _tell(earlier, told, seen)
        told.append(_CAUSE if error.__cause__ is not None else _CONTEXT)
    told += traceback.format_tb(error.__traceback__)
    told.append(name_of(error) + "\n")
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            if id(one) not in seen:
                _tell(one, told, seen)
