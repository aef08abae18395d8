"""Messages under a lease, and the data shared by messages of one answer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from duetime_format import errors, receipts, record
from duetime_format.ranges import offsets_of, ranges
from duetime_format.view import quickest_views

from duetime.client.errors import Damaged
from duetime.client.message import moment
from duetime.client.record import ReceivedMessage
from duetime.v1 import consumer_pb2, leases_pb2

OK = consumer_pb2.RECEIPT_STATUS_OK
_UNIQ_KEY, _ORIGIN_MESSAGE_ID, _ORIGIN, _VISIBLE_AT = (
    name.encode() for name in (record.UNIQ_KEY, record.ORIGIN_MESSAGE_ID, record.ORIGIN, record.VISIBLE_AT)
)
# The leading bytes that leases of one shard share. Calls are grouped by them, so that a shard that does not answer
# holds up only its own leases. Nothing else depends on them.
_SHARD_BYTES = 2


@dataclass(frozen=True, slots=True, eq=False)
class DeliveryAttempt:
    """Data shared by messages of one lease that were delivered as the same attempt."""

    topic: str
    # Whether they are in the group's retry topic.
    is_retry: bool
    lease: bytes
    lease_ends_at_ms: int
    # The approximate end of the lease on the event loop's clock.
    ends_at_s: float
    attempt: int = 1
    # True: the server has reported that the lease ended.
    lost: bool = False
    # Receipts by offset, if the server returns them one by one; None: they are derived from the lease's name.
    receipts: Mapping[int, bytes] | None = None


class LeasedMessage(ReceivedMessage):
    """A message that no other consumer receives until its lease ends.

    A retry is a copy in a topic of the group; it shows the topic, queue and offset of the first delivery.
    """

    __slots__ = ("_delivery",)

    _delivery: DeliveryAttempt

    @property
    def id(self) -> str:
        """The sender's id; without one, RocketMQ's id: its first position in the log."""
        return self.text_of(_UNIQ_KEY) or self.text_of(_ORIGIN_MESSAGE_ID) or self._place

    @property
    def topic(self) -> str:
        """The subscribed topic, also for retries."""
        return self._delivery.topic

    @property
    def attempt(self) -> int:
        """The number of this delivery to the group, from 1."""
        return self._delivery.attempt

    @property
    def receipt(self) -> bytes:
        """The name of this delivery for the server."""
        delivery, offset = self._delivery, super().offset
        if delivery.receipts is not None:
            return delivery.receipts[offset]
        return receipts.of_lease(delivery.lease, [offset])[0]

    @property
    def queue(self) -> int:
        return int(self._origin[0]) if self._delivery.is_retry else super().queue

    @property
    def offset(self) -> int:
        """Logical position in (topic, queue)."""
        return int(self._origin[1]) if self._delivery.is_retry else super().offset

    @property
    def due_at(self) -> datetime | None:
        """The due time of this delivery, delayed or as a retry, by the server's clock; None: it was not delayed."""
        visible = self.text_of(_VISIBLE_AT) if self._delivery.is_retry else ""
        return moment(int(visible)) if visible.isdecimal() else super().due_at

    @property
    def late_ms(self) -> int | None:
        """From due to stored in its topic, 0 or more; None: it was not delayed, or is a retry."""
        return None if self._delivery.is_retry else super().late_ms

    @property
    def lease_ends_at(self) -> datetime:
        """When the lease ends, by the server's clock; a consumer renews it while the handler runs."""
        return moment(self._delivery.lease_ends_at_ms)

    @property
    def ends_at_s(self) -> float:
        """The approximate end of the lease on the event loop's clock."""
        return self._delivery.ends_at_s

    @property
    def lost(self) -> bool:
        """Whether the server has reported that the lease ended."""
        return self._delivery.lost

    def lose(self) -> None:
        """Notes the server's report that the lease ended."""
        self._delivery = replace(self._delivery, lost=True)

    def __repr__(self) -> str:
        return f"LeasedMessage({self.id}, topic={self.topic!r}, attempt={self.attempt})"

    @property
    def _origin(self) -> list[str]:
        """Queue and offset of the first delivery; those of the retry if the message does not have them."""
        parts = self.text_of(_ORIGIN).split(":")
        if len(parts) != 2 or not all(part.isdecimal() for part in parts):
            return [str(super().queue), str(super().offset)]
        return parts


# The position in the queue of the record, also for a retry.
_own_offset = ReceivedMessage.offset.__get__


def leased(records: bytes, queue: int, delivery: DeliveryAttempt, attempts: Sequence[int]) -> list[LeasedMessage]:
    """The messages of a run; `attempts` has one value for each, or one for all.

    Raises:
        Damaged: the run is inconsistent.
    """
    try:
        found = quickest_views(LeasedMessage, records, queue)
    except errors.DamagedBytes as error:
        raise Damaged(error.text, reason="RECORD_DAMAGED") from error
    if len(attempts) == 1:
        of_all = delivery if attempts[0] == delivery.attempt else replace(delivery, attempt=attempts[0])
        for message in found:
            message._delivery = of_all
        return found
    if len(found) != len(attempts):
        raise Damaged(f"{len(found)} records came with {len(attempts)} attempts", reason="RUN_DAMAGED")
    of_attempt = {attempt: replace(delivery, attempt=attempt) for attempt in set(attempts)}
    for message, attempt in zip(found, attempts, strict=True):
        message._delivery = of_attempt[attempt]
    return found


def received(run: consumer_pb2.LeasedRun, topic: str, ends_at_s: float) -> list[LeasedMessage]:
    """The messages of a run that came with a receipt each. Raises: Damaged."""
    if not run.receipts:
        return []
    delivery = DeliveryAttempt(
        topic, run.topic != topic, run.receipts[0][: receipts.LEASE_BYTES], run.lease_ends_at_ms, ends_at_s
    )
    found = leased(run.records, run.queue, delivery, run.attempts)
    if len(found) != len(run.receipts):
        raise Damaged(f"{len(found)} records came with {len(run.receipts)} receipts", reason="RUN_DAMAGED")
    names = dict(zip(map(_own_offset, found), run.receipts, strict=True))
    with_names: dict[DeliveryAttempt, DeliveryAttempt] = {}
    for message in found:
        of_it = message._delivery
        if of_it not in with_names:
            with_names[of_it] = replace(of_it, receipts=names)
        message._delivery = with_names[of_it]
    return found


def taken(run: leases_pb2.LeaseRun, topic: str, ends_at_s: float) -> list[LeasedMessage]:
    """The messages of a run of a stream. Raises: Damaged."""
    delivery = DeliveryAttempt(topic, run.topic != topic, run.lease.lease, run.lease_ends_at_ms, ends_at_s)
    return leased(run.records, run.queue, delivery, run.attempts)


def moved(messages: Iterable[LeasedMessage], ends_at_s: float) -> None:
    """Moves the ends of leases to another time of the loop's clock."""
    deliveries: dict[DeliveryAttempt, DeliveryAttempt] = {}
    for message in messages:
        before = message._delivery
        if before not in deliveries:
            later_ms = round((ends_at_s - before.ends_at_s) * 1000)
            ends_at_ms = before.lease_ends_at_ms + later_ms
            deliveries[before] = replace(before, ends_at_s=ends_at_s, lease_ends_at_ms=ends_at_ms)
        message._delivery = deliveries[before]


def by_lease(messages: Iterable[LeasedMessage]) -> list[leases_pb2.LeaseOffsets]:
    """Messages by the name of their lease, without duplicates."""
    found: dict[bytes, list[int]] = {}
    last, add = None, None
    for message in messages:
        delivery = message._delivery
        if delivery is not last:
            last, add = delivery, found.setdefault(delivery.lease, []).append
        assert add is not None, "the first message has another delivery than none"
        add(_own_offset(message))
    return [leases_pb2.LeaseOffsets(lease=lease, offsets=ranges(sorted(set(own)))) for lease, own in found.items()]


def statuses_of(messages: Sequence[LeasedMessage], rest: Sequence[leases_pb2.UnackedOffsets]) -> list[int]:
    """A ReceiptStatus for each; `rest` has the messages whose status is not OK."""
    if not rest:
        return [OK] * len(messages)
    found = {
        (one.messages.lease, offset): int(one.status) for one in rest for offset in offsets_of(one.messages.offsets)
    }
    return [found.get((message._delivery.lease, _own_offset(message)), OK) for message in messages]


def has_names(message: LeasedMessage) -> bool:
    """Whether the message is named by its lease and offset; else only by a receipt."""
    return message._delivery.receipts is None


def lease_of(message: LeasedMessage) -> bytes:
    """The name of its lease."""
    return message._delivery.lease


def shard_of(message: LeasedMessage) -> bytes:
    """A key that the messages of one shard share."""
    return message._delivery.lease[:_SHARD_BYTES]
