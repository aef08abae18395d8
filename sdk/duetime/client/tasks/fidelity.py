"""Comparison of an argument with the value that its run will get."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

from duetime.client.plain import has_fields, is_pydantic

_IDENTITY: Any = object.__eq__


def change(sent: Any, received: Any, place: str) -> str:
    """The first difference of a value and its copy from JSON, without the values; empty: the copy is equal.

    A value may arrive as the type of its annotation: a tuple as a list, and an object without an annotation as a dict.
    """
    kind = type(received)
    if type(sent) is not kind:
        if isinstance(sent, kind) and has_fields(kind):
            return f"{place} is {type(sent).__name__}, and would arrive as {kind.__name__}"
        if not (isinstance(sent, list | tuple) and isinstance(received, list | tuple)):
            return ""
    if isinstance(received, list | tuple):
        pairs = [(one, other, f"{place}[{n}]") for n, (one, other) in enumerate(zip(sent, received, strict=True))]
    elif kind is dict:
        pairs = [(one, received[key], f"{place}.{key}") for key, one in sent.items() if key in received]
    elif has_fields(kind):
        pairs = [(getattr(sent, name), getattr(received, name), f"{place}.{name}") for name in _fields(kind)]
    elif kind is datetime and sent.tzinfo is not None:
        # Times of two zones are never equal in the hour that a clock repeats.
        return "" if sent.astimezone(UTC) == received.astimezone(UTC) else f"{place} would arrive with another time"
    elif sent == received or sent != sent or kind.__eq__ is _IDENTITY:
        return ""  # equal, not a number, or of a class that compares nothing
    else:
        return f"{place} is {kind.__name__}, and would arrive with another value"
    return next((found for one, other, inner in pairs if (found := change(one, other, inner))), "")


def _fields(kind: Any) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind) if one.compare]
    assert is_pydantic(kind)
    return list(kind.__pydantic_fields__)
