"""The rights of the running call: set by the gatekeeper, checked where names are known.

They are inherited by the tasks that the call starts, as is the principal.
"""

from contextvars import ContextVar

from duetime_core.errors import DueTimeError

from duetime_gateway.access.grants import EVERYTHING, NOTHING, Access

_current: ContextVar[Access] = ContextVar("duetime_access", default=EVERYTHING)
_refusal: ContextVar[DueTimeError | None] = ContextVar("duetime_access_refused", default=None)


def current() -> Access:
    """The rights of the running call; EVERYTHING while users are off."""
    return _current.get()


def serve_with(access: Access) -> None:
    """Sets the rights for the rest of the call. Only the gatekeeper calls this."""
    _current.set(access)


def refuse_with(error: DueTimeError) -> None:
    """Admits a call that its service must reject, in the terms of its protocol. Only the gatekeeper calls this."""
    _current.set(NOTHING)
    _refusal.set(error)


def check_admitted() -> None:
    """Raises: DueTimeError: the running call must be rejected."""
    error = _refusal.get()
    if error is not None:
        raise error
