"""How many dead letters all groups have: counted group by group, some at each look, round and round.

The contract counts those of one group. So a count of all is as old as its oldest part, and `Counted` says of how many
groups it is.
"""

import asyncio

from duetime.v1 import consumer_pb2

from duetime_console.gateway import Gateway, GatewayError
from duetime_console.overview.samples import Counted

# Of one look, and how many calls of these are under way at once.
LOOKED_MAX = 100
_AT_ONCE = 8


class Letters:
    """The counts of a cluster."""

    def __init__(self, gateway: Gateway, timeout_s: float) -> None:
        self._gateway = gateway
        self._timeout_s = timeout_s
        self._counts: dict[str, int] = {}
        # Groups of the last look, and those that were made since the first one and are not counted yet.
        self._names: set[str] | None = None
        self._made: set[str] = set()
        # The last that was looked at: the next look goes on behind it.
        self._last = ""

    async def look(self, token: str) -> Counted:
        """Counts the next LOOKED_MAX groups, by name. Raises: GatewayError."""
        listed = await self._gateway.call("ListGroups", consumer_pb2.ListGroupsRequest(), token, self._timeout_s)
        names = sorted(group.name for group in listed.groups)
        if self._names is not None:
            self._made |= set(names) - self._names
        self._names = set(names)
        behind = [name for name in names if name > self._last]
        turn = (behind + names[: len(names) - len(behind)])[:LOOKED_MAX]
        room = asyncio.Semaphore(_AT_ONCE)

        async def count(name: str) -> int | None:
            async with room:
                return await self._count(name, token)

        found = await asyncio.gather(*map(count, turn))
        self._last = turn[-1] if turn else ""
        came = sum(self._note(name, dead) for name, dead in zip(turn, found, strict=True))
        self._counts = {name: self._counts[name] for name in names if name in self._counts}
        return Counted(sum(self._counts.values()), len(self._counts), len(names), came)

    def fullest(self, most: int) -> list[str]:
        """Names of the groups with most dead letters, as far as they are counted; none without any."""
        some = [name for name, dead in self._counts.items() if dead]
        return sorted(some, key=lambda name: (-self._counts[name], name))[:most]

    def _note(self, name: str, dead: int | None) -> int:
        """How many are new."""
        if dead is None:
            self._counts.pop(name, None)
            return 0
        before = self._counts.get(name, 0 if name in self._made else dead)
        self._made.discard(name)
        self._counts[name] = dead
        return max(0, dead - before)

    async def _count(self, name: str, token: str) -> int | None:
        """None: the group, or a shard that has some of it, does not answer. Raises: GatewayError: none does."""
        try:
            request = consumer_pb2.DescribeGroupRequest(name=name)
            described = await self._gateway.call("DescribeGroup", request, token, self._timeout_s)
        except GatewayError as error:
            if error.code in ("UNAUTHENTICATED", "UNAVAILABLE"):
                raise
            return None
        return None if described.unreachable_shards else int(described.dead_letters)
