"""The caller of a request."""

from starlette.types import Scope


def host_of(scope: Scope) -> str:
    """The caller's host; empty: unknown."""
    client = scope.get("client")
    return str(client[0]) if client else ""
