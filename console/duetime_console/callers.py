"""The caller of a request."""

from duetime_core.access.callers import sharer_of
from starlette.types import Scope


def host_of(scope: Scope) -> str:
    """The caller's host; empty: unknown."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def caller_of(scope: Scope, user: str) -> str:
    """The key under which limits count the caller: the user or its token; without one, the host."""
    return sharer_of(user, host_of(scope))
