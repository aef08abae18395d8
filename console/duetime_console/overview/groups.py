"""Dead letters, waiting retries and lag of all groups, counted in turns of LOOKED_MAX groups.

The contract counts one group a call. A sum of all groups is therefore as old as its oldest part; `GroupSums` has the
number of groups in it.
"""

import asyncio

from duetime.v1 import consumer_pb2

from duetime_console.gateway import Gateway, GatewayError
from duetime_console.overview.samples import GroupCounts, GroupSums

# Groups of one turn, and concurrent calls.
LOOKED_MAX = 100
_AT_ONCE = 8


class GroupWatch:
    """The counts of a cluster."""

    def __init__(self, gateway: Gateway, timeout_s: float) -> None:
        self._gateway = gateway
        self._timeout_s = timeout_s
        self._counts: dict[str, GroupCounts] = {}
        # Groups of the last turn, and groups created since the first one that are not counted yet.
        self._names: set[str] | None = None
        self._made: set[str] = set()
        # The last group of the previous turn: the next turn begins after it.
        self._last = ""

    async def look(self, token: str) -> GroupSums:
        """Counts the next LOOKED_MAX groups, by name. Raises: GatewayError."""
        listed = await self._gateway.call("ListGroups", consumer_pb2.ListGroupsRequest(), token, self._timeout_s)
        names = sorted(group.name for group in listed.groups)
        if self._names is not None:
            self._made |= set(names) - self._names
        self._names = set(names)
        behind = [name for name in names if name > self._last]
        turn = (behind + names[: len(names) - len(behind)])[:LOOKED_MAX]
        room = asyncio.Semaphore(_AT_ONCE)

        async def count(name: str) -> GroupCounts | None:
            async with room:
                return await self._count(name, token)

        found = await asyncio.gather(*map(count, turn))
        self._last = turn[-1] if turn else ""
        came = sum(self._note(name, counts) for name, counts in zip(turn, found, strict=True))
        self._counts = {name: self._counts[name] for name in names if name in self._counts}
        sums = GroupCounts(*map(sum, zip(*self._counts.values(), strict=True))) if self._counts else GroupCounts()
        return GroupSums(sums, len(self._counts), len(names), came)

    def fullest(self, most: int) -> list[str]:
        """Counted groups with dead letters, the fullest first."""
        some = [name for name, counts in self._counts.items() if counts.dead_letters]
        return sorted(some, key=lambda name: (-self._counts[name].dead_letters, name))[:most]

    def _note(self, name: str, counts: GroupCounts | None) -> int:
        """The number of new dead letters."""
        if counts is None:
            self._counts.pop(name, None)
            return 0
        before = self._counts.get(name, GroupCounts() if name in self._made else counts)
        self._made.discard(name)
        self._counts[name] = counts
        return max(0, counts.dead_letters - before.dead_letters)

    async def _count(self, name: str, token: str) -> GroupCounts | None:
        """None: the group, or one of its shards, does not answer. Raises: GatewayError: no group answers."""
        try:
            request = consumer_pb2.DescribeGroupRequest(name=name)
            described = await self._gateway.call("DescribeGroup", request, token, self._timeout_s)
        except GatewayError as error:
            if error.code in ("UNAUTHENTICATED", "UNAVAILABLE"):
                raise
            return None
        if described.unreachable_shards:
            return None
        lag = sum(queue.lag for queue in described.queues)
        return GroupCounts(described.dead_letters, described.waiting_retries, lag)
