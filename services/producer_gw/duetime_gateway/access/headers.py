"""Reads the headers of calls by RocketMQ's clients; no other module reads them. Pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

_CLIENT_ID, _NAMESPACE, _LANGUAGE = "x-mq-client-id", "x-mq-namespace", "x-mq-language"
_DATE_TIME, _AUTHORIZATION = "x-mq-date-time", "authorization"


class Headers(NamedTuple):
    """Headers of one call; missing ones are empty. Values are not checked."""

    client_id: str
    # Default for requests without a namespace.
    namespace: str
    language: str
    authorization: str
    # Signed; any format.
    date_time: str


def read_headers(metadata: Iterable[tuple[str, Any]] | None) -> Headers:
    """Reads the headers. If one name occurs several times, the last value wins, as in RocketMQ's own server."""
    found = {key: value for key, value in metadata or () if isinstance(value, str)}
    names = _CLIENT_ID, _NAMESPACE, _LANGUAGE, _AUTHORIZATION, _DATE_TIME
    return Headers(*(found.get(name, "") for name in names))
