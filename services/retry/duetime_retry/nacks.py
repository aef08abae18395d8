"""Nack: failed messages by their receipts, one result each, in the order of the request.

    receipts ─ by shard ─▶ GetLeased ─▶ decide ─▶ settle ─▶ results

A fault of one message, or of a shard, harms no other. A repeated call finds the leases ended; this process remembers
its answers for a while, and returns a lost one again.
"""

import asyncio
from collections.abc import Mapping, Sequence

from duetime.v1 import consumer_pb2, store_pb2
from duetime.v1.message_pb2 import RetryPolicy
from duetime_core.errors import DueTimeError, InvalidArgument, Violation
from duetime_core.rpc import retry_policy
from duetime_core.rpc.calls import fault_of
from duetime_format import limits, receipts
from duetime_format.errors import within

from duetime_retry.decision import Decider, FailureDetails
from duetime_retry.metrics import RetryMetrics
from duetime_retry.settling import EXPIRED, OK
from duetime_retry.stores import UNAVAILABLE, Stores

# Number of answers remembered.
RECENT_MAX = 16_384
UNKNOWN = consumer_pb2.RECEIPT_STATUS_UNKNOWN
Result = consumer_pb2.NackResult


class Nacks:
    """Answers Nack."""

    def __init__(self, stores: Stores, decider: Decider, metrics: RetryMetrics) -> None:
        self._stores = stores
        self._decider = decider
        self._metrics = metrics
        # Keys are group and receipt, the oldest first.
        self._recent: dict[tuple[str, bytes], Result] = {}

    async def nack(self, request: consumer_pb2.NackRequest) -> list[Result]:
        """`request` is valid, except for single nacks."""
        # A receipt that is named twice fails once.
        nacks: dict[bytes, consumer_pb2.Nack] = {}
        for nack in request.nacks:
            nacks.setdefault(nack.receipt, nack)
        results: dict[bytes, Result] = {}
        for receipt, nack in nacks.items():
            faults = delay_violations(nack)
            if faults:
                results[receipt] = Result(fault=fault_of(InvalidArgument(faults, reason="NACK_INVALID")))
        asked = [receipt for receipt in nacks if receipt not in results]
        shards, unknown = receipts.by_shard(asked)
        results |= {asked[index]: Result(status=UNKNOWN) for index in unknown}
        policy = request.policy if request.HasField("policy") else None
        failures = {receipt: _failure_of(nack, policy) for receipt, nack in nacks.items()}
        parts = [
            self._nack_shard(shard, request.group, [asked[index] for index in indices], failures)
            for shard, indices in shards.items()
        ]
        for part in await asyncio.gather(*parts):
            results |= part
        for receipt, result in results.items():
            results[receipt] = self._remembered(request.group, receipt, result)
        return [results[nack.receipt] for nack in request.nacks]

    async def _nack_shard(
        self, shard: int, group: str, asked: Sequence[bytes], failures: Mapping[bytes, FailureDetails]
    ) -> dict[bytes, Result]:
        results: dict[bytes, Result] = {}
        # Sorted by lease and offset, which follow the shard in a receipt: if one call does not reach all of an ordered
        # lease, messages first in the queue are settled first.
        left = sorted(asked)
        while left:
            try:
                answer = await self._stores.leased(shard, group, left)
            except DueTimeError as error:
                self._metrics.faults.labels(error.reason).inc(len(left))
                return results | {receipt: Result(fault=fault_of(error)) for receipt in left}
            asked_now, left = left[: len(answer.leased)], left[len(answer.leased) :]
            found: dict[bytes, store_pb2.LeasedRecord] = {}
            for receipt, one in zip(asked_now, answer.leased, strict=True):
                if one.status == OK:
                    found[receipt] = one
                else:
                    results[receipt] = Result(status=one.status)
            dealt = await self._decider.deal_with(
                shard, group, answer.now_ms, list(found.values()), [failures[receipt] for receipt in found]
            )
            results |= dict(zip(found, dealt, strict=True))
            away = next((one.fault for one in dealt if one.fault.reason == UNAVAILABLE), None)
            if away is not None:
                # The next call would fail likewise, after another deadline; and ordered messages keep their turn.
                self._metrics.faults.labels(UNAVAILABLE).inc(len(left))
                return results | {receipt: Result(fault=away) for receipt in left}
        return results

    def _remembered(self, group: str, receipt: bytes, result: Result) -> Result:
        key = (group, receipt)
        if result.status == EXPIRED:
            return self._recent.get(key, result)
        if result.status == OK and not result.HasField("fault"):
            if len(self._recent) >= RECENT_MAX:
                del self._recent[next(iter(self._recent))]
            self._recent[key] = result
        return result


def _failure_of(nack: consumer_pb2.Nack, policy: RetryPolicy | None) -> FailureDetails:
    return FailureDetails(nack.error, policy, nack.delay_ms if nack.HasField("delay_ms") else None, nack.reject)


def delay_violations(nack: consumer_pb2.Nack) -> list[Violation]:
    return within("delay_ms", nack.delay_ms, 0, limits.BACKOFF_MS_MAX, note=" (12 h)")


def nack_violations(request: consumer_pb2.NackRequest) -> list[Violation]:
    """Violations of a request as a whole, except its group."""
    violations = retry_policy.violations("policy", request.policy)
    if not 1 <= len(request.nacks) <= limits.NACKS_MAX:
        violations.append(Violation("nacks", f"are {len(request.nacks)}, not 1 to {limits.NACKS_MAX}"))
    return violations
