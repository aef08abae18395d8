"""Conditions that hold back deliveries although there are messages."""

from typing import NamedTuple

from duetime.v1 import consumer_pb2
from duetime_core.rpc import group_limits

from duetime_store.groups.keys import KeyGates
from duetime_store.groups.pauses import GroupPauses
from duetime_store.groups.permits import GroupPermits


class DeliveryGates(NamedTuple):
    """A group receives while none of its pauses lasts, as fast as its rate permits, messages whose key has a slot."""

    pauses: GroupPauses
    permits: GroupPermits
    keys: KeyGates

    def learn(self, group: str, limits: consumer_pb2.GroupLimits) -> None:
        """Applies a group's limits and its pause in all topics, unless they are older than the known ones.

        Raises:
            InvalidArgument: as `GroupPermits.learn`.
        """
        if self.permits.learn(group, limits):
            self.keys.refresh(group)
            self.pauses.learn(group, group_limits.pause_of(limits))

    async def forget(self, group: str) -> None:
        """Removes pauses and limits of a deleted group."""
        self.permits.forget(group)
        self.keys.refresh(group)
        await self.pauses.forget(group)

    async def forget_topic(self, topic: str) -> None:
        """Removes pauses of a deleted topic, and the state of limits. Raises: DiskFull, ReadOnly."""
        self.permits.forget_topic(topic)
        self.keys.forget_topic(topic)
        await self.pauses.forget_topic(topic)
