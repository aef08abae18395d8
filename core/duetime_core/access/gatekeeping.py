"""The interface through which a server's border checks callers, if access is restricted."""

from typing import Any, Protocol

from duetime_core.access.callers import Role
from duetime_core.errors import DueTimeError


class CallGatekeeper(Protocol):
    """Decides about calls. All methods run within the call's own task."""

    async def admit(self, method: str, context: Any, role: Role | None) -> None:
        """Called before the call's request is read. Sets its principal. `role`: from the caller's certificate.

        Raises:
            DueTimeError: the call is rejected.
        """

    def ended(self) -> DueTimeError | None:
        """The reason if the gatekeeper cancelled the call; None: it was cancelled elsewhere."""

    def left(self) -> None:
        """Called at the end of the call."""
