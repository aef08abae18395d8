"""JSON forms of values without a native one, and pydantic models."""

import dataclasses
from datetime import date, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID


def plain(value: Any) -> Any:
    """Converts a value for `json.dumps(default=)`. Raises: TypeError: it has no form in JSON."""
    kind: Any = type(value)
    if is_object(value) and is_pydantic(kind):
        return adapter(kind).dump_python(value, mode="json")
    if is_object(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return list(value)
    raise TypeError(f"JSON can't hold {type(value).__name__}")


def is_object(value: object) -> bool:
    """Whether it is an instance of a dataclass or of a pydantic model."""
    return not isinstance(value, type) and (dataclasses.is_dataclass(value) or is_pydantic(type(value)))


def is_pydantic(kind: Any) -> bool:
    """Whether it is a pydantic model or a pydantic dataclass."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def has_fields(kind: Any) -> bool:
    """Whether it is a dataclass or a pydantic model."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or is_pydantic(kind))


@lru_cache(maxsize=256)
def adapter(kind: Any) -> Any:
    """The pydantic TypeAdapter of a type; pydantic is imported by its first use."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def faults_of(error: Any) -> str:
    """The faults of a pydantic ValidationError without the values; its own text includes them."""
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in faults)
