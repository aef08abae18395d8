"""Retry policies of the contract: their text (duetime_format.policy), what they mean, what is wrong with them. Pure."""

from duetime.v1.message_pb2 import RetryPolicy
from duetime_format import limits
from duetime_format import policy as policies
from duetime_format.policy import render

from duetime_core.errors import Violation

__all__ = ["completed", "parse", "render", "violations"]


def parse(text: str) -> RetryPolicy:
    """The policy, within all limits.

    Raises:
        ValueError: the text is no policy, or breaks a limit; the error says where.
    """
    policy = RetryPolicy()
    policies.fill(policy, text)
    return policy


def completed(policy: RetryPolicy) -> RetryPolicy:
    """A copy in which every field is set: what the policy means."""
    full = RetryPolicy()
    full.CopyFrom(policy)
    full.max_attempts = policy.max_attempts or limits.DELIVERIES_DEFAULT
    if full.WhichOneof("backoff") is None:
        full.levels.SetInParent()
    elif full.HasField("exponential"):
        full.exponential.factor = policy.exponential.factor or limits.BACKOFF_FACTOR_DEFAULT
        if not policy.exponential.HasField("jitter"):
            full.exponential.jitter = limits.BACKOFF_JITTER_DEFAULT
    return full


def violations(field: str, policy: RetryPolicy) -> list[Violation]:
    """All violations of a policy; `field` is where it stands, such as `group.retry`."""
    prefix = f"{field}." if field else ""
    return [Violation(prefix + name, text) for name, text in policies.faults(policy)]
