"""How long a call inside the cluster may take. Pure."""

# The share of a caller's time in which shards answer.
ANSWERED_BY = 0.8


def timeout_of(timeout_ms: float, remaining_ms: float | None, wait_ms: int = 0) -> float:
    """The gateway's own timeout and a wait that was asked for, or what is left of the caller's time if that is less."""
    own_ms = timeout_ms + wait_ms
    return own_ms if remaining_ms is None else min(remaining_ms, own_ms)


def shared_timeout_of(timeout_ms: float, remaining_ms: float | None) -> float:
    """As `timeout_of`, of one of several shards: one that hangs leaves the time to tell what the others answered."""
    return timeout_ms if remaining_ms is None else min(remaining_ms * ANSWERED_BY, timeout_ms)
