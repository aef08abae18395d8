"""Decides the fate of leased messages that failed, and has the decisions settled."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duetime.v1 import consumer_pb2, store_pb2
from duetime.v1.message_pb2 import RetryPolicy
from duetime_core.errors import DataLoss, DueTimeError
from duetime_core.rpc.calls import fault_of
from duetime_core.telemetry.defects import defect
from duetime_format import expiry, names, record
from duetime_format.errors import DamagedBytes
from duetime_format.levels import DelayLevels
from duetime_format.properties import value_of

from duetime_retry.deliveries import failed_delivery
from duetime_retry.metrics import RetryMetrics
from duetime_retry.policies import Policies, RetryRules, policy_for
from duetime_retry.policy import Redeliver, decide
from duetime_retry.settling import FailureCase, FailureSettler
from duetime_retry.topics import GroupTopics


@dataclass(frozen=True, slots=True)
class FailureDetails:
    """The details of a failure. `error` None: there are none, the lease ended."""

    error: consumer_pb2.HandlerError | None = None
    policy: RetryPolicy | None = None
    delay_ms: int | None = None
    reject: bool = False


class Decider:
    """Decides by the policy in force, and has the decision settled."""

    def __init__(
        self,
        policies: Policies,
        topics: GroupTopics,
        settler: FailureSettler,
        levels: DelayLevels,
        metrics: RetryMetrics,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._policies = policies
        self._topics = topics
        self._settler = settler
        self._levels = levels
        self._metrics = metrics
        self._chance = chance

    async def deal_with(
        self,
        shard: int,
        group: str,
        now_ms: int,
        leased: Sequence[store_pb2.LeasedRecord],
        failures: Sequence[FailureDetails],
    ) -> list[consumer_pb2.NackResult]:
        """Decides and settles a group's failed messages on a shard. Returns the result of each, in order; a fault of
        one harms no other."""
        try:
            results = await self._dealt_with(shard, group, now_ms, leased, failures)
        except DueTimeError as error:
            results = [consumer_pb2.NackResult(attempt=one.attempt, fault=fault_of(error)) for one in leased]
        for result in results:
            if result.HasField("fault"):
                self._metrics.faults.labels(result.fault.reason).inc()
        return results

    async def _dealt_with(
        self,
        shard: int,
        group: str,
        now_ms: int,
        leased: Sequence[store_pb2.LeasedRecord],
        failures: Sequence[FailureDetails],
    ) -> list[consumer_pb2.NackResult]:
        """Raises: DueTimeError: the database does not answer, so no message can be decided."""
        rules = await self._policies.of_group(group)
        origins = await self._origins(shard, leased)
        results = [consumer_pb2.NackResult(attempt=one.attempt) for one in leased]
        cases: dict[int, FailureCase] = {}
        for index, (one, failure) in enumerate(zip(leased, failures, strict=True)):
            try:
                cases[index] = self._case(now_ms, one, failure, rules, origins.get((one.topic, one.queue)))
            except DamagedBytes as error:
                results[index].fault.CopyFrom(fault_of(DataLoss(error.text)))
            except Exception as error:
                # One odd message must not block the others of its group.
                results[index].fault.CopyFrom(fault_of(defect(error, "deciding", shard=shard, group=group)))
        settled = await self._settler.settle(shard, group, now_ms, list(cases.values()))
        for index, result in zip(cases, settled, strict=True):
            results[index] = result
        return results

    async def _origins(self, shard: int, leased: Sequence[store_pb2.LeasedRecord]) -> dict[tuple[str, int], int | None]:
        """The public queue number, by topic and queue on the shard. A retry topic's messages carry theirs."""
        places = {(one.topic, one.queue) for one in leased if not one.topic.startswith(names.RETRY_PREFIX)}
        return {place: await self._topics.queue_at(place[0], shard, place[1]) for place in places}

    def _case(
        self,
        now_ms: int,
        leased: store_pb2.LeasedRecord,
        failure: FailureDetails,
        rules: RetryRules,
        origin_queue: int | None,
    ) -> FailureCase:
        """Raises: DamagedBytes."""
        found = record.decode(leased.record)
        policy = policy_for(found, failure.policy, rules.policy, leased.max_attempts)
        decision = decide(
            leased.attempt, policy, self._levels, self._chance(), delay_ms=failure.delay_ms, reject=failure.reject
        )
        expires_at_ms = expiry.of_record(found)
        if expires_at_ms and isinstance(decision, Redeliver) and not _is_dead_letter(found):
            # The store ends it at that time, and an ordered queue continues.
            decision = Redeliver(min(decision.delay_ms, max(expires_at_ms - now_ms, 0)))
        failed = failed_delivery(leased, found, origin_queue, now_ms, failure.error)
        # A lease of exhausted messages has no order of its own.
        return FailureCase(leased, failed, decision, stays=leased.ordered or rules.ordered)


def _is_dead_letter(found: record.Record) -> bool:
    """Whether a group that receives dead letters failed it: they do not expire."""
    topics = found.topic.encode(), value_of(found.properties, record.RETRY_TOPIC.encode()) or b""
    return any(topic.startswith(names.DLQ_PREFIX.encode()) for topic in topics)
