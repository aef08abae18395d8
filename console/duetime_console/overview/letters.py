"""Counts the dead letters of all groups: group by group, some at each read, round and round.

The contract counts the dead letters of one group. A total is therefore as old as its oldest part, and `Counted` has the
number of counted groups.
"""

import asyncio

from duetime.v1 import consumer_pb2

from duetime_console.gateway import Gateway, GatewayError
from duetime_console.overview.samples import Counted

# Groups per read, and concurrent calls for them.
LOOKED_MAX = 100
_AT_ONCE = 8


class Letters:
    """Counts of a cluster."""

    def __init__(self, gateway: Gateway, timeout_s: float) -> None:
        self._gateway = gateway
        self._timeout_s = timeout_s
        self._counts: dict[str, int] = {}
        # Groups of the last read, and groups created since the first one and not counted yet.
        self._names: set[str] | None = None
        self._made: set[str] = set()
        # The last counted group: the next read continues behind it.
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
        """Names of the groups with most dead letters, among counted groups; none if there are no dead letters."""
        some = [name for name, dead in self._counts.items() if dead]
        return sorted(some, key=lambda name: (-self._counts[name], name))[:most]

    def _note(self, name: str, dead: int | None) -> int:
        """Returns the number of new dead letters."""
        if dead is None:
            self._counts.pop(name, None)
            return 0
        before = self._counts.get(name, 0 if name in self._made else dead)
        self._made.discard(name)
        self._counts[name] = dead
        return max(0, dead - before)

    async def _count(self, name: str, token: str) -> int | None:
        """None: the group, or a shard with a part of it, does not answer. Raises: GatewayError: no shard does."""
        try:
            request = consumer_pb2.DescribeGroupRequest(name=name)
            described = await self._gateway.call("DescribeGroup", request, token, self._timeout_s)
        except GatewayError as error:
            if error.code in ("UNAUTHENTICATED", "UNAVAILABLE"):
                raise
            return None
        return None if described.unreachable_shards else int(described.dead_letters)
