"""Reads the parts of a request (JSON, query, headers); errors name the place of the fault."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from duetime_format.faults import worded
from duetime_format.texts import shown
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from duetime_console.api.limits import HTTP_DEPTH_MAX, HTTP_VALUES_MAX, HTTP_VIOLATIONS_MAX
from duetime_console.api.problems import PROBLEM_TYPE, Problem, invalid

JSON_TYPE = "application/json"
KEY_HEADER = "Idempotency-Key"
_BEARER = re.compile(r"Bearer +(\S+)", re.IGNORECASE)
_KEY = re.compile(r"[!-~]{1,255}")
_ANY_TYPES = {"*/*", "application/*", JSON_TYPE, PROBLEM_TYPE}

M = TypeVar("M", bound=BaseModel)


def check_accept(request: Request) -> None:
    """Raises: Problem: the caller accepts no JSON, or no UTF-8."""
    if not _accepts(request.headers.get("accept", ""), _ANY_TYPES):
        raise Problem(406, "NOT_ACCEPTABLE", f"answers are {JSON_TYPE}, which Accept excludes")
    if not _accepts(request.headers.get("accept-charset", ""), {"*", "utf-8"}):
        raise Problem(406, "NOT_ACCEPTABLE", "answers are in UTF-8, which Accept-Charset excludes")


def _accepts(header: str, names: set[str]) -> bool:
    """Whether the header lists one of the names with a weight above 0. An empty header accepts all."""
    if not header.strip():
        return True
    for part in header.lower().split(","):
        name, *parameters = [each.strip() for each in part.split(";")]
        weights = [each.partition("=")[2].strip() for each in parameters if each.replace(" ", "").startswith("q=")]
        if name in names and not (weights and re.fullmatch(r"0(\.0*)?", weights[0])):
            return True
    return False


def token_of(request: Request) -> str:
    """The cluster's token in the call; empty: none. Cookies are never read.

    Raises:
        Problem: Authorization is not a Bearer token.
    """
    header = request.headers.get("authorization")
    if header is None:
        return ""
    match = _BEARER.fullmatch(header.strip())
    if match is None:
        raise Problem(401, "TOKEN_INVALID", "Authorization is not a Bearer token")
    return match[1]


def key_of(request: Request) -> str:
    """The Idempotency-Key, with or without quotes; empty: none. Raises: Problem."""
    header = request.headers.get(KEY_HEADER)
    if header is None:
        return ""
    key = header[1:-1] if len(header) > 1 and header[0] == header[-1] == '"' else header
    if not _KEY.fullmatch(key):
        limit = "is 1 to 255 characters of ASCII without blanks"
        raise invalid(f"{KEY_HEADER} {limit}", (KEY_HEADER, limit))
    return key


async def read_json(request: Request) -> Any:
    """The value of the request's body.

    Raises:
        Problem: it is not JSON in UTF-8, too large, too deep, or has too many values; with its line and column.
    """
    _check_type(request)
    text = _decoded(await _read_bytes(request))
    _check_count(text)
    try:
        value = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise invalid(f"the body is not JSON: {error.msg} at {place}", ("", f"{error.msg} at {place}")) from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}") from error
    _check_depth(value)
    return value


def _check_type(request: Request) -> None:
    """Requires a type that browsers do not send to other sites without a preflight: this keeps foreign pages out."""
    kind, *parameters = [part.strip().lower() for part in request.headers.get("content-type", "").split(";")]
    if kind != JSON_TYPE:
        detail = f"the body must be {JSON_TYPE}; Content-Type is {kind or 'missing'}"
        raise Problem(415, "CONTENT_TYPE_UNSUPPORTED", detail, headers={"Accept": JSON_TYPE})
    charsets = [each.partition("=")[2].strip(' "') for each in parameters if each.startswith("charset")]
    if any(each not in ("utf-8", "utf8") for each in charsets):
        raise Problem(415, "CONTENT_TYPE_UNSUPPORTED", f"the body must be in UTF-8; Content-Type has {charsets[0]}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        headers = {"Accept-Encoding": "identity"}
        raise Problem(
            415, "CONTENT_TYPE_UNSUPPORTED", f"bodies with encoding {encoding} are not supported", headers=headers
        )


async def _read_bytes(request: Request) -> bytes:
    """Raises: Problem, BodyTooLarge."""
    try:
        return await request.body()
    except ClientDisconnect as error:
        raise invalid("the client disconnected before its body arrived") from error


def _too_deep() -> Problem:
    return invalid(f"objects and lists are nested deeper than {HTTP_DEPTH_MAX}")


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not in UTF-8: byte {error.start} is {body[error.start]:#04x}") from error


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twin = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"an object has the name {shown(twin)} twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{shown(text)} is above the largest number")
    return number


def _check_count(text: str) -> None:
    """Counts values before they are built: a value of three bytes takes twenty times as many. Raises: Problem."""
    bare = text.replace("\\\\", "").replace('\\"', "")
    # A value may have a name.
    fits = bare.count('"') <= 4 * HTTP_VALUES_MAX
    if fits:
        outside = "".join(bare.split('"')[::2])
        fits = sum(map(outside.count, ",[{")) <= HTTP_VALUES_MAX
    if not fits:
        raise invalid(f"the body has more than {HTTP_VALUES_MAX:,} values")


def _check_depth(value: Any) -> None:
    """Raises: Problem: too deep, or a text that UTF-8 can't hold."""
    level: list[Any] = [value]
    for _ in range(HTTP_DEPTH_MAX + 1):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return
    raise _too_deep()


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise invalid(f"a text has half a pair of surrogates: {value[error.start]!r}") from error
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else ()


def query_of(request: Request) -> dict[str, str]:
    """The query's parameters. Raises: Problem: one occurs twice."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise invalid(f"the query has {name} twice", (name, "occurs twice"))
        found[name] = value
    return found


def checked(model: type[M], value: Any, what: str) -> M:
    """Checks a value with a model. Raises: Problem with all violations."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        violations = list(islice(violations_of(error), HTTP_VIOLATIONS_MAX))
        first = ": ".join(part for part in violations[0] if part)
        more = f"; and {error.error_count() - 1} more" if len(violations) > 1 else ""
        raise invalid(f"{what}: {first}{more}", *violations) from error


def violations_of(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Fields and their faults."""
    for each in error.errors(include_url=False, include_input=False):
        path = ""
        for part in each["loc"]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
        yield path, worded(each)
