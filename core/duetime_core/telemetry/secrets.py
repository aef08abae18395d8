"""Removes passwords from texts for people: log lines, errors in settings, errors of drivers."""

import re
from collections.abc import MutableMapping
from typing import Any

# Matches `scheme://user:password@host`. A password may contain colons and slashes; it ends at the last @ before a blank
# or quote.
_IN_URL = re.compile(r"(\b[a-zA-Z][\w+.-]*://[^\s:/@'\"]*:)[^\s'\"]*(?=@)")
# Matches `password=…` as in libpq's connection strings and queries of URLs.
_ASSIGNED = re.compile(r"(?i)((?:password|passwd|secret|token|sslkey)\s*=\s*)('[^']*'|[^\s&,;'\"]+)")
_BEARER = re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}")
# Matches a token of a user, `dt_ID_SECRET`; its id is not secret.
_USERS_TOKEN = re.compile(r"(dt_[a-z2-7]{12}_)[a-z2-7]+")
MASK = "***"


def masked(text: str) -> str:
    """`text` with its passwords masked."""
    if "://" in text:
        text = _IN_URL.sub(rf"\1{MASK}", text)
    if "=" in text:
        text = _ASSIGNED.sub(rf"\1{MASK}", text)
    if "dt_" in text:
        text = _USERS_TOKEN.sub(rf"\1{MASK}", text)
    return _BEARER.sub(rf"\1{MASK}", text)


def mask_event(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog that masks passwords in log lines."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = masked(value)
    return event
