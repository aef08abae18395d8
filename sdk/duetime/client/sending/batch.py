"""Messages encoded for requests, in batches up to the size of one request."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from duetime_format import limits

from duetime.client.errors import DueTimeError, InvalidMessage, Violation
from duetime.client.message import Message, Receipt, refused, wire_fields
from duetime.client.sending.ids import new_id
from duetime.v1 import gateway_pb2, transactions_pb2

REQUEST_COUNT_MAX = 512
REQUEST_BYTES_MAX = 4 * 1024 * 1024
# gRPC at either end would drop a larger message before the server sees it.
MESSAGE_BYTES_MAX = limits.REQUEST_BYTES_MAX
BATCH_BYTES_MAX = limits.BATCH_BYTES_MAX

T = TypeVar("T")

Outcome = Receipt | DueTimeError
# Requests whose field `messages` has messages.
Request = type[gateway_pb2.SendRequest] | type[transactions_pb2.PrepareRequest]


@dataclass(slots=True)
class SendBatch:
    """Messages of one request. `encoded` has requests of one or more messages; joined, they are one request."""

    encoded: list[bytes] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    size: int = 0
    ordered: bool = False
    """A message names its queue, directly or by sharding key, or replaces others: requests must not overtake each
    other."""
    request: Request = gateway_pb2.SendRequest
    """What `encoded` has, where it is not one request for each message."""

    def add(self, encoded: bytes, message_id: str, topic: str) -> None:
        """Adds a message that was encoded by itself."""
        self.encoded.append(encoded)
        self.ids.append(message_id)
        self.topics.append(topic)
        self.size += len(encoded)

    def is_full_for(self, size: int) -> bool:
        count = len(self.ids)
        return count >= REQUEST_COUNT_MAX or (count > 0 and self.size + size > REQUEST_BYTES_MAX)

    def part(self, indices: Iterable[int]) -> "SendBatch":
        """A batch of some of the messages."""
        encoded = self.encoded
        if len(encoded) < len(self.ids):
            messages = self.request.FromString(b"".join(encoded)).messages
            encoded = [self.request(messages=[message]).SerializeToString() for message in messages]
        part = SendBatch()
        for n in indices:
            part.add(encoded[n], self.ids[n], self.topics[n])
        return part


class WholeBatch(SendBatch):
    """Messages that are stored all or none: they are repeated together."""

    def part(self, indices: Iterable[int]) -> "SendBatch":
        return self


# What a record takes beside its message in a request, at most.
_RECORD_BYTES = 256 + limits.TIMER_BYTES_MAX


def whole_batches(
    topic: str, messages: Iterable[Message | bytes], queue: int | None, sharding_key: str, *, split: bool
) -> Iterator[WholeBatch]:
    """The messages as one batch, or with `split` as few as the limits allow.

    Raises:
        InvalidMessage: a message can't be encoded; its place is in the field.
    """
    born_at_ms, batch, size = now_ms(), WholeBatch(), 0
    common = gateway_pb2.SendBatchRequest(topic=topic, sharding_key=sharding_key)
    if queue is not None:
        common.queue = queue
    head = common.SerializeToString()
    for index, given in enumerate(messages):
        message = given if isinstance(given, Message) else Message(topic, given)
        encoded, message_id = _of_batch(message, topic, index, born_at_ms)
        is_full = len(batch.ids) == limits.SEND_COUNT_MAX or size + len(encoded) + _RECORD_BYTES > BATCH_BYTES_MAX
        if split and batch.ids and is_full:
            batch.encoded.append(head)
            yield batch
            batch, size = WholeBatch(), 0
        batch.add(encoded, message_id, topic)
        size += len(encoded) + _RECORD_BYTES
    batch.encoded.append(head)
    yield batch


def _of_batch(message: Message, topic: str, index: int, born_at_ms: int) -> tuple[bytes, str]:
    """The message as a request of it alone, and its id."""
    message_id = message.id or new_id()
    fields: dict[str, Any] = {}
    try:
        fields = wire_fields(message, message_id, born_at_ms)
        if fields.get("topic") == topic:
            del fields["topic"]
        return gateway_pb2.SendBatchRequest(messages=[fields]).SerializeToString(), message_id
    except InvalidMessage as error:
        violations = [Violation(f"messages[{index}].{one.field}", one.description) for one in error.violations]
        raise InvalidMessage(f"messages[{index}].{error.text}", reason=error.reason, violations=violations) from None
    except (TypeError, ValueError) as error:
        raise refused(fields, error).about(message_id) from error


def now_ms() -> int:
    """The producer's clock, for `born_at_ms`."""
    return time.time_ns() // 1_000_000


def encode(message: Message, message_id: str, born_at_ms: int, request: Request = gateway_pb2.SendRequest) -> bytes:
    """A request of this one message.

    Raises:
        InvalidMessage: several of delay, level and due time are set, one is malformed, a value does not fit its field,
            or the message does not fit a request.
    """
    fields: dict[str, Any] = {}
    try:
        fields = wire_fields(message, message_id, born_at_ms)
        encoded = _encode([fields], request)
    except InvalidMessage as error:
        raise error.about(message_id) from None
    except (TypeError, ValueError) as error:
        raise refused(fields, error).about(message_id) from error
    if len(encoded) > MESSAGE_BYTES_MAX:
        text = f"takes {len(encoded):,} bytes; a request has room for {MESSAGE_BYTES_MAX:,}"
        raise InvalidMessage.of("message", text).about(message_id)
    return encoded


def _encode(messages: list[dict[str, Any]], request: Request) -> bytes:
    return request(messages=messages).SerializeToString()


class Chunks(Generic[T]):
    """Splits many messages into batches, lazily; each comes with the indices of its messages.

    `outcomes` grows by one for each message: None, or the error of one that can't be encoded. A batch is encoded as a
    whole, in a third of the time that it takes message by message.
    """

    def __init__(self, messages: Iterable[Message], request: Request = gateway_pb2.SendRequest) -> None:
        self.outcomes: list[T | DueTimeError | None] = []
        self._messages = messages
        self._request = request

    def __iter__(self) -> Iterator[tuple[list[int], SendBatch]]:
        indices: list[int] = []
        waiting: list[Message] = []
        size = 0
        for index, message in enumerate(self._messages):
            self.outcomes.append(None)
            message_size = _size(message)
            if len(waiting) >= REQUEST_COUNT_MAX or (waiting and size + message_size > REQUEST_BYTES_MAX):
                yield from self._batch(indices, waiting)
                indices, waiting, size = [], [], 0
            indices.append(index)
            waiting.append(message)
            size += message_size
        yield from self._batch(indices, waiting)

    def _batch(self, indices: list[int], messages: list[Message]) -> Iterator[tuple[list[int], SendBatch]]:
        """The batch of these messages; none when all of them are refused."""
        born_at_ms = now_ms()
        ids = [message.id or new_id() for message in messages]
        try:
            fields = [wire_fields(message, id_, born_at_ms) for message, id_ in zip(messages, ids, strict=True)]
            encoded = [_encode(fields, self._request)]
            if len(encoded[0]) > MESSAGE_BYTES_MAX:
                raise ValueError("one of them is too large")
        except (TypeError, ValueError):
            indices, messages, ids, encoded = self._sort_out(indices, messages, ids, born_at_ms)
        if indices:
            topics = [message.topic for message in messages]
            ordered = any(message.queue is not None or message.sharding_key or message.replace for message in messages)
            yield indices, SendBatch(encoded, ids, topics, sum(map(len, encoded)), ordered, self._request)

    def _sort_out(
        self, indices: list[int], messages: list[Message], ids: list[str], born_at_ms: int
    ) -> tuple[list[int], list[Message], list[str], list[bytes]]:
        """Those that can be encoded; the others get their errors."""
        kept: list[tuple[int, Message, str, bytes]] = []
        for index, message, message_id in zip(indices, messages, ids, strict=True):
            try:
                encoded = encode(message, message_id, born_at_ms, self._request)
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
