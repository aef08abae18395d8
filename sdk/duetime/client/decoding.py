"""Converts JSON to values of a type, by functions that are compiled once for each type.

Numbers and texts are never converted into each other. Types without their own form in JSON use another one: datetime,
date and time are ISO 8601, UUID and Decimal are text, an Enum is its value. Unknown fields of a dataclass are skipped,
so that a sender may be newer than its reader.

The members of a union must be distinguishable by their JSON alone (see `_Decoders._check_union`): otherwise the first
match would silently read one type as another.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum, Flag
from itertools import combinations
from typing import Any
from uuid import UUID

from duetime.client.errors import InvalidArgument
from duetime.client.plain import adapter, faults_of, has_fields, is_pydantic, plain

# Takes a value and its place, such as `items[2].price`; empty: the whole body.
Convert = Callable[[Any, str], Any]


class TypeMismatch(Exception):
    """A value does not fit the type; the text has its place, and never the value."""


def _misfit(place: str, wanted: str, value: object) -> TypeMismatch:
    return TypeMismatch(f"{_named(place)} is {_NAMES.get(type(value), 'no value')}, not {wanted}")


def _named(place: str) -> str:
    return place.removeprefix(".") or "it"


_NAMES = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
_NAMES |= {int: "a number", float: "a number"}
# As in `_forms`.
_FORMS = _NAMES | {int: "number", float: "number"}


def decoder_for(kind: Any) -> Convert:
    """Raises: InvalidArgument: JSON can't hold the type."""
    return _Decoders().of(kind)


class _Decoders:
    """The decoders of one type and all its parts."""

    def __init__(self) -> None:
        # Cached: a dataclass may have fields of its own type.
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
            return _literal(kind)
        if origin is tuple and arguments[-1:] != (Ellipsis,):
            return self._tuple(arguments)
        if origin in _COLLECTIONS or kind in _COLLECTIONS:
            make = _COLLECTIONS[origin or kind]
            return self._each(make, arguments[0] if arguments else Any)
        if kind is dict or origin is dict:
            return self._mapping(*(arguments or (str, Any)))
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _enum(kind)
        if is_pydantic(kind):
            return _model(kind)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return self._dataclass(kind)
        if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named_tuple(kind)
        raise InvalidArgument.of("body", f"JSON can't hold {kind!r}")

    def _union(self, kinds: tuple[Any, ...]) -> Convert:
        # A number is read as int if the union has it, and not as Decimal.
        kinds = tuple(sorted(kinds, key=lambda one: one not in _PLAIN))
        self._check_union(kinds)
        converts = [_tagged(self.of(one), _tags_among(one, kinds)) for one in kinds]
        fault_of = _union_faults(kinds)

        def convert(value: Any, place: str) -> Any:
            misfits = []
            for one in converts:
                try:
                    return one(value, place)
                except TypeMismatch as error:
                    misfits.append(error)
            raise fault_of(value, place, misfits)

        return convert

    def _check_union(self, kinds: tuple[Any, ...]) -> None:
        """Raises: InvalidArgument: the JSON of two members may be the same."""
        for one, other in combinations(kinds, 2):
            if not self._are_distinct(one, other):
                hint = ""
                if has_fields(one) and has_fields(other):
                    hint = "; give both a field of one name with different Literals, such as `kind: Literal['cancel']`"
                raise InvalidArgument.of(
                    "body", f"{_name(one)} and {_name(other)} of a union can't be distinguished in JSON{hint}"
                )

    def _are_distinct(self, one: Any, other: Any) -> bool:
        """Whether no JSON fits both, or both decode it to the same value."""
        for kind, second in ((one, other), (other, one)):
            values = _values_of(kind)
            if values is not None:
                same = _is_as_in_json(kind) and (_is_as_in_json(second) or second in _PLAIN)
                return same or not any(self._fits(value, second) for value in values)
        if not _forms(one) & _forms(other) or (one in _PLAIN and other in _PLAIN):
            return True
        if Decimal in (one, other) and {one, other} & {int, float}:
            return True
        if has_fields(one) and has_fields(other):
            return bool(_distinct_tags(one, other))
        origins = typing.get_origin(one), typing.get_origin(other)
        (*keys, item), (*other_keys, other_item) = typing.get_args(one) or (None,), typing.get_args(other) or (None,)
        # An empty collection decodes to the same value by either type.
        is_same = origins[0] is origins[1] and origins[0] in (list, set, frozenset, dict) and keys == other_keys
        return is_same and self._are_distinct(item, other_item)

    def _fits(self, value: Any, kind: Any) -> bool:
        try:
            self.of(kind)(value, "")
        except TypeMismatch:
            return False
        return True

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

    def _named_tuple(self, kind: Any) -> Convert:
        hints = typing.get_type_hints(kind)
        items = self._tuple(tuple(hints.get(name, Any) for name in kind._fields))
        return lambda value, place: kind(*items(value, place))

    def _mapping(self, key_kind: Any, kind: Any) -> Convert:
        item = self.of(kind)
        key = _key(key_kind)

        def convert(value: Any, place: str) -> Any:
            if not isinstance(value, dict):
                raise _misfit(place, "an object", value)
            return {key(name, place): item(one, f"{place}.{name}") for name, one in value.items()}

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
                    raise TypeMismatch(f"{_named(f'{place}.{name}')} is missing")
            try:
                return kind(**found)
            except (TypeError, ValueError) as error:
                # Raised by `__post_init__`.
                raise TypeMismatch(f"{_named(place)} is not a valid {kind.__name__}: {error}") from None

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
    """A decoder for JSON's own types. True is not a number."""

    def convert(value: Any, place: str) -> Any:
        if type(value) not in kinds:
            raise _misfit(place, wanted, value)
        return value

    return convert


def _read(wanted: str, read: Callable[[str], Any], *kinds: type) -> Convert:
    """A decoder for types whose JSON is a text."""

    def convert(value: Any, place: str) -> Any:
        try:
            if type(value) in kinds:
                return read(str(value))
        except (ValueError, InvalidOperation):
            pass
        raise _misfit(place, wanted, value)

    return convert


def _enum(kind: type[Enum]) -> Convert:
    try:
        members = {_canonical(member.value): member for member in kind}
    except (TypeError, ValueError) as error:
        raise InvalidArgument.of("body", f"{kind.__name__} has a value that JSON can't hold: {error}") from error
    if len(members) < len(kind):
        raise InvalidArgument.of("body", f"{kind.__name__} has members that can't be distinguished in JSON")

    def convert(value: Any, place: str) -> Any:
        member = members.get(_canonical(value))
        if member is not None:
            return member
        try:
            # Combinations of flags, and values found by the class itself (`_missing_`).
            if type(value) in (str, int, float):
                return kind(value)
        except ValueError:
            pass
        raise _misfit(place, f"a value of {kind.__name__}", value)

    return convert


def _canonical(value: Any) -> str:
    """A value's JSON, the same for equal values: 1 and 1.0 are one number, and True is not a number."""
    text = json.dumps(value, sort_keys=True, default=plain)
    return text.removesuffix(".0") if type(value) is float else text


def _key(kind: Any) -> Callable[[str, str], Any]:
    """A decoder for the names of an object. JSON allows only texts there: numbers are written as texts.

    Raises:
        InvalidArgument: the json module writes no keys of this type.
    """
    if kind is str or kind is Any:
        return lambda name, _: name
    values = _values_of(kind)
    if values is None and kind not in (int, float):
        raise InvalidArgument.of("body", f"{_name(kind)} can't be a JSON key: use str, int, float or an Enum")
    names = {} if values is None else {_key_text(value): value for value in values}
    make: Convert = _literal(kind) if _is_literal(kind) else lambda value, _: kind(value)

    def convert(name: str, place: str) -> Any:
        try:
            if values is not None:
                return make(names[name], place)
            number = kind(name)
            if kind is float or str(number) == name:
                return number
        except (ValueError, KeyError):
            pass
        raise TypeMismatch(f"{_named(place)} has a key that is not {_name(kind)}")

    return convert


def _key_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _model(kind: Any) -> Convert:
    """A decoder for a model in a union, or in a dataclass."""

    def convert(value: Any, place: str) -> Any:
        try:
            return adapter(kind).validate_json(json.dumps(value))
        except ValueError as error:
            raise TypeMismatch(f"{_named(place)} is not a valid {kind.__name__}: {faults_of(error)}") from None

    return convert


def _by_json(kind: Any) -> dict[str, Any]:
    """The values of a Literal, which may be members of an Enum.

    Raises:
        InvalidArgument: JSON can't hold one.
    """
    try:
        return {_canonical(one): one for one in typing.get_args(kind)}
    except TypeError as error:
        raise InvalidArgument.of("body", f"{kind} has a value that JSON can't hold") from error


def _literal(kind: Any) -> Convert:
    known = _by_json(kind)
    wanted = f"one of {', '.join(repr(json.loads(one)) for one in known)}"

    def convert(value: Any, place: str) -> Any:
        text = _canonical(value)
        if text not in known:
            raise _misfit(place, wanted, value)
        return known[text]

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


# --- the members of a union -----------------------------------------------------------------------------------------


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind)) if typing.get_origin(kind) is None else str(kind)


def _is_literal(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Literal


def _is_as_in_json(kind: Any) -> bool:
    """Whether the type is a Literal without members of an Enum."""
    return _is_literal(kind) and not any(isinstance(one, Enum) for one in typing.get_args(kind))


def _values_of(kind: Any) -> list[Any] | None:
    """All values of a Literal or an Enum in JSON; None: the type has no finite set."""
    if _is_literal(kind):
        return [json.loads(one) for one in _by_json(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum) and not issubclass(kind, Flag):
        return [json.loads(_canonical(member.value)) for member in kind]
    return None


def _forms(kind: Any) -> set[str]:
    """The kinds of JSON that a type accepts."""
    origin = typing.get_origin(kind) or kind
    if kind in _PLAIN:
        return {"number" if kind in (int, float) else _PLAIN[kind][0]}
    if kind in _READ:
        return {"a text", "number"} if kind is Decimal else {"a text"}
    if isinstance(origin, type) and issubclass(origin, Flag):
        return {"number"}
    if origin in _COLLECTIONS or (isinstance(origin, type) and issubclass(origin, tuple)):
        return {"an array"}
    if origin is dict or has_fields(kind):
        return {"an object"}
    return {"null", "true or false", "number", "a text", "an array", "an object"}


def _distinct_tags(one: Any, other: Any) -> set[str]:
    """Fields with different Literals in the two types."""
    tags, other_tags = _tags_of(one), _tags_of(other)
    return {name for name, values in tags.items() if name in other_tags and not values & other_tags[name]}


def _tags_of(kind: Any) -> dict[str, set[str]]:
    hints = typing.get_type_hints(kind)
    return {name: set(_by_json(hint)) for name, hint in hints.items() if _is_literal(hint)}


def _tags_among(kind: Any, kinds: tuple[Any, ...]) -> set[str]:
    """The fields that distinguish a type from the others of its union."""
    others = [one for one in kinds if one is not kind and has_fields(one)]
    return set().union(*(_distinct_tags(kind, one) for one in others)) if has_fields(kind) else set()


def _tagged(convert: Convert, tags: set[str]) -> Convert:
    """A decoder that requires these fields: a default must not decide the type."""
    if not tags:
        return convert

    def convert_tagged(value: Any, place: str) -> Any:
        if isinstance(value, dict) and (missing := tags - value.keys()):
            raise TypeMismatch(f"{_named(f'{place}.{min(missing)}')} is missing")
        return convert(value, place)

    return convert_tagged


def _union_faults(kinds: tuple[Any, ...]) -> Callable[[Any, str, Sequence[TypeMismatch]], TypeMismatch]:
    """A function that chooses among the members' faults: the fault of the member with the value's tags, or of the only
    member for the value's kind of JSON; else a fault about the tag, or about the whole union."""
    wanted = " or ".join("null" if one is types.NoneType else _name(one) for one in kinds)
    forms = [_forms(one) for one in kinds]
    tags = [{name: _tags_of(one)[name] for name in _tags_among(one, kinds)} for one in kinds]
    common = set.intersection(*(set(one) for one in tags if one)) if any(tags) else set()

    def choose(value: Any, place: str, misfits: Sequence[TypeMismatch]) -> TypeMismatch:
        form = _FORMS[type(value)]
        of_form = [n for n, takes in enumerate(forms) if form in takes]
        meant = [n for n in of_form if _is_meant(value, tags[n])]
        if len(meant) == 1 or len(of_form) == 1:
            return misfits[(meant or of_form)[0]]
        if isinstance(value, dict) and common and all(tags[n] for n in of_form):
            name = min(common)
            values = [json.loads(one) for n in of_form for one in sorted(tags[n][name])]
            known = f"one of {', '.join(map(repr, values))}"
            if name not in value:
                return TypeMismatch(f"{_named(f'{place}.{name}')} is missing: {known}")
            return _misfit(f"{place}.{name}", known, value[name])
        some = [n for n, one in enumerate(kinds) if one is not types.NoneType]
        return misfits[some[0]] if len(some) == 1 else _misfit(place, wanted, value)

    return choose


def _is_meant(value: Any, tags: dict[str, set[str]]) -> bool:
    """Whether a value has the tags of a member."""
    if not tags or not isinstance(value, dict):
        return False
    return all(name in value and _canonical(value[name]) in known for name, known in tags.items())
