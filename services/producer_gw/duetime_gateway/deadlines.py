"""Timeouts of calls inside the cluster. Pure."""

# Share of a caller's time within which shards answer.
ANSWERED_BY = 0.8


def timeout_of(timeout_ms: float, remaining_ms: float | None, wait_ms: int = 0) -> float:
    """The gateway's own timeout plus the requested wait, limited by the caller's remaining time."""
    own_ms = timeout_ms + wait_ms
    return own_ms if remaining_ms is None else min(remaining_ms, own_ms)


def shared_timeout_of(timeout_ms: float, remaining_ms: float | None) -> float:
    """As `timeout_of`, for several shards: if one hangs, there is time left to return the others' answers."""
    return timeout_ms if remaining_ms is None else min(remaining_ms * ANSWERED_BY, timeout_ms)
