"""Generates ids for messages without one: RocketMQ's form, 32 upper-case hex digits."""

import ipaddress
from collections.abc import Callable

_LAST = (1 << 48) - 1


class MessageIds:
    """Generates ids: address (4 bytes), process id (2), random (4), milliseconds (4), counter (2).

    Milliseconds and counter form one increasing number, so ids of a process differ even if the clock stops or steps
    back.
    """

    def __init__(self, address: str, process_id: int, random: bytes, now_ms: Callable[[], int]) -> None:
        sender = _ipv4_bytes(address) + (process_id & 0xFFFF).to_bytes(2, "big") + random[:4]
        self._prefix = sender.hex().upper().encode()
        self._now_ms = now_ms
        self._number = 0

    def renew(self) -> None:
        """Moves the following ids to the present time; called once per batch."""
        self._number = max(self._number, self._now_ms() << 16)

    def make(self) -> str:
        prefix, number = self.reserve(1)
        return f"{prefix.decode()}{number & _LAST:012X}"

    def reserve(self, count: int) -> tuple[bytes, int]:
        """Reserves `count` ids. Returns their first 20 digits, and the first number; its lower 48 bits follow them."""
        first = self._number + 1
        self._number += count
        return self._prefix, first


def _ipv4_bytes(address: str) -> bytes:
    """The last four bytes of a numeric address; zeros for a name, since ids only need to differ."""
    try:
        return ipaddress.ip_address(address).packed[-4:]
    except ValueError:
        return bytes(4)
