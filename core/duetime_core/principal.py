"""In whose name a call is made: the border of a server finds it out, and what serves the call asks here.

It travels with the call's task and the tasks that this one makes, as context variables do.
"""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, or a process of the cluster."""

    # Empty: nobody in particular, as where callers are not asked who they are.
    name: str


NOBODY = Principal("")

_current: ContextVar[Principal] = ContextVar("duetime_principal", default=NOBODY)


def current() -> Principal:
    """Of the call that is being served."""
    return _current.get()


def serve_for(principal: Principal) -> None:
    """Names it for the rest of the call. Only the border of a server does this."""
    _current.set(principal)
