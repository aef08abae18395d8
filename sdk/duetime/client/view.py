"""Views of messages in their wire form."""

from datetime import datetime

from duetime_format.record import LITE_TOPIC

from duetime.client.bodies import CONTENT_TYPE, JsonBody
from duetime.client.message import moment
from duetime.client.record import decompressed
from duetime.v1 import message_pb2


class MessageView(JsonBody):
    """The sender's part of a message. Fields are decoded on access."""

    __slots__ = ("_message",)

    def __init__(self, message: message_pb2.StoredMessage) -> None:
        self._message = message

    @property
    def id(self) -> str:
        """The sender's id; without one, RocketMQ's id of its first record."""
        return self._message.id

    @property
    def topic(self) -> str:
        """The topic of its delivery; for a failed message that of the first one, empty if unknown."""
        return self._message.topic

    @property
    def body(self) -> bytes:
        """The body as sent, decompressed where necessary. Raises: Damaged."""
        return decompressed(self._message.body, self._message.sys_flag)

    @property
    def content_type(self) -> str:
        """`application/json` if the body was sent as a value; empty: unknown."""
        return self._message.properties.get(CONTENT_TYPE, "")

    @property
    def tags(self) -> str:
        return self._message.tags

    @property
    def keys(self) -> list[str]:
        return list(self._message.keys)

    @property
    def properties(self) -> dict[str, str]:
        """The sender's properties, as a new dict each time."""
        return dict(self._message.properties)

    @property
    def priority(self) -> int | None:
        """The priority as sent; None: it has none."""
        return self._message.priority if self._message.HasField("priority") else None

    @property
    def lite_topic(self) -> str:
        """The lite topic as sent; empty: none."""
        return self._message.properties.get(LITE_TOPIC, "")

    @property
    def expires_at(self) -> datetime | None:
        """The time from which groups do not receive it, by the server's clock; None: no limit, or not known yet."""
        return moment(self._message.expires_at_ms) if self._message.expires_at_ms else None

    @property
    def paused(self) -> bool:
        """Whether it is the pending occurrence of a paused schedule: it is not delivered, and its due time, ten years
        after the pause, only keeps it pending."""
        return self._message.paused

    @property
    def born_at(self) -> datetime:
        """The producer's clock."""
        return moment(self._message.born_at_ms)
