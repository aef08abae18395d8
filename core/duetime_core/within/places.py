"""Addresses within this process: named before the first call, served once their node has started."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from duetime_core.within.server import InProcessServer


class InProcessAddress:
    """One address. Its server may stop and start again."""

    def __init__(self, address: str, *, listens: bool) -> None:
        """`listens`: whether its server also listens on the address, for other processes."""
        self.address = address
        self.listens = listens
        self.loop = asyncio.get_running_loop()
        self.server: InProcessServer | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def open(self, server: InProcessServer) -> None:
        """Directs calls to this server."""
        self.server = server
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Starts no further call."""
        self.server = None

    async def served(self) -> InProcessServer:
        """The server, once there is one."""
        while self.server is None:
            waiter = self.loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
        return self.server


_places: dict[str, InProcessAddress] = {}


@contextmanager
def places(addresses: Iterable[str], *, listen: bool = False) -> Iterator[None]:
    """While active, servers at these addresses are called without sockets, from the running event loop.

    With `listen` they listen there as well.
    """
    ours = {address: InProcessAddress(address, listens=listen) for address in addresses}
    _places.update(ours)
    try:
        yield
    finally:
        for address in ours:
            del _places[address]


def place_of(address: str) -> InProcessAddress | None:
    """The place of an address; None: it must be reached by a socket, also from other event loops."""
    place = _places.get(address)
    return place if place is not None and place.loop is _running_loop() else None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
