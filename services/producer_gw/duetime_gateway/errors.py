"""The gateway's own errors, used in several rooms."""

from duetime_core.errors import Unavailable

SHARD_UNAVAILABLE = "SHARD_UNAVAILABLE"


def stopping() -> Unavailable:
    """Why nothing more is begun."""
    return Unavailable("the gateway is stopping", reason="STOPPING")


def shard_unavailable(text: str) -> Unavailable:
    """A shard does not answer, or not as it should."""
    return Unavailable(text, reason=SHARD_UNAVAILABLE)
