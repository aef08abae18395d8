"""What the border of a server asks about callers, where somebody decides who may call."""

from typing import Any, Protocol

from duetime_core.callers import Role
from duetime_core.errors import DueTimeError


class Gatekeeper(Protocol):
    """Decides about calls. All is asked within the call's own task."""

    async def admit(self, method: str, context: Any, role: Role | None) -> None:
        """Before the call's request is read. Names its principal. `role`: by the certificate that was shown.

        Raises:
            DueTimeError: it is refused.
        """

    def ended(self) -> DueTimeError | None:
        """Why a call that was cancelled was: its caller may go on no longer; None: it was somebody else."""

    def left(self) -> None:
        """The call has ended."""
