"""What a call of RocketMQ's clients says of itself beside its request: the one place that reads its headers. Pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

_CLIENT_ID, _NAMESPACE, _LANGUAGE = "x-mq-client-id", "x-mq-namespace", "x-mq-language"
_DATE_TIME, _AUTHORIZATION = "x-mq-date-time", "authorization"


class Headers(NamedTuple):
    """Of one call; what it does not say is empty. Nothing is checked here."""

    client_id: str
    # Where a request names none.
    namespace: str
    language: str
    authorization: str
    # Signed, in any form.
    date_time: str


def read_headers(metadata: Iterable[tuple[str, Any]] | None) -> Headers:
    """Of several with one name the last counts, as of RocketMQ's own server."""
    found = {key: value for key, value in metadata or () if isinstance(value, str)}
    names = _CLIENT_ID, _NAMESPACE, _LANGUAGE, _AUTHORIZATION, _DATE_TIME
    return Headers(*(found.get(name, "") for name in names))
