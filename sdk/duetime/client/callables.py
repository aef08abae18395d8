"""Functions that users register: whether they are coroutine functions, and whether they accept the arguments."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from duetime.client.errors import InvalidArgument


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine; a callable object is judged by its `__call__`."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def check_callable(function: Any, field: str, *calls: Sequence[str]) -> int:
    """Returns the number of the first of `calls`, each a list of argument names, that the function accepts.

    Raises:
        InvalidArgument: it accepts none, or a call of it would do nothing; `field` names the argument in errors.
    """
    name = check_function(function, field)
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Some C code has no signature.
        return 0
    reason = ""
    for number, names in enumerate(calls):
        try:
            signature.bind(*names)
        except TypeError as error:
            reason = reason or str(error)
        else:
            return number
    wanted = " or ".join(f"({', '.join(names)})" for names in calls)
    raise InvalidArgument.of(field, f"{name}{signature} can't be called with {wanted}: {reason}")


def check_function(function: Any, field: str) -> str:
    """Returns the name of a function for errors.

    Raises:
        InvalidArgument: it is no function, or a call of it would do nothing.
    """
    name = getattr(function, "__qualname__", None) or repr(function)
    if isinstance(function, type) or not callable(function):
        what = "a class" if isinstance(function, type) else type(function).__name__
        raise InvalidArgument.of(field, f"{name} is {what}, not a function")
    for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        if kind(function) or kind(type(function).__call__):
            raise InvalidArgument.of(field, f"{name} is a generator, which would never run: remove its `yield`")
    return str(name)


def check_returned(result: object) -> object:
    """The result of a plain function.

    Raises:
        TypeError: the result is unfinished work: a coroutine, another awaitable, a Future, a generator or another
            iterator.
    """
    if result is None:
        return None
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the handler returned a coroutine: make it an `async def`")
    name = type(result).__qualname__
    if _is_lazy(result):
        raise TypeError(f"the handler returned {name}, which would never run: iterate over it in the handler")
    if hasattr(type(result), "__await__"):
        raise TypeError(f"the handler returned {name}, which would never be awaited: make it an `async def` that does")
    if isinstance(result, Future):
        raise TypeError("the handler returned a Future, which would be ignored: return its result()")
    return result


def _is_lazy(result: object) -> bool:
    """Whether a result does its work only while somebody iterates over it: a generator, `map()`, `filter()`. Files and
    database cursors are iterators too, but can be closed, and their work is done."""
    if isinstance(result, (Generator, AsyncGenerator)):
        return True
    return isinstance(result, (Iterator, AsyncIterator)) and not hasattr(result, "close")
