"""Messages in the wire form of a request, gathered up to the size of one."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from duetime.client.errors import DueTimeError
from duetime.client.ids import new_id
from duetime.client.message import Message, Receipt, refused, wire_fields
from duetime.v1 import gateway_pb2

REQUEST_COUNT_MAX = 512
REQUEST_BYTES_MAX = 4 * 1024 * 1024

Outcome = Receipt | DueTimeError


@dataclass(slots=True)
class Batch:
    """Messages of one request. `frames` are encoded SendRequests of one message each: joined, they are one of all."""

    frames: list[bytes] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    size: int = 0
    ordered: bool = False
    """A message names its queue, directly or by sharding key: requests must not overtake each other."""

    def add(self, frame: bytes, message_id: str, topic: str) -> None:
        self.frames.append(frame)
        self.ids.append(message_id)
        self.topics.append(topic)
        self.size += len(frame)

    def is_full_for(self, frame: bytes) -> bool:
        count = len(self.frames)
        return count >= REQUEST_COUNT_MAX or (count > 0 and self.size + len(frame) > REQUEST_BYTES_MAX)

    def part(self, indices: Iterable[int]) -> "Batch":
        """A batch of some of the messages."""
        part = Batch()
        for n in indices:
            part.add(self.frames[n], self.ids[n], self.topics[n])
        return part


def now_ms() -> int:
    """The producer's clock, for `born_at_ms`."""
    return time.time_ns() // 1_000_000


def encode_frame(message: Message, message_id: str, born_at_ms: int) -> bytes:
    """An encoded SendRequest with this one message.

    Raises:
        InvalidMessage: delay and level are both set, the delay is malformed, or a value has no place in its field.
    """
    try:
        fields = wire_fields(message, message_id, born_at_ms)
        return gateway_pb2.SendRequest(messages=[fields]).SerializeToString()
    except (TypeError, ValueError) as error:
        raise refused(error).about(message_id) from error


def chunks(messages: Iterable[Message], outcomes: list[Outcome | None]) -> Iterator[tuple[list[int], Batch]]:
    """Batches with the indices of their messages, made as they are asked for.

    `outcomes` grows by one for each message: None, or the error of what can't be encoded.
    """
    indices: list[int] = []
    batch = Batch()
    born_at_ms = now_ms()
    for index, message in enumerate(messages):
        message_id = message.id or new_id()
        try:
            frame = encode_frame(message, message_id, born_at_ms)
        except DueTimeError as error:
            outcomes.append(error)
            continue
        outcomes.append(None)
        if batch.is_full_for(frame):
            yield indices, batch
            indices, batch = [], Batch()
            born_at_ms = now_ms()
        indices.append(index)
        batch.add(frame, message_id, message.topic)
        if message.sharding_key or message.queue is not None:
            batch.ordered = True
    if indices:
        yield indices, batch
