"""The other members of a group: a stream to each, as the members change."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from duetime_store.copies.links import PeerLink
from duetime_store.copies.roster import Roster
from duetime_store.copies.writes import Sending

# Unknown members that a copy answers, at most.
MET_MAX = 16


class Peers:
    """Streams by the numbers of the members; messages to others are dropped."""

    def __init__(self, own: int, make: Callable[[int, str], PeerLink], known: Mapping[int, str]) -> None:
        """`make`: a stream to a member at an address. `known`: addresses that count in place of the roster's."""
        self._own, self._make, self._known = own, make, known
        # Members that were added while this copy was away: its roster will have them.
        self._met: dict[int, str] = {}
        self._links: dict[int, tuple[PeerLink, str]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    def __iter__(self) -> Iterator[int]:
        return iter(self._links)

    def follow(self, roster: Roster) -> None:
        """Opens and closes streams for these members. A removed member may be sent nothing more."""
        addresses = {number: address for number, address in self._met.items() if number > roster.highest}
        addresses |= {number: self.address_of(number, roster) for number in roster.numbers - {self._own}}
        for number, (_, address) in list(self._links.items()):
            if addresses.get(number) != address:
                del self._links[number]
                if (task := self._tasks.pop(number, None)) is not None:
                    task.cancel()
        for number in addresses.keys() - self._links.keys():
            self._links[number] = self._make(number, addresses[number]), addresses[number]
            self._start(number)

    def meet(self, number: int, address: str, roster: Roster) -> None:
        """Opens a stream to a member that the roster does not have yet: it may be the leader."""
        if len(self._met) < MET_MAX:
            self._met[number] = address
            self.follow(roster)

    def address_of(self, number: int, roster: Roster) -> str:
        """The address of a member."""
        return self._known.get(number) or roster.addresses.get(number, "")

    def send(self, sending: Sending) -> None:
        """Queues a message, or drops it."""
        if sending.to in self._links:
            self._links[sending.to][0].send(sending)

    async def run(self) -> None:
        """Keeps the streams open. Raises: RemovedCopy."""
        async with asyncio.TaskGroup() as self._group:
            for number in self._links:
                self._start(number)
            await asyncio.Event().wait()

    def _start(self, number: int) -> None:
        if self._group is not None:
            self._tasks[number] = self._group.create_task(self._links[number][0].run())
