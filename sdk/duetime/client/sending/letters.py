"""Single messages on their way into a batch: one like its predecessor is not encoded, but gathered for a pack.

message ──▶ letter ──▶ gathered ──▶ a pack if all are alike; else messages
"""

from dataclasses import dataclass
from operator import attrgetter

from duetime_format.limits import BODY_BYTES_MAX

from duetime.client.errors import InvalidMessage
from duetime.client.ids import new_id
from duetime.client.message import Message
from duetime.client.sending.batch import (
    REQUEST_BYTES_MAX,
    REQUEST_COUNT_MAX,
    MessageBatch,
    SendBatch,
    encode,
    now_ms,
)
from duetime.client.sending.packs import Pack, born_now, common_of, is_plain
from duetime.v1 import gateway_pb2

# Possible differences between plain messages beside the body. All of these values are immutable.
_KIND = attrgetter("topic", "tags", "delay", "level", "deliver_at")
_LETTER_BYTES = 64


@dataclass(slots=True)
class OutgoingMessage:
    """A valid message: encoded, or its body and the fields shared with its predecessor."""

    topic: str
    message_id: str = ""
    encoded: bytes = b""
    body: bytes = b""
    common: gateway_pb2.Pack | None = None

    def __len__(self) -> int:
        """Its approximate bytes in a request."""
        return len(self.encoded) or len(self.body) + _LETTER_BYTES


@dataclass(slots=True)
class _Kind:
    """The kind of the last plain message; `common` is set once a second message had it."""

    fields: tuple[object, ...]
    common: gateway_pb2.Pack | None = None


class MessageEncoder:
    """Makes the letters of one producer, in any thread."""

    def __init__(self) -> None:
        self._last: _Kind | None = None

    def letter(self, message: Message) -> OutgoingMessage:
        """Raises: InvalidMessage: as `encode`."""
        common = self._common(message)
        if common is not None:
            return OutgoingMessage(message.topic, body=message.body, common=common)
        message_id = message.id or new_id()
        return OutgoingMessage(message.topic, message_id, encode(message, message_id, now_ms()))

    def _common(self, message: Message) -> gateway_pb2.Pack | None:
        """Fields shared with the previous plain message; None: it is encoded alone."""
        body = message.body
        if not is_plain(message) or not isinstance(body, bytes) or len(body) > BODY_BYTES_MAX:
            return None
        fields, last = _KIND(message), self._last
        if last is None or last.fields != fields:
            self._last = _Kind(fields)
            return None
        if last.common is None:
            try:
                last.common = common_of(message)
            except InvalidMessage:
                return None
        return last.common


class OutgoingBatch:
    """Letters of one request."""

    __slots__ = ("_letters", "_size")

    def __init__(self) -> None:
        self._letters: list[OutgoingMessage] = []
        self._size = 0

    def add(self, letter: OutgoingMessage) -> None:
        self._letters.append(letter)
        self._size += len(letter)

    def is_full_for(self, letter: OutgoingMessage) -> bool:
        count = len(self._letters)
        return count >= REQUEST_COUNT_MAX or (count > 0 and self._size + len(letter) > REQUEST_BYTES_MAX)

    def closed(self) -> MessageBatch:
        """The request."""
        common = self._letters[0].common
        if common is not None and all(letter.common is common for letter in self._letters):
            return Pack(born_now(common), [letter.body for letter in self._letters])
        batch = SendBatch()
        for letter in self._letters:
            if letter.common is not None:
                batch.extend(Pack(born_now(letter.common), [letter.body]).unpacked())
            else:
                batch.add(letter.encoded, letter.message_id, letter.topic)
        return batch
