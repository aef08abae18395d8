"""What the audit log has one line and one row for. Pure."""

from collections.abc import Callable
from typing import Any, NamedTuple

from duetime_format.texts import printable

from duetime_core.bounds import cut
from duetime_core.secrets import masked

# Of a text of an event, as rows keep it.
TEXT_BYTES_MAX = 255
# Statuses that say: this caller may not.
REFUSED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})


class Act(NamedTuple):
    """An admin act: a call that changes what others rely on, or hands out all there is."""

    # The class of its requests; None: the call's service names what it is about (`name_resource`), if it is an act.
    request: Any = None
    # What a request is about, such as `topic orders`.
    about: Callable[[Any], str] = str


class Event(NamedTuple):
    """An admin act, done or not, or a call that was refused."""

    at_ms: int
    # Empty: nobody in particular, or not known.
    user: str
    # The caller's, and its address there.
    host: str
    peer: str
    # As in `duetime.v1.Gateway/CreateTopic`.
    method: str
    # Such as `topic orders`; empty where the request was not read.
    resource: str
    # The name of the gRPC status, and the reason beside it.
    status: str
    reason: str
    # Refusals of the host that have no event of their own; this one has their last one's status.
    left_out_count: int = 0

    @property
    def is_refusal(self) -> bool:
        return self.status in REFUSED


def plain(text: str) -> str:
    """A text that callers give, as events have it: without passwords and control characters, and not long."""
    return cut(masked(printable(text[: TEXT_BYTES_MAX + 1])), TEXT_BYTES_MAX)
