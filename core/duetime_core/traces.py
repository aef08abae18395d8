"""Exceptions as log lines have them: of which class, and where they came up, without their texts.

The text of an unexpected exception has the value that it stumbled over: a body, a token. What is told of an expected
one is the choice of whoever logs it.
"""

import traceback
from types import TracebackType

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def name_of(error: BaseException) -> str:
    """The class; of the operating system's errors also what it says, which has nothing of a caller in it."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {error.strerror}" if isinstance(error, OSError) and error.strerror else name


def trace_of(error: BaseException) -> str:
    """The stack of an exception, of its causes before it, and of the members of a group after it."""
    told: list[str] = []
    _tell(error, told, set())
    return "".join(told).rstrip("\n")


def format_exception(exc_info: ExcInfo) -> str:
    """As structlog asks for it."""
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
