"""What all views of a message in its wire form show alike."""

from datetime import datetime

from duetime.client.message import moment
from duetime.client.record import decompressed
from duetime.v1 import message_pb2


class MessageView:
    """What its sender gave it. Read on access from its wire form."""

    __slots__ = ("_message",)

    def __init__(self, message: message_pb2.StoredMessage) -> None:
        self._message = message

    @property
    def body(self) -> bytes:
        """As the sender gave it: a compressed one is decompressed. Raises: Damaged."""
        return decompressed(self._message.body, self._message.sys_flag)

    @property
    def tags(self) -> str:
        return self._message.tags

    @property
    def keys(self) -> list[str]:
        return list(self._message.keys)

    @property
    def properties(self) -> dict[str, str]:
        """The user's own; a new dict each time."""
        return dict(self._message.properties)

    @property
    def born_at(self) -> datetime:
        """The producer's clock."""
        return moment(self._message.born_at_ms)
