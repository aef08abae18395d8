"""Room for bytes that are under way in a process, shared by the connections that they belong to."""

import asyncio
from collections import deque

from duetime_core.callers import host_of
from duetime_core.clock import Clock
from duetime_core.errors import Overloaded
from duetime_core.shares import Shares

# An awaited answer has an unknown size: after a while this much room is kept for it.
AWAITED_BYTES = 16 * 1024
AWAITED_AFTER_MS = 250


class Reservation:
    """Room for one answer or request; `size` bytes are reserved. A context manager, or `close` it."""

    __slots__ = ("_room", "_timer", "peer", "size")

    def __init__(self, room: "Room", peer: str, size: int) -> None:
        self._room = room
        self._timer: asyncio.TimerHandle | None = None
        self.peer = peer
        self.size = size
        if size:
            room.shares.take(peer, size)

    def await_answer(self) -> None:
        """Keeps only AWAITED_BYTES of the room if the answer is long in coming: others may have the rest until then."""
        self._timer = asyncio.get_running_loop().call_later(AWAITED_AFTER_MS / 1000, self._shrink, AWAITED_BYTES)

    def check(self, size: int) -> None:
        """Checks the room for an answer that has come. Raises: Overloaded: it is larger than the room kept for it, and
        there is no more."""
        if size - self.size > self._room.shares.room(self.peer):
            raise self._room.refused(self.peer)

    def keep(self, size: int) -> None:
        """The answer has come: of the room only its size is needed, or more, where it is larger."""
        if self._timer is not None:
            self._timer.cancel()
        if size > self.size:
            self._room.shares.take(self.peer, size - self.size)
            self.size = size
        self._shrink(size)

    def close_after(self, seconds: float) -> None:
        """Gives the room to others only after `seconds`, although nothing is under way any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._shrink, 0)

    def close(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._shrink(0)

    def _shrink(self, size: int) -> None:
        if self.size > size:
            less, self.size = self.size - size, size
            self._room.give(self.peer, less)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HostShares(Shares[str]):
    """Shares of connections within those of their hosts: a host opens as many connections as it likes."""

    def __init__(self, limit: int, share: int, little: int) -> None:
        self._hosts: Shares[str] = Shares(limit, share, little)
        super().__init__(limit, share, little)

    def room(self, key: str) -> int:
        return self.room_within(self._hosts.room(host_of(key)), self._hosts.share, key)

    def take(self, key: str, amount: int = 1) -> None:
        self._hosts.take(host_of(key), amount)
        super().take(key, amount)

    def give(self, key: str, amount: int = 1) -> None:
        self._hosts.give(host_of(key), amount)
        super().give(key, amount)


class Room:
    """A number of bytes, with a share for each connection; a connection that holds `little` finds room to the end.

    `what` the room is for, and the `reason` of its refusals.
    """

    def __init__(
        self, bytes_max: int, *, share: int, little: int, what: str, reason: str, by_host: bool = False
    ) -> None:
        """`by_host`: keys are peers of connections, and those of one host share."""
        shares = HostShares if by_host else Shares[str]
        self.shares: Shares[str] = shares(bytes_max, share, little)
        self._what = what
        self._reason = reason
        self._waiting: deque[tuple[str, int, asyncio.Future[Reservation]]] = deque()

    def left(self, peer: str, wanted: int, least: int) -> int:
        """How many of the `wanted` bytes there is room for.

        Raises:
            Overloaded: there is room for less than `least`, the fewest that are of use.
        """
        size = min(wanted, self.shares.room(peer))
        if size < min(wanted, least):
            raise self.refused(peer)
        return size

    async def wait(self, peer: str, size: int, clock: Clock, timeout_ms: float) -> Reservation:
        """Waits for room for all of it, in turn; a small request that finds room does not wait for a large one.

        Raises:
            Overloaded: there was no room in time.
        """
        if size <= self.shares.room(peer) and (not self._waiting or size <= self.shares.little):
            return Reservation(self, peer, size)
        turn: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        place = peer, size, turn
        self._waiting.append(place)
        try:
            await clock.wait_for(turn, timeout_ms)
        except BaseException:
            if turn.done():
                turn.result().close()
            raise
        finally:
            if not turn.done():
                self._waiting.remove(place)
        if turn.done():
            return turn.result()
        raise self.refused(peer)

    def give(self, peer: str, size: int) -> None:
        self.shares.give(peer, size)
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """Gives room to waiters, which have it from now on, not from when their tasks run. A waiter above its share
        holds up no other."""
        for place in list(self._waiting):
            peer, size, turn = place
            if size <= self.shares.room(peer):
                self._waiting.remove(place)
                turn.set_result(Reservation(self, peer, size))

    def check(self, peer: str) -> None:
        """Raises: Overloaded: the connection holds more than its share already, by more than a little: answers that are
        not counted ahead come on top of rooms that may have filled the share to its last byte."""
        if self.shares.held(peer) > self.shares.share + self.shares.little:
            raise self.refused(peer)

    def refused(self, peer: str) -> Overloaded:
        """The error to raise; it is counted."""
        shares = self.shares
        shares.refused_count += 1
        return Overloaded(
            f"{shares.used} bytes of {self._what} are under way, {shares.limit} at most; "
            f"{shares.held(peer)} of this connection, {shares.share} at most",
            reason=self._reason,
        )
