"""The memory that several consumers of one process share."""

from typing import Protocol


class ReceiveRoom(Protocol):
    """The bytes that one consumer may hold. A message counts from its arrival until the server has answered its
    outcome, and with the size of its record: a compressed body counts as stored."""

    async def take(self) -> int:
        """Waits for room, and returns the bytes to ask for; they are held until `received`."""

    def received(self, asked: int, size: int) -> None:
        """Holds the messages of the answer, 0 bytes or more, in place of the bytes asked for."""

    def release(self, size: int) -> None:
        """Releases messages."""
