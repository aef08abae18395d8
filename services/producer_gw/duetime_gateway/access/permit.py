"""What the caller that is being served may do: set by the gatekeeper, asked where names are known.

It travels with the call's task and the tasks that this one makes, as the principal does.
"""

from contextvars import ContextVar

from duetime_gateway.access.grants import EVERYTHING, Access

_current: ContextVar[Access] = ContextVar("duetime_access", default=EVERYTHING)


def current() -> Access:
    """Of the call that is being served; EVERYTHING where nobody is asked who they are."""
    return _current.get()


def serve_with(access: Access) -> None:
    """Names it for the rest of the call. Only the gatekeeper does this."""
    _current.set(access)
