"""The events of the audit log; each is one line and one row. Pure."""

from collections.abc import Callable
from typing import Any, NamedTuple

from duetime_format.texts import printable

from duetime_core.limits.bounds import cut
from duetime_core.telemetry.secrets import masked

# Limit of each text in rows.
TEXT_BYTES_MAX = 255
# Statuses of rejected callers.
REFUSED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})


class Act(NamedTuple):
    """An admin act: a call that changes shared state, or exposes all messages."""

    # Class of its requests; None: the service names the target (`name_resource`), if the call is an act.
    request: Any = None
    # Target of a request, such as `topic orders`.
    about: Callable[[Any], str] = str


class AuditedCall(NamedTuple):
    """An admin act, successful or not, or a rejected call."""

    at_ms: int
    # Empty: none, or unknown.
    user: str
    # Host of the caller, and its address there.
    host: str
    peer: str
    # Such as `duetime.v1.Gateway/CreateTopic`.
    method: str
    # Target, such as `topic orders`; empty: the request was not read.
    resource: str
    # Name of the gRPC status, and the reason.
    status: str
    reason: str
    # Number of the host's rejections without events of their own; the status is that of the last one.
    left_out_count: int = 0

    @property
    def is_refusal(self) -> bool:
        return self.status in REFUSED


def plain(text: str) -> str:
    """Cleans a caller's text for events: masks passwords, removes control characters, limits the length."""
    return cut(masked(printable(text[: TEXT_BYTES_MAX + 1])), TEXT_BYTES_MAX)
