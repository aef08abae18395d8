"""Conditions that hold back deliveries although there are messages."""

from typing import NamedTuple

from duetime_store.groups.pauses import GroupPauses
from duetime_store.groups.permits import GroupPermits


class DeliveryGates(NamedTuple):
    """A group receives while none of its pauses lasts, and as fast as its rate permits."""

    pauses: GroupPauses
    permits: GroupPermits
