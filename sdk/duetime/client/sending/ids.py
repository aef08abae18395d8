"""Message ids: 32 upper-case hex digits in RocketMQ's shape, unique without coordination.

    7F000001  4D2A  9C0FF1E3  5B2F00A1C3D4
    IPv4      pid   random    counter, from the start time on

RocketMQ's own counter restarts every millisecond; this one only grows, so an id costs no call of the clock.
"""

import itertools
import os
import secrets
import socket
import time

_COUNTER_BITS = 48


def _own_address() -> bytes:
    """The IPv4 address that this machine would send from; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return socket.inet_aton("127.0.0.1")


class _Ids:
    """The ids of one process; a forked child starts its own."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child: the prefix is the parent's."""
        self._prefix = ""

    def make(self) -> str:
        if not self._prefix:
            self._start()
        return f"{self._prefix}{self._next() & (1 << _COUNTER_BITS) - 1:012X}"

    def _start(self) -> None:
        head = _own_address() + (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(4)
        # 32 bits of milliseconds, 16 of count: past 65 million ids a second it only runs ahead of the clock.
        start = (time.time_ns() // 1_000_000 & 0xFFFFFFFF) << 16
        self._next = itertools.count(start).__next__
        self._prefix = head.hex().upper()


_ids = _Ids()
os.register_at_fork(after_in_child=_ids.forget)

new_id = _ids.make
