"""Packs: messages with different bodies and ids only; they share a request and an answer (docs/adr/0038)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from duetime_format.admission import body_violations
from duetime_format.limits import BODY_BYTES_MAX

from duetime.client.admission import check
from duetime.client.errors import DueTimeError, InvalidMessage, ServerError, from_fault
from duetime.client.ids import later, new_block, numbered
from duetime.client.lengths import Length
from duetime.client.message import Message, Receipt, encoding_error, wire_fields
from duetime.client.sending.batch import SendBatch, now_ms
from duetime.client.sending.outcomes import Outcome, Outcomes
from duetime.v1 import gateway_pb2

# Messages of one pack of bodies: they share a call's price, and the next packs travel meanwhile.
PACK_COUNT_MAX = 2_048
PACK_BYTES_MAX = 1024 * 1024
# A shorter run of alike messages travels among the others: its own request would cost more than it saves.
ALIKE_COUNT_MIN = 16

# All fields of messages but the body: messages that agree in them are alike.
_FIELDS = attrgetter(*(name for name in Message.__dataclass_fields__ if name != "body"))
# Fields that a pack can't carry.
_OWN = attrgetter("key", "keys", "properties", "sharding_key", "id", "flag", "replace", "lite_topic")
_OWN_OR_NONE = attrgetter("queue", "retry", "max_wait", "priority", "expires")


class Pack:
    """Messages of one request that share everything but body and id."""

    __slots__ = ("_bodies", "_common", "_first", "_prefix", "size")

    ordered = False

    def __init__(self, common: gateway_pb2.Pack, bodies: Sequence[bytes], ids: tuple[str, int] | None = None) -> None:
        """`common`: the pack without ids, sizes and bodies. `ids`: prefix and number of the first; None: new ones."""
        self._common = common
        self._bodies = bodies
        self._prefix, self._first = ids or new_block()
        self.size = sum(map(len, bodies))

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def ids(self) -> list[str]:
        return [numbered(self._prefix, self._first + n) for n in range(len(self._bodies))]

    def request(self) -> bytes:
        """Encoded."""
        pack = gateway_pb2.Pack(
            id_prefix=self._prefix,
            first_number=self._first,
            sizes=map(len, self._bodies),
            bodies=b"".join(self._bodies),
        )
        pack.MergeFrom(self._common)
        return gateway_pb2.SendRequest(packs=[pack]).SerializeToString()

    def part(self, indices: Iterable[int]) -> "Pack | SendBatch":
        """A batch of some of the messages, with the same ids."""
        wanted = list(indices)
        first, stop = wanted[0], wanted[-1] + 1
        if stop - first == len(wanted):
            return Pack(self._common, self._bodies[first:stop], (self._prefix, self._first + first))
        return self._unpacked(wanted)

    def unpacked(self) -> SendBatch:
        """The same messages with the same ids, one by one."""
        return self._unpacked(range(len(self)))

    def _unpacked(self, indices: Iterable[int]) -> SendBatch:
        common, batch = self._common, SendBatch()
        message = gateway_pb2.SendRequest().messages.add(
            topic=common.topic, tags=common.tags, born_at_ms=common.born_at_ms
        )
        if due := common.WhichOneof("due"):
            setattr(message, due, getattr(common, due))
        for n in indices:
            message.id, message.body = numbered(self._prefix, self._first + n), self._bodies[n]
            batch.add(gateway_pb2.SendRequest(messages=[message]).SerializeToString(), message.id, common.topic)
        return batch

    def outcomes(self, response: gateway_pb2.SendResponse) -> Sequence[Outcome]:
        """The outcomes of the messages in an answer."""
        topic, outcomes = self._common.topic, Outcomes()
        for one in response.ranges:
            if not one.first.HasField("fault"):
                outcomes.add(Receipt(one.first, topic), one.count)
                continue
            for n in range(len(outcomes), len(outcomes) + one.count):
                outcomes.add(from_fault(one.first.fault, numbered(self._prefix, self._first + n)))
        if len(outcomes) != len(self):
            text = f"the server returned {len(outcomes)} results for {len(self)} messages"
            error = ServerError(text, reason="RESULTS_MISSING")
            return [error.about(message_id) for message_id in self.ids]
        return outcomes


def common_of(message: Message) -> gateway_pb2.Pack:
    """The fields that messages like this one share.

    Raises:
        InvalidMessage: a shared field breaks a rule of every server, or does not fit its type.
    """
    fields = wire_fields(message, "", now_ms())
    check({**fields, "body": b""})
    del fields["body"], fields["id"]
    return _pack(fields)


def born_now(common: gateway_pb2.Pack) -> gateway_pb2.Pack:
    """A copy for messages born now."""
    fresh = gateway_pb2.Pack()
    fresh.CopyFrom(common)
    fresh.born_at_ms = now_ms()
    return fresh


def _pack(fields: dict[str, Any]) -> gateway_pb2.Pack:
    try:
        return gateway_pb2.Pack(**fields)
    except (TypeError, ValueError) as error:
        raise encoding_error(fields, error) from error


def apart(response: gateway_pb2.SendResponse, counts: Sequence[int]) -> Iterator[gateway_pb2.SendResponse]:
    """Splits the answer to several packs in one request, by their message counts, into an answer for each."""
    ranges = list(reversed(response.ranges))
    for number, count in enumerate(counts, 1):
        part = gateway_pb2.SendResponse()
        if response.HasField("fault"):
            part.fault.CopyFrom(response.fault)
        # Surplus results go to the last pack: it detects that the numbers differ.
        while ranges and (count > 0 or number == len(counts)):
            one = ranges.pop()
            if 0 < count < one.count:
                ranges.append(_after(one, count))
                one.count = count
            part.ranges.append(one)
            count -= one.count
        yield part


def _after(one: gateway_pb2.ResultRange, by: int) -> gateway_pb2.ResultRange:
    """The rest of a range without its first `by` messages."""
    rest = gateway_pb2.ResultRange()
    rest.CopyFrom(one)
    rest.count -= by
    if not one.first.HasField("fault"):
        rest.first.message_id, rest.first.offset = later(one.first.message_id, by), one.first.offset + by
    return rest


class Bodies:
    """Splits many bodies into packs, lazily, and stores their outcomes."""

    def __init__(
        self,
        topic: str,
        bodies: Iterable[bytes],
        delay: Length | None,
        level: int | None,
        deliver_at: datetime | None,
        tags: str,
    ) -> None:
        """Raises: InvalidMessage: as `common_of`. TypeError: `bodies` is one body or a str."""
        if isinstance(bodies, str | bytes | bytearray):
            raise TypeError(f"bodies is {type(bodies).__name__}, not an iterable of bytes")
        self._common = common_of(Message(topic, b"", delay, level, tags, deliver_at=deliver_at))
        self._bodies = bodies
        self._parts: list[Sequence[Outcome]] = []

    def __iter__(self) -> Iterator[tuple[int, Pack]]:
        """Packs and their numbers. Raises: TypeError: a body is not bytes."""
        bodies = iter(self._bodies)
        while chunk := list(islice(bodies, PACK_COUNT_MAX)):
            if (body := _no_bytes(chunk)) is not None:
                raise TypeError(f"a body is {type(body).__name__}, not bytes; encode it first: body.encode()")
            for part in _fitting(chunk):
                if len(part) == 1 and len(part[0]) > BODY_BYTES_MAX:
                    self._parts.append([_too_large(part[0])])
                else:
                    yield self._next(part)

    def _next(self, bodies: list[bytes]) -> tuple[int, Pack]:
        self._parts.append(())
        return len(self._parts) - 1, Pack(born_now(self._common), bodies)

    def note(self, number: int, outcomes: Sequence[Outcome]) -> None:
        """Stores the outcomes of the messages of a pack."""
        self._parts[number] = outcomes

    def outcomes(self) -> Outcomes:
        """The outcomes of all messages, once each pack is noted."""
        outcomes = Outcomes()
        for part in self._parts:
            outcomes.extend(part)
        return outcomes


def _no_bytes(bodies: Sequence[object]) -> object | None:
    """The first body that is not bytes."""
    if set(map(type, bodies)) == {bytes}:
        return None
    return next((body for body in bodies if not isinstance(body, bytes)), None)


def _fitting(bodies: list[bytes]) -> Iterator[list[bytes]]:
    """Splits the bodies into parts of at most PACK_BYTES_MAX, or of one body."""
    if sum(map(len, bodies)) <= PACK_BYTES_MAX:
        yield bodies
        return
    start = size = 0
    for at, body in enumerate(bodies):
        if at > start and size + len(body) > PACK_BYTES_MAX:
            yield bodies[start:at]
            start, size = at, 0
        size += len(body)
    yield bodies[start:]


def _too_large(body: bytes) -> DueTimeError:
    return InvalidMessage.of_all(body_violations(body))


def alike(messages: Sequence[Message]) -> Iterator[tuple[int, int, Pack]]:
    """The [start, stop) of messages in a row that can form a pack, and the pack."""
    start = 0
    for _, group in groupby(messages, _FIELDS):
        bodies = [message.body for message in group]
        stop = start + len(bodies)
        first = messages[start]
        if len(bodies) >= ALIKE_COUNT_MIN and is_plain(first) and _no_bytes(bodies) is None:
            # Malformed messages are rejected one by one, when they are encoded.
            with suppress(InvalidMessage):
                yield start, stop, Pack(common_of(first), bodies)
        start = stop


def is_plain(message: Message) -> bool:
    """Whether it sets no field that a pack can't carry."""
    return not any(_OWN(message)) and all(value is None for value in _OWN_OR_NONE(message))
