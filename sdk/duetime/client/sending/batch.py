"""Messages encoded for requests, in batches up to the size of one request."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from duetime_format import limits

from duetime.client.admission import check
from duetime.client.errors import InvalidMessage, Violation
from duetime.client.ids import new_id
from duetime.client.message import Message, encoding_error, wire_fields
from duetime.v1 import gateway_pb2, transactions_pb2

REQUEST_COUNT_MAX = 512
REQUEST_BYTES_MAX = 4 * 1024 * 1024
BATCH_BYTES_MAX = limits.BATCH_BYTES_MAX

# Requests with a field `messages`.
Request = type[gateway_pb2.SendRequest] | type[transactions_pb2.PrepareRequest]


class MessageBatch(Protocol):
    """Messages of one request."""

    size: int

    @property
    def ordered(self) -> bool:
        """Whether a message names its queue, directly or by sharding key, or replaces others: then requests must not
        overtake each other."""

    @property
    def ids(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def request(self) -> bytes:
        """Encoded."""

    def part(self, indices: Iterable[int]) -> "MessageBatch":
        """A batch of some of the messages, with the same ids."""


@dataclass(slots=True)
class SendBatch:
    """Messages of one request. `encoded` has requests of one or more messages; joined, they form one request."""

    encoded: list[bytes] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    size: int = 0
    ordered: bool = False
    kind: Request = gateway_pb2.SendRequest
    """The number of messages in `encoded`, if it is not one request for each message."""

    def __len__(self) -> int:
        return len(self.ids)

    def request(self) -> bytes:
        return b"".join(self.encoded)

    def add(self, encoded: bytes, message_id: str, topic: str) -> None:
        """Adds a message that was encoded alone."""
        self.encoded.append(encoded)
        self.ids.append(message_id)
        self.topics.append(topic)
        self.size += len(encoded)

    def extend(self, other: "SendBatch") -> None:
        """Adds another batch's messages, each encoded alone."""
        for encoded, message_id, topic in zip(other.encoded, other.ids, other.topics, strict=True):
            self.add(encoded, message_id, topic)

    def part(self, indices: Iterable[int]) -> "SendBatch":
        encoded = self.encoded
        if len(encoded) < len(self.ids):
            messages = self.kind.FromString(self.request()).messages
            encoded = [self.kind(messages=[message]).SerializeToString() for message in messages]
        part = SendBatch()
        for n in indices:
            part.add(encoded[n], self.ids[n], self.topics[n])
        return part


class WholeBatch(SendBatch):
    """Messages that are stored all or none: they are retried together."""

    def part(self, indices: Iterable[int]) -> "SendBatch":
        return self


# The most bytes of a record beside its message in a request.
_RECORD_BYTES = 256 + limits.TIMER_BYTES_MAX


def whole_batches(
    topic: str, messages: Iterable[Message | bytes], queue: int | None, sharding_key: str, *, split: bool
) -> Iterator[WholeBatch]:
    """The messages as one batch, or with `split` as few as the limits allow.

    Raises:
        InvalidMessage: a message can't be encoded; the field has its index.
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
    """A request of the message alone, and its id."""
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
        raise encoding_error(fields, error).about(message_id) from error


def now_ms() -> int:
    """The producer's clock, for `born_at_ms`."""
    return time.time_ns() // 1_000_000


def encode(message: Message, message_id: str, born_at_ms: int, request: Request = gateway_pb2.SendRequest) -> bytes:
    """A request of this message alone.

    Raises:
        InvalidMessage: the message breaks a rule of every server, or a value does not fit its field.
    """
    fields: dict[str, Any] = {}
    try:
        fields = wire_fields(message, message_id, born_at_ms)
        check(fields, is_half=request is transactions_pb2.PrepareRequest)
        encoded = encode_fields([fields], request)
    except InvalidMessage as error:
        raise error.about(message_id) from None
    except (TypeError, ValueError) as error:
        raise encoding_error(fields, error).about(message_id) from error
    return encoded


def encode_fields(messages: list[dict[str, Any]], request: Request) -> bytes:
    """A request of messages given by their `wire_fields`."""
    return request(messages=messages).SerializeToString()
