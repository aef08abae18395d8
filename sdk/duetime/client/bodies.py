"""Bodies as values: sent as JSON, and decoded into types.

A JSON body has the property `content_type` with the value `application/json`; bytes and text have none. A body without
the property is decoded as JSON on request: its sender may not know the property.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar, overload

from duetime.client.decoding import TypeMismatch, decoder_for
from duetime.client.errors import BadBody, DueTimeError, InvalidMessage
from duetime.client.plain import adapter, faults_of, is_object, is_pydantic, plain

CONTENT_TYPE = "content_type"
JSON = "application/json"

_scan_once: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]

T = TypeVar("T")
Decode = Callable[[bytes, str], Any]


class Model(Protocol):
    """A pydantic model."""

    def model_dump_json(self) -> str: ...


class Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Body = bytes | str | dict[str, Any] | list[Any] | Model | Dataclass


def encoded(body: Body) -> tuple[bytes, str]:
    """The bytes of a body and their content type; empty for bytes and text.

    Raises:
        TypeError: the body has none of the types of `Body`.
        InvalidMessage: a value in the body has no form in JSON.
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
        raise InvalidMessage.of("body", f"has no JSON form: {error}") from error
    raise TypeError(f"body is {type(body).__name__}, not bytes, str, dict, list, a dataclass or a pydantic model")


def decoder(kind: Any) -> Decode:
    """Returns a function that converts a body and its content type to a value of a type: bytes, str, or a type with a
    form in JSON: None, bool, int, float, list, dict, Literal, Enum, datetime, date, time, Decimal, UUID, unions, named
    tuples, dataclasses, and pydantic's models.

    The function raises BadBody.

    Raises:
        InvalidArgument: the type is none of these, or JSON can't distinguish two members of a union.
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
            return convert(parsed(body, content_type), "")
        except TypeMismatch as error:
            raise _bad(str(error)) from None

    return decode


cached_decoder: Callable[[Any], Decode] = lru_cache(maxsize=256)(decoder)


class JsonBody:
    """Reads the body of a message as JSON."""

    __slots__ = ()

    @property
    def body(self) -> bytes:
        raise NotImplementedError

    @property
    def content_type(self) -> str:
        """`application/json` if the body was sent as a value; empty: unknown."""
        raise NotImplementedError

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[T]) -> T: ...

    def json(self, kind: Any = Any) -> Any:
        """The body as a value: as in the JSON, or of a type: a dataclass, a pydantic model, `list[Order]`.

        Raises:
            BadBody: the body is not JSON, or not a value of the type. Damaged.
            InvalidArgument: JSON can't hold the type.
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


def parsed(body: bytes, content_type: str) -> Any:
    """The value in a JSON body. Raises: BadBody."""
    if content_type and content_type != JSON:
        _check_json(content_type)
    try:
        text = body.decode()
        # Faster than json.loads for a text without spaces around the value, as senders write it.
        value, end = _scan_once(text, 0)
        if end == len(text):
            return value
    except (StopIteration, ValueError, RecursionError):
        pass
    return _loaded(_text(body))


def _loaded(text: str) -> Any:
    """Raises: BadBody."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _bad(f"it is not JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError) as error:
        # Raised for numbers with too many digits, and for deeply nested lists.
        raise _bad(f"it is not JSON: {type(error).__name__}") from None


def _check_json(content_type: str) -> None:
    name = content_type.partition(";")[0].strip().lower()
    if name and name != JSON and not name.endswith("+json"):
        raise _bad(f"its content type is {content_type!r}, not {JSON}")


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise _bad(f"it is not UTF-8: {error.reason} at byte {error.start}") from None


def _bad(text: str) -> DueTimeError:
    return BadBody(f"the body can't be read: {text}", reason="BAD_BODY")
