"""Capacity for bytes in transit in a process, shared by connections."""

import asyncio
from collections import deque

from duetime_core.access.callers import host_of
from duetime_core.clock import Clock
from duetime_core.errors import Overloaded
from duetime_core.limits.shares import Shares

# An awaited answer has an unknown size: after a while this much capacity stays reserved for it.
AWAITED_BYTES = 16 * 1024
AWAITED_AFTER_MS = 250


class Reservation:
    """Capacity for one answer or request; `size` bytes are reserved. A context manager, or `close` it."""

    __slots__ = ("_room", "_timer", "peer", "size")

    def __init__(self, room: "Room", peer: str, size: int) -> None:
        self._room = room
        self._timer: asyncio.TimerHandle | None = None
        self.peer = peer
        self.size = size
        if size:
            room.shares.take(peer, size)

    def await_answer(self) -> None:
        """Reduces the reservation to AWAITED_BYTES if the answer is slow: others may use the rest until then."""
        self._timer = asyncio.get_running_loop().call_later(AWAITED_AFTER_MS / 1000, self._shrink, AWAITED_BYTES)

    def check(self, size: int) -> None:
        """Checks the capacity for a received answer. Raises: Overloaded: it exceeds its reservation, and there is no
        more."""
        if size - self.size > self._room.shares.room(self.peer):
            raise self._room.refused(self.peer)

    def keep(self, size: int) -> None:
        """Adjusts the reservation to the size of the received answer, which may be larger."""
        if self._timer is not None:
            self._timer.cancel()
        if size > self.size:
            self._room.shares.take(self.peer, size - self.size)
            self.size = size
        self._shrink(size)

    def close_after(self, seconds: float) -> None:
        """Releases the capacity only after `seconds`, although nothing is in transit any more."""
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

    def _fits(self, key: str, amount: int) -> bool:
        return amount <= self.room(key)

    def take(self, key: str, amount: int = 1) -> None:
        self._hosts.take(host_of(key), amount)
        super().take(key, amount)

    def give(self, key: str, amount: int = 1) -> None:
        self._hosts.give(host_of(key), amount)
        super().give(key, amount)


class Room:
    """A number of bytes, with a share for each connection; a connection that holds `little` always gets the rest.

    `what`: the purpose in errors; `reason`: of its rejections.
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
        """The number of the `wanted` bytes for which there is capacity.

        Raises:
            Overloaded: less than `least`, the smallest useful number.
        """
        size = min(wanted, self.shares.room(peer))
        if size < min(wanted, least):
            raise self.refused(peer)
        return size

    async def wait(self, peer: str, size: int, clock: Clock, timeout_ms: float) -> Reservation:
        """Waits for capacity for all of it, in turn; a small request that fits does not wait for a large one.

        Raises:
            Overloaded: no capacity in time.
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
        """Assigns capacity to waiters at once, before their tasks run. A waiter above its share does not block
        others."""
        for place in list(self._waiting):
            peer, size, turn = place
            if size <= self.shares.room(peer):
                self._waiting.remove(place)
                turn.set_result(Reservation(self, peer, size))

    def check(self, peer: str) -> None:
        """Raises: Overloaded: the connection exceeds its share by more than `little`: answers not counted in advance
        come on top of reservations that may have filled the share completely."""
        if self.shares.held(peer) > self.shares.share + self.shares.little:
            raise self.refused(peer)

    def refused(self, peer: str) -> Overloaded:
        """Returns the error to raise, and counts it."""
        shares = self.shares
        shares.refused_count += 1
        return Overloaded(
            f"{shares.used} bytes of {self._what} are in transit; the limit is {shares.limit}; "
            f"{shares.held(peer)} belong to this connection; its limit is {shares.share}",
            reason=self._reason,
        )
