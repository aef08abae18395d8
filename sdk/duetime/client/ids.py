"""Message ids: 32 upper-case hex digits in RocketMQ's shape, unique without coordination.

    7F000001  4D2A  9C0FF1E3  5B2F00A1C3D4
    IPv4      pid   random    counter, from the start time on

RocketMQ's own counter restarts every millisecond. This one only grows, so an id does not read the clock. Packs take ids
in blocks, with random digits of their own.
"""

import itertools
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from duetime_format.limits import SEND_COUNT_MAX

from duetime.client.process import after_fork

COUNTER_DIGITS = 12
# Ids of one block: enough for the largest pack.
BLOCK_COUNT = SEND_COUNT_MAX
_COUNTER_BITS = 4 * COUNTER_DIGITS
_COUNTER_MASK = (1 << _COUNTER_BITS) - 1


def _own_address() -> bytes:
    """The IPv4 address of the interface that this machine sends from; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return socket.inet_aton("127.0.0.1")


class _Series(NamedTuple):
    """The ids with one prefix."""

    prefix: str
    next: Callable[[], int]


def _series(step: int) -> _Series:
    head = _own_address() + (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(4)
    # 32 bits of milliseconds, 16 of count: above 65 million ids a second the counter only runs ahead of the clock.
    start = (time.time_ns() // 1_000_000 & 0xFFFFFFFF) << 16
    return _Series(head.hex().upper(), itertools.count(start, step).__next__)


class _Ids:
    """The ids of one process; a forked child starts its own."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drops the prefixes in a forked child: they are the parent's."""
        self._singles: _Series | None = None
        self._blocks: _Series | None = None

    def make(self) -> str:
        series = self._singles
        if series is None:
            series = self._singles = _series(1)
        return f"{series.prefix}{series.next() & _COUNTER_MASK:012X}"

    def make_block(self) -> tuple[str, int]:
        """A prefix and a number: the BLOCK_COUNT ids from there on are the caller's."""
        series = self._blocks
        if series is None:
            series = self._blocks = _series(BLOCK_COUNT)
        return series.prefix, series.next() & _COUNTER_MASK


def numbered(prefix: str, number: int) -> str:
    """The id with this prefix and counter."""
    return f"{prefix}{number:012X}"


def later(message_id: str, by: int) -> str:
    """The id `by` steps after one that ends with a counter."""
    return numbered(message_id[:-COUNTER_DIGITS], int(message_id[-COUNTER_DIGITS:], 16) + by)


_ids = _Ids()
after_fork(_ids.forget)

new_id = _ids.make
new_block = _ids.make_block
