"""From leased messages that failed to what is to become of each."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duetime.v1 import consumer_pb2, store_pb2
from duetime.v1.message_pb2 import RetryPolicy
from duetime_core import record
from duetime_core.calls import fault_of
from duetime_core.errors import DueTimeError
from duetime_core.levels import DelayLevels

from duetime_retry.deliveries import failed_delivery
from duetime_retry.policies import Policies, policy_for
from duetime_retry.policy import decide
from duetime_retry.settling import Case, Settler
from duetime_retry.topics import Topics


@dataclass(frozen=True, slots=True)
class Told:
    """What came with a failure. `error` None: nothing came, the lease ended."""

    error: consumer_pb2.HandlerError | None = None
    policy: RetryPolicy | None = None
    delay_ms: int | None = None
    reject: bool = False


class Judge:
    """Decides by whose policy holds, and has it settled."""

    def __init__(
        self,
        policies: Policies,
        topics: Topics,
        settler: Settler,
        levels: DelayLevels,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._policies = policies
        self._topics = topics
        self._settler = settler
        self._levels = levels
        self._chance = chance

    async def deal_with(
        self, shard: int, group: str, now_ms: int, leased: Sequence[store_pb2.LeasedRecord], told: Sequence[Told]
    ) -> list[consumer_pb2.NackResult]:
        """What became of each of a group's messages on a shard, in order; a fault of one harms no other."""
        results = [consumer_pb2.NackResult(attempt=one.attempt) for one in leased]
        cases: dict[int, Case] = {}
        for index, (one, what) in enumerate(zip(leased, told, strict=True)):
            try:
                cases[index] = await self._case(shard, group, now_ms, one, what)
            except DueTimeError as error:
                results[index].fault.CopyFrom(fault_of(error))
        settled = await self._settler.settle(shard, group, now_ms, list(cases.values()))
        for index, result in zip(cases, settled, strict=True):
            results[index] = result
        return results

    async def _case(self, shard: int, group: str, now_ms: int, leased: store_pb2.LeasedRecord, told: Told) -> Case:
        """Raises: DueTimeError: the record is damaged, or the database does not answer."""
        found = record.decode(leased.record)
        rules = await self._policies.of_group(group)
        policy = policy_for(found, told.policy, rules.policy, leased.max_attempts)
        origin = None
        if record.property_value(found.properties, record.RETRY_TOPIC.encode()) is None:
            origin = await self._topics.queue_at(leased.topic, shard, leased.queue)
        decision = decide(
            leased.attempt, policy, self._levels, self._chance(), delay_ms=told.delay_ms, reject=told.reject
        )
        failed = failed_delivery(leased, found, origin, now_ms, told.error)
        # A lease of exhausted messages has no order of its own.
        return Case(leased, failed, decision, stays=leased.ordered or rules.ordered)
