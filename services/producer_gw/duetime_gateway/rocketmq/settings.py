"""Settings sent to clients: their own, completed by the server. Pure."""

from collections.abc import Sequence

from duetime.v1 import message_pb2
from duetime_core.rpc.retry_policy import LEVELS_BEFORE_FIRST, backoff_ms, completed
from duetime_format.levels import DelayLevels
from duetime_format.limits import BODY_BYTES_MAX, LITE_CHARS_MAX, LITE_SUBSCRIPTIONS_MAX

from duetime_gateway.rocketmq.moments import put_ms
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

LITE_TYPES = (pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER)
CLIENT_TYPES = (pb.PRODUCER, pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, *LITE_TYPES)
RECEIVE_BATCH_SIZE = 32
# Clients read whole seconds.
POLLING_MS = 20_000
SEND_ATTEMPTS = 3
SEND_BACKOFF_MS, SEND_BACKOFF_MS_MAX, SEND_BACKOFF_FACTOR = 10, 1_000, 2.0
# Delays of RocketMQ 5: 1s 5s 10s 30s, one to ten minutes, 20m 30m 1h 2h.
_BACKOFF_S = (1, 5, 10, 30, *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)))
BACKOFF_MS = tuple(1_000 * seconds for seconds in _BACKOFF_S)
DELIVERIES = 17
# The policy of groups created by this protocol: RocketMQ 5's own. Shared; must not be changed.
POLICY = message_pb2.RetryPolicy(max_attempts=DELIVERIES, intervals=message_pb2.IntervalBackoff(delays_ms=BACKOFF_MS))


def answer(
    asked: pb.Settings,
    endpoints: pb.Endpoints,
    retry: message_pb2.RetryPolicy,
    levels: DelayLevels,
    *,
    ordered: bool,
) -> pb.Settings:
    """The client's settings, completed. `retry`, `ordered`: from its group; unused for producers."""
    merged = pb.Settings()
    merged.CopyFrom(asked)
    merged.access_point.CopyFrom(endpoints)
    merged.metric.Clear()
    merged.metric.on = False
    if asked.client_type == pb.PRODUCER:
        merged.publishing.max_body_size = BODY_BYTES_MAX
        merged.publishing.validate_message_type = True
        merged.backoff_policy.Clear()
        merged.backoff_policy.max_attempts = SEND_ATTEMPTS
        _put_exponential(merged.backoff_policy, SEND_BACKOFF_MS, SEND_BACKOFF_MS_MAX, SEND_BACKOFF_FACTOR)
        return merged
    # A lite topic is received in order by any group.
    merged.subscription.fifo = ordered or asked.client_type == pb.LITE_PUSH_CONSUMER
    merged.subscription.receive_batch_size = RECEIVE_BATCH_SIZE
    put_ms(merged.subscription.long_polling_timeout, POLLING_MS)
    merged.subscription.lite_subscription_quota = LITE_SUBSCRIPTIONS_MAX
    merged.subscription.max_lite_topic_size = LITE_CHARS_MAX
    merged.backoff_policy.CopyFrom(backoff(retry, levels, always_exponential=asked.user_agent.language == pb.NODE_JS))
    return merged


def backoff(retry: message_pb2.RetryPolicy, levels: DelayLevels, *, always_exponential: bool = False) -> pb.RetryPolicy:
    """A group's policy in RocketMQ's terms. `always_exponential`: for clients that support no other kind."""
    full = completed(retry)
    found = pb.RetryPolicy(max_attempts=full.max_attempts)
    if full.HasField("exponential"):
        exponential = full.exponential
        _put_exponential(found, exponential.initial_ms, exponential.max_ms, exponential.factor)
        return found
    delays_ms = _delays_of(full, levels)
    if always_exponential:
        _put_exponential(found, max(delays_ms[0], 1), max(delays_ms[-1], 1), SEND_BACKOFF_FACTOR)
    else:
        for delay_ms in delays_ms:
            put_ms(found.customized_backoff.next.add(), delay_ms)
    return found


def _delays_of(full: message_pb2.RetryPolicy, levels: DelayLevels) -> Sequence[int]:
    """The delays after failed deliveries, in ms; the last one repeats."""
    kinds = len(full.intervals.delays_ms) or max(levels.highest - LEVELS_BEFORE_FIRST, 1)
    return [backoff_ms(attempt, full, levels, 0.0) for attempt in range(1, kinds + 1)]


def delay_after(attempt: int, retry: message_pb2.RetryPolicy, levels: DelayLevels) -> int:
    """The wait after failed delivery `attempt`, from 1, without jitter."""
    return backoff_ms(max(attempt, 1), completed(retry), levels, 0.0)


def _put_exponential(found: pb.RetryPolicy, initial_ms: int, max_ms: int, factor: float) -> None:
    put_ms(found.exponential_backoff.initial, initial_ms)
    put_ms(found.exponential_backoff.max, max_ms)
    found.exponential_backoff.multiplier = factor
