"""Many messages split into requests."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from duetime_format.record import LITE_TOPIC

from duetime.client.admission import check
from duetime.client.errors import DueTimeError
from duetime.client.ids import new_id
from duetime.client.message import Message, Repeatable, wire_fields
from duetime.client.sending.batch import (
    REQUEST_BYTES_MAX,
    REQUEST_COUNT_MAX,
    MessageBatch,
    Request,
    SendBatch,
    encode,
    encode_fields,
    now_ms,
)
from duetime.client.sending.packs import alike
from duetime.v1 import gateway_pb2

T = TypeVar("T")


def _has_place(message: Message) -> bool:
    """Whether a field of the message chooses its queue: such messages of one queue keep their order."""
    has_queue = message.queue is not None or message.priority is not None
    if has_queue or message.sharding_key or message.lite_topic or message.replace:
        return True
    return bool(message.properties) and LITE_TOPIC in message.properties


def _born(message: Message, now_ms: int) -> int:
    return message.born_at_ms if isinstance(message, Repeatable) else now_ms


class Chunks(Generic[T]):
    """Splits many messages into batches, lazily; each comes with the indices of its messages.

    `outcomes` grows by one for each message: None, or the error of one that can't be encoded. Messages that differ in
    the body only become packs; the others of a batch are encoded together, in a third of the time of single encodings.
    """

    def __init__(self, messages: Iterable[Message], request: Request = gateway_pb2.SendRequest) -> None:
        self.outcomes: list[T | DueTimeError | None] = []
        self._messages = messages
        self._request = request

    def __iter__(self) -> Iterator[tuple[list[int], MessageBatch]]:
        indices: list[int] = []
        waiting: list[Message] = []
        size = 0
        for index, message in enumerate(self._messages):
            self.outcomes.append(None)
            message_size = _size(message)
            if len(waiting) >= REQUEST_COUNT_MAX or (waiting and size + message_size > REQUEST_BYTES_MAX):
                yield from self._batches(indices, waiting)
                indices, waiting, size = [], [], 0
            indices.append(index)
            waiting.append(message)
            size += message_size
        yield from self._batches(indices, waiting)

    def note(self, indices: list[int], outcomes: Iterable[T | DueTimeError]) -> None:
        """Stores the outcomes of the messages of a batch."""
        for index, outcome in zip(indices, outcomes, strict=True):
            self.outcomes[index] = outcome

    def _batches(self, indices: list[int], messages: list[Message]) -> Iterator[tuple[list[int], MessageBatch]]:
        """Packs of messages that are alike, and batches of the others between them."""
        done = 0
        if self._request is gateway_pb2.SendRequest:
            for start, stop, pack in alike(messages):
                yield from self._batch(indices[done:start], messages[done:start])
                yield indices[start:stop], pack
                done = stop
        yield from self._batch(indices[done:], messages[done:])

    def _batch(self, indices: list[int], messages: list[Message]) -> Iterator[tuple[list[int], SendBatch]]:
        """The batch of these messages; none if there are none, or all of them are rejected."""
        if not messages:
            return
        born_at_ms = now_ms()
        ids = [message.id or new_id() for message in messages]
        try:
            fields = [
                wire_fields(message, id_, _born(message, born_at_ms))
                for message, id_ in zip(messages, ids, strict=True)
            ]
            for one in fields:
                check(one, is_half=self._request is not gateway_pb2.SendRequest)
            encoded = [encode_fields(fields, self._request)]
        except (TypeError, ValueError):
            indices, messages, ids, encoded = self._sort_out(indices, messages, ids, born_at_ms)
        if indices:
            topics = [message.topic for message in messages]
            ordered = any(map(_has_place, messages))
            yield indices, SendBatch(encoded, ids, topics, sum(map(len, encoded)), ordered, self._request)

    def _sort_out(
        self, indices: list[int], messages: list[Message], ids: list[str], born_at_ms: int
    ) -> tuple[list[int], list[Message], list[str], list[bytes]]:
        """The messages that can be encoded; the others get their errors."""
        kept: list[tuple[int, Message, str, bytes]] = []
        for index, message, message_id in zip(indices, messages, ids, strict=True):
            try:
                encoded = encode(message, message_id, _born(message, born_at_ms), self._request)
                kept.append((index, message, message_id, encoded))
            except DueTimeError as error:
                self.outcomes[index] = error
        return (
            [index for index, _, _, _ in kept],
            [message for _, message, _, _ in kept],
            [message_id for _, _, message_id, _ in kept],
            [encoded for _, _, _, encoded in kept],
        )


def _size(message: Message) -> int:
    """The approximate size of a message in a request: characters count as bytes, lengths and numbers as a constant."""
    size = len(message.body) + 128
    if message.properties:
        size += sum(len(name) + len(value) + 8 for name, value in message.properties.items())
    if message.keys:
        size += sum(map(len, message.keys)) + 2 * len(message.keys)
    return size
