"""Retry policies on the command line: parsed from options, and printed in the same form."""

import typer

from duetime.cli.output import length
from duetime.client.errors import InvalidArgument
from duetime.client.retry_policy import handler_policy
from duetime.v1 import message_pb2

_FACTOR_DEFAULT, _JITTER_DEFAULT = 2.0, 0.2


def policy_of(backoff: str | None, max_attempts: int | None) -> message_pb2.RetryPolicy | None:
    """The policy of --backoff and --max-attempts; None: both are missing.

    Raises:
        BadParameter: they are malformed, or exceed a limit.
    """
    try:
        return handler_policy(backoff, max_attempts)
    except InvalidArgument as error:
        options = {"backoff: ": "--backoff ", "max_attempts: ": "--max-attempts "}
        text = str(error)
        for field, option in options.items():
            text = text.replace(field, option)
        raise typer.BadParameter(text) from None


def backoff_of(policy: message_pb2.RetryPolicy) -> str:
    """The policy in the form of --backoff, without the number of deliveries."""
    if policy.HasField("exponential"):
        backoff = policy.exponential
        parts = [f"exponential:{length(backoff.initial_ms)}..{length(backoff.max_ms)}"]
        if backoff.factor not in (0, _FACTOR_DEFAULT):
            parts.append(f"factor={backoff.factor:g}")
        if backoff.HasField("jitter") and backoff.jitter != _JITTER_DEFAULT:
            parts.append(f"jitter={backoff.jitter:g}")
        return ",".join(parts)
    if policy.HasField("intervals"):
        return ",".join(length(delay_ms) if delay_ms else "0s" for delay_ms in policy.intervals.delays_ms)
    return "levels"
