"""Bodies as values: sent as JSON, and read into types.

What is sent as JSON has the property `content_type`, `application/json`; bytes and text have none. A body without it is
read as JSON where that is asked for: its sender may know nothing of the property.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar, overload

from duetime.client.decoding import Misfit, decoder_for
from duetime.client.errors import BadBody, DueTimeError, InvalidMessage
from duetime.client.plain import adapter, faults_of, is_object, is_pydantic, plain

CONTENT_TYPE = "content_type"
JSON = "application/json"

T = TypeVar("T")
Decode = Callable[[bytes, str], Any]


class Model(Protocol):
    """One of pydantic's."""

    def model_dump_json(self) -> str: ...


class Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Body = bytes | str | dict[str, Any] | list[Any] | Model | Dataclass


def encoded(body: Body) -> tuple[bytes, str]:
    """The bytes of a body, and their content type; empty: of bytes and text.

    Raises:
        TypeError: it is none of the kinds of `Body`.
        InvalidMessage: something in it has no form in JSON.
    """
    if isinstance(body, bytes):
        return body, ""
    try:
        if isinstance(body, str):
            return body.encode(), ""
        if isinstance(body, dict | list) or is_object(body):
            text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain)
            return text.encode(), JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage.of("body", f"has no JSON: {error}") from error
    raise TypeError(f"body is {type(body).__name__}, not bytes, str, dict, list, a dataclass or a pydantic model")


def decoder(kind: Any) -> Decode:
    """Makes of a body, and its content type, a value of a type: bytes, str, or what JSON can hold: None, bool, int,
    float, list, dict, Literal, Enum, datetime, date, time, Decimal, UUID, unions, named tuples, dataclasses, and
    pydantic's models.

    The function raises BadBody.

    Raises:
        InvalidArgument: the type is none of these, or a union has two members that JSON can't distinguish.
    """
    if kind is bytes:
        return lambda body, _: body
    if kind is str:
        return lambda body, _: _text(body)
    if is_pydantic(kind):
        return _of_pydantic(kind)
    convert = decoder_for(kind)

    def decode(body: bytes, content_type: str) -> Any:
        try:
            return convert(_parsed(body, content_type), "")
        except Misfit as error:
            raise _bad(str(error)) from None

    return decode


cached_decoder: Callable[[Any], Decode] = lru_cache(maxsize=256)(decoder)


class JsonBody:
    """What messages with a body have for reading it as JSON."""

    __slots__ = ()

    @property
    def body(self) -> bytes:
        raise NotImplementedError

    @property
    def content_type(self) -> str:
        """`application/json` of a body that was sent as a value; empty: not told."""
        raise NotImplementedError

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[T]) -> T: ...

    def json(self, kind: Any = Any) -> Any:
        """The body as a value: as it stands in the JSON, or of a type: a dataclass, a pydantic model, `list[Order]`.

        Raises:
            BadBody: it is no JSON, or no such value. Damaged.
            InvalidArgument: the type is none that JSON can hold.
        """
        return cached_decoder(kind)(self.body, self.content_type)


def _of_pydantic(kind: Any) -> Decode:
    def decode(body: bytes, content_type: str) -> Any:
        _check_json(content_type)
        try:
            return adapter(kind).validate_json(body)
        except ValueError as error:
            raise _bad(faults_of(error)) from None

    return decode


def _parsed(body: bytes, content_type: str) -> Any:
    """Raises: BadBody."""
    _check_json(content_type)
    text = _text(body)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _bad(f"it is no JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError) as error:
        # Of numbers with too many digits, and of lists in lists.
        raise _bad(f"it is no JSON: {type(error).__name__}") from None


def _check_json(content_type: str) -> None:
    name = content_type.partition(";")[0].strip().lower()
    if name and name != JSON and not name.endswith("+json"):
        raise _bad(f"its content type is {content_type!r}, not {JSON}")


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise _bad(f"it is no UTF-8: {error.reason} at byte {error.start}") from None


def _bad(text: str) -> DueTimeError:
    return BadBody(f"the body can't be read: {text}", reason="BAD_BODY")
