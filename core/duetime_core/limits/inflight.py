"""Limits the calls in flight of a server; the last tenth is for callers with few."""

from duetime_core.access.callers import host_of
from duetime_core.errors import Overloaded
from duetime_core.limits.shares import Shares
from duetime_core.within.server import PEER


class InFlightCalls:
    """Counts calls by caller. Calls of this process's own nodes belong to no share."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shares: Shares[str] = Shares(limit, share=limit)

    def enter(self, peer: str, caller: str = "") -> str:
        """Takes a place for a call of `caller`, else of the peer's host. Returns the argument for `leave`.

        Raises:
            Overloaded: no place is left, or none for this caller.
        """
        shares = self._shares
        if shares.used >= self._limit:
            raise Overloaded(f"{self._limit} calls are in flight, the limit of this process")
        host = caller or host_of(peer)
        if (caller or not peer.startswith(PEER)) and not shares.may_take(host):
            text = f"{shares.held(host)} calls of {host} are in flight, and the last tenth of {self._limit}"
            raise Overloaded(f"{text} is for callers with few")
        shares.take(host)
        return host

    def leave(self, host: str) -> None:
        self._shares.give(host)
