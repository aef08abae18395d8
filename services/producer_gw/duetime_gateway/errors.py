"""The gateway's own errors, shared by several packages."""

from duetime_core.errors import Unavailable

SHARD_UNAVAILABLE = "SHARD_UNAVAILABLE"


def stopping() -> Unavailable:
    """The error of new work during a shutdown."""
    return Unavailable("the gateway is stopping", reason="STOPPING")


def shard_unavailable(text: str) -> Unavailable:
    """The error of a shard that does not answer, or answers incorrectly."""
    return Unavailable(text, reason=SHARD_UNAVAILABLE)


def not_made(name: str, wait_ms: float) -> Unavailable:
    """The error for a topic not created in time."""
    text = f"topic {name} was not created within {max(wait_ms, 0):.0f} ms; it may exist by now"
    return Unavailable(text, reason="TOPIC_NOT_MADE")
