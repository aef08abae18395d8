"""Values of JSON made into those of a type, by functions that are made once for each type.

A number is no text and a text no number, but for types that JSON has no form of its own for: datetime, date and time as
ISO 8601, UUID and Decimal as text, Enum as its value. Fields that a dataclass does not have are passed over, so that a
sender may be newer than its reader.
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any
from uuid import UUID

from duetime.client.errors import InvalidArgument

# Of a value and where it is, such as `items[2].price`; empty: it is the whole.
Convert = Callable[[Any, str], Any]


class Misfit(Exception):
    """A value is not of the type; the text says where, and not what it is."""


def _misfit(place: str, wanted: str, value: object) -> Misfit:
    return Misfit(f"{_named(place)} is {_NAMES.get(type(value), 'no value')}, not {wanted}")


def _named(place: str) -> str:
    return place.removeprefix(".") or "it"


_NAMES = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
_NAMES |= {int: "a number", float: "a number"}


def decoder_for(kind: Any) -> Convert:
    """Raises: InvalidArgument: it is no type that JSON can hold."""
    return _Decoders().of(kind)


class _Decoders:
    """Those of one type and of all that it consists of."""

    def __init__(self) -> None:
        # A dataclass may have fields of its own type.
        self._dataclasses: dict[type, Convert] = {}

    def of(self, kind: Any) -> Convert:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind is Any or kind is object:
            return lambda value, _: value
        if kind in _PLAIN:
            return _plain(*_PLAIN[kind])
        if kind in _READ:
            return _read(*_READ[kind])
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if origin is typing.Literal:
            return _literal(arguments)
        if origin is tuple and arguments[-1:] != (Ellipsis,):
            return self._tuple(arguments)
        if origin in _COLLECTIONS or kind in _COLLECTIONS:
            make = _COLLECTIONS[origin or kind]
            return self._each(make, arguments[0] if arguments else Any)
        if kind is dict or (origin is dict and arguments[0] is str):
            return self._mapping(arguments[1] if arguments else Any)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _enum(kind)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return self._dataclass(kind)
        raise InvalidArgument.of("body", f"{kind!r} is no type that JSON can hold")

    def _union(self, kinds: tuple[Any, ...]) -> Convert:
        converts = [self.of(one) for one in kinds]
        wanted = " or ".join("null" if one is types.NoneType else getattr(one, "__name__", str(one)) for one in kinds)

        def convert(value: Any, place: str) -> Any:
            misfits = []
            for one in converts:
                try:
                    return one(value, place)
                except Misfit as error:
                    misfits.append(error)
            # Of `Order | None` a wrong order says more than that it is neither.
            raise misfits[0] if len(kinds) == 2 and types.NoneType in kinds else _misfit(place, wanted, value)

        return convert

    def _each(self, make: Callable[[Any], Any], kind: Any) -> Convert:
        item = self.of(kind)

        def convert(value: Any, place: str) -> Any:
            if not isinstance(value, list):
                raise _misfit(place, "an array", value)
            return make(item(one, f"{place}[{n}]") for n, one in enumerate(value))

        return convert

    def _tuple(self, kinds: tuple[Any, ...]) -> Convert:
        items = [self.of(one) for one in kinds]

        def convert(value: Any, place: str) -> Any:
            if not isinstance(value, list) or len(value) != len(items):
                raise _misfit(place, f"an array of {len(items)}", value)
            return tuple(item(one, f"{place}[{n}]") for n, (item, one) in enumerate(zip(items, value, strict=True)))

        return convert

    def _mapping(self, kind: Any) -> Convert:
        item = self.of(kind)

        def convert(value: Any, place: str) -> Any:
            if not isinstance(value, dict):
                raise _misfit(place, "an object", value)
            return {name: item(one, f"{place}.{name}") for name, one in value.items()}

        return convert

    def _dataclass(self, kind: Any) -> Convert:
        if kind in self._dataclasses:
            return lambda value, place: self._dataclasses[kind](value, place)
        fields: dict[str, tuple[Convert, bool]] = {}

        def convert(value: Any, place: str) -> Any:
            if not isinstance(value, dict):
                raise _misfit(place, f"an object ({kind.__name__})", value)
            found = {}
            for name, (field, is_needed) in fields.items():
                if name in value:
                    found[name] = field(value[name], f"{place}.{name}")
                elif is_needed:
                    raise Misfit(f"{_named(f'{place}.{name}')} is missing")
            try:
                return kind(**found)
            except (TypeError, ValueError) as error:
                # Of its own `__post_init__`.
                raise Misfit(f"{_named(place)} is no {kind.__name__}: {error}") from None

        self._dataclasses[kind] = convert
        try:
            hints = typing.get_type_hints(kind)
        except NameError as error:
            raise InvalidArgument.of("body", f"{kind.__name__} has a field of an unknown type: {error}") from error
        for one in dataclasses.fields(kind):
            if one.init:
                has_default = one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING
                fields[one.name] = self.of(hints[one.name]), not has_default
        return convert


def _plain(wanted: str, *kinds: type) -> Convert:
    """For what JSON has itself. True is no number."""

    def convert(value: Any, place: str) -> Any:
        if type(value) not in kinds:
            raise _misfit(place, wanted, value)
        return value

    return convert


def _read(wanted: str, read: Callable[[str], Any], *kinds: type) -> Convert:
    """For what is a text in JSON."""

    def convert(value: Any, place: str) -> Any:
        try:
            if type(value) in kinds:
                return read(str(value))
        except (ValueError, InvalidOperation):
            pass
        raise _misfit(place, wanted, value)

    return convert


def _enum(kind: type[Enum]) -> Convert:
    def convert(value: Any, place: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _misfit(place, f"a value of {kind.__name__}", value) from None

    return convert


def _literal(values: tuple[Any, ...]) -> Convert:
    def convert(value: Any, place: str) -> Any:
        if not any(type(one) is type(value) and one == value for one in values):
            raise _misfit(place, f"one of {', '.join(map(repr, values))}", value)
        return value

    return convert


_COLLECTIONS: dict[Any, Callable[[Any], Any]] = {list: list, tuple: tuple, set: set, frozenset: frozenset}
_PLAIN: dict[Any, tuple[Any, ...]] = {
    type(None): ("null", type(None)),
    None: ("null", type(None)),
    bool: ("true or false", bool),
    int: ("a whole number", int),
    float: ("a number", float, int),
    str: ("a text", str),
}
_READ: dict[Any, tuple[Any, ...]] = {
    datetime: ("a time in ISO 8601", datetime.fromisoformat, str),
    date: ("a date in ISO 8601", date.fromisoformat, str),
    time: ("a time of day in ISO 8601", time.fromisoformat, str),
    UUID: ("a UUID", UUID, str),
    Decimal: ("a decimal number", Decimal, str, int, float),
}
