"""The principal of a call: set by a server's border, read by the code that serves the call.

It is inherited by the tasks that the call starts, like context variables.
"""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, or a process of the cluster."""

    # Empty: unknown, as while users are off.
    name: str


NOBODY = Principal("")

_current: ContextVar[Principal] = ContextVar("duetime_principal", default=NOBODY)


def current() -> Principal:
    """The principal of the running call."""
    return _current.get()


def serve_for(principal: Principal) -> None:
    """Sets the principal for the rest of the call. Only a server's border calls this."""
    _current.set(principal)
