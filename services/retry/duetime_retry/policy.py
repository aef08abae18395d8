"""Decides the fate of a failed message: the decision is a value. Pure.

In this order:

    rejected                                  dead letter, REJECTED
    deliveries so far >= maximum              dead letter, ATTEMPTS_EXHAUSTED
    a delay was requested                     redelivered after that
    otherwise                                 redelivered after the backoff of the policy

The policy is the message's own, else the one sent with the failure, else the group's: as a whole, so that limit and
backoff always belong to one policy. A receiver's limit of deliveries (Receive.max_attempts) precedes the group's.

Source of the table: RocketMQ 4.9.3 SendMessageProcessor.asyncConsumerSendMsgBack, without its silent drop if a group
has no retry queue.
"""

from dataclasses import dataclass

from duetime.v1.message_pb2 import RetryPolicy
from duetime_core.rpc.retry_policy import LEVELS_BEFORE_FIRST, backoff_ms
from duetime_format.levels import DelayLevels
from duetime_format.limits import ATTEMPTS_DEFAULT

REJECTED = "REJECTED"
ATTEMPTS_EXHAUSTED = "ATTEMPTS_EXHAUSTED"


@dataclass(frozen=True, slots=True)
class Redeliver:
    """The message is redelivered after `delay_ms`, and not before."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetterDecision:
    """The message is not redelivered, for this `reason`."""

    reason: str


Decision = Redeliver | DeadLetterDecision


def decide(
    attempt: int,
    policy: RetryPolicy,
    levels: DelayLevels,
    chance: float,
    *,
    delay_ms: int | None = None,
    reject: bool = False,
) -> Decision:
    """The decision after the failed delivery `attempt`, from 1. `policy` is complete (retry_policy.completed); `chance`
    in [0, 1)."""
    if reject:
        return DeadLetterDecision(REJECTED)
    if attempt >= policy.max_attempts:
        return DeadLetterDecision(ATTEMPTS_EXHAUSTED)
    return Redeliver(backoff_ms(attempt, policy, levels, chance) if delay_ms is None else delay_ms)


def decide_sent_back(attempts: int, level: int | None, attempts_max: int | None, levels: DelayLevels) -> Decision:
    """SendBack's decision, in RocketMQ's terms: `attempts` and `attempts_max` count retries, not deliveries, and a
    level below 0 asks for the dead letters. None: the defaults."""
    if attempts >= (ATTEMPTS_DEFAULT if attempts_max is None else attempts_max):
        return DeadLetterDecision(ATTEMPTS_EXHAUSTED)
    if level is not None and level < 0:
        return DeadLetterDecision(REJECTED)
    return Redeliver(levels.delay_at_most_ms(level or LEVELS_BEFORE_FIRST + 1 + attempts))
