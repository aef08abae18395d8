"""What the caller that is being served may do: set by the gatekeeper, asked where names are known.

It travels with the call's task and the tasks that this one makes, as the principal does.
"""

from contextvars import ContextVar

from duetime_core.errors import DueTimeError

from duetime_gateway.access.grants import EVERYTHING, NOTHING, Access

_current: ContextVar[Access] = ContextVar("duetime_access", default=EVERYTHING)
_refusal: ContextVar[DueTimeError | None] = ContextVar("duetime_access_refused", default=None)


def current() -> Access:
    """Of the call that is being served; EVERYTHING where nobody is asked who they are."""
    return _current.get()


def serve_with(access: Access) -> None:
    """Names it for the rest of the call. Only the gatekeeper does this."""
    _current.set(access)


def refuse_with(error: DueTimeError) -> None:
    """Lets a call in that its service is to refuse, in the words of its protocol. Only the gatekeeper does this."""
    _current.set(NOTHING)
    _refusal.set(error)


def check_admitted() -> None:
    """Raises: DueTimeError: the running call is to be refused."""
    error = _refusal.get()
    if error is not None:
        raise error
