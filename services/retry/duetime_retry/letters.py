"""Dead letters for clients: their fields, filters and redriven records. Pure.

Those written by a RocketMQ broker have neither attempts nor a reason; RETRY_TOPIC names their original topic.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from duetime.v1 import consumer_pb2, message_pb2
from duetime_core.errors import DueTimeError, InvalidArgument, Violation
from duetime_core.rpc.attempts import failed_attempts
from duetime_format import expiry, priority, record
from duetime_format.attempts import AttemptHistory
from duetime_format.limits import PROPERTIES_BYTES_MAX
from duetime_format.names import DLQ_PREFIX, retry_topic
from duetime_format.properties import decode_properties, number_of
from duetime_format.record import Record

from duetime_retry.copies import OF_ONE_WAY, copied, history_of


class NotRedrivable(DueTimeError):
    """A dead letter that can't be redriven; it stays one."""

    reason = "NOT_REDRIVABLE"


@dataclass(frozen=True, slots=True)
class ShardQueue:
    """A queue of %DLQ%group: its public number, its shard, and its number there."""

    queue: int
    shard: int
    shard_queue: int


@dataclass(frozen=True)
class StoredDeadLetter:
    """A dead letter and its place."""

    record: Record
    place: ShardQueue
    offset: int

    @cached_property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.record.properties)

    @cached_property
    def history(self) -> AttemptHistory:
        return history_of(self.record)

    @property
    def id(self) -> str:
        """The sender's id; for a message without one, the offset id of its first record."""
        names = self.properties
        return (
            names.get(record.UNIQ_KEY)
            or names.get(record.ORIGIN_MESSAGE_ID)
            or record.offset_message_id(self.record.store_host, self.record.position)
        )

    @property
    def origin_topic(self) -> str:
        """Empty: unknown."""
        return self.properties.get(record.RETRY_TOPIC) or self.properties.get(record.DLQ_ORIGIN_TOPIC, "")

    @property
    def origin(self) -> tuple[int, int]:
        """Queue and offset of its first record; (0, 0): unknown."""
        return _pair(self.properties.get(record.ORIGIN, "")) or (0, 0)

    @property
    def redriven_count(self) -> int:
        return number_of(self.properties.get(record.REDRIVEN)) or 0

    @property
    def error(self) -> str:
        """`TYPE: message` of the last attempt; empty: unknown."""
        if not self.history.attempts:
            return ""
        last = self.history.attempts[-1]
        return f"{last.type}: {last.message or ''}"


@dataclass(frozen=True)
class LetterCriteria:
    """A filter of dead letters, ready for use."""

    group: str
    from_ms: int = 0
    to_ms: int = 0
    error: str = ""
    tag: str = ""
    key: str = ""
    ids: frozenset[str] = frozenset()
    topic: str = ""

    @classmethod
    def of(cls, given: consumer_pb2.DeadLetterFilter) -> "LetterCriteria":
        return cls(
            given.group,
            given.from_ms,
            given.to_ms,
            given.error.casefold(),
            given.tag,
            given.key,
            frozenset(given.ids),
            given.topic,
        )

    def is_past(self, letter: StoredDeadLetter) -> bool:
        """Whether the letter, and so all after it in its queue, died after the requested time."""
        return 0 < self.to_ms < letter.record.stored_at_ms

    def fits(self, letter: StoredDeadLetter) -> bool:
        if letter.record.stored_at_ms < self.from_ms or self.is_past(letter):
            return False
        if self.ids and letter.id not in self.ids:
            return False
        names = letter.properties
        if self.tag and names.get(record.TAGS) != self.tag:
            return False
        if self.key and self.key not in names.get(record.KEYS, "").split():
            return False
        if self.topic and letter.origin_topic != self.topic:
            return False
        return not self.error or self.error in letter.error.casefold()


def split(records: bytes, offsets: list[int], place: ShardQueue) -> Iterator[StoredDeadLetter]:
    """Letters of whole records stored back to back."""
    at = 0
    for offset in offsets:
        found = record.decode(records, at, check_crc=False)
        yield StoredDeadLetter(found, place, offset)
        at += found.size


def redriven(letter: StoredDeadLetter, now_ms: int) -> Record:
    """The record for %RETRY%group that delivers the message to its group once more, at once and with all its attempts.

    Raises:
        NotRedrivable: its original topic is unknown, it has expired, or the copy's properties have no room.
    """
    expires_at_ms = expiry.of_record(letter.record)
    if 0 < expires_at_ms <= now_ms and not letter.origin_topic.startswith(DLQ_PREFIX):
        raise NotRedrivable(f"it expired at {expires_at_ms}: the group would not receive it")
    if not letter.origin_topic:
        raise NotRedrivable("its original topic is unknown: it has neither RETRY_TOPIC nor DLQ_ORIGIN_TOPIC")
    properties = {name: value for name, value in letter.properties.items() if name not in OF_ONE_WAY}
    properties[record.RETRY_TOPIC] = letter.origin_topic
    properties[record.REDRIVEN] = str(letter.redriven_count + 1)
    copy = copied(letter.record, retry_topic(group_of(letter)), 0, properties, 0)
    if len(copy.properties) > PROPERTIES_BYTES_MAX:
        raise NotRedrivable(
            f"its properties would take {len(copy.properties)} bytes; the limit is {PROPERTIES_BYTES_MAX}"
        )
    return copy


def dead_letter_of(letter: StoredDeadLetter) -> consumer_pb2.DeadLetter:
    """The dead letter in the contract's form."""
    found, names = letter.record, letter.properties
    queue, offset = letter.origin
    return consumer_pb2.DeadLetter(
        message=message_pb2.StoredMessage(
            topic=letter.origin_topic,
            queue=queue,
            offset=offset,
            body=found.body,
            properties={name: value for name, value in names.items() if name not in record.RESERVED_PROPERTIES},
            tags=names.get(record.TAGS, ""),
            keys=names.get(record.KEYS, "").split(),
            id=letter.id,
            flag=found.flag,
            born_at_ms=found.born_at_ms,
            stored_at_ms=found.stored_at_ms,
            attempt=found.reconsume_times,
            born_host=record.host_text(found.born_host),
            sys_flag=found.sys_flag,
            priority=priority.of(names),
            expires_at_ms=expiry.of_record(found),
        ),
        group=group_of(letter),
        shard=letter.place.shard,
        queue=letter.place.queue,
        offset=letter.offset,
        dead_at_ms=found.stored_at_ms,
        reason=names.get(record.DEAD_REASON, ""),
        attempts=failed_attempts(letter.history),
        redriven_count=letter.redriven_count,
    )


def group_of(letter: StoredDeadLetter) -> str:
    return letter.record.topic.removeprefix(DLQ_PREFIX)


def page_of(queue: int, offset: int) -> str:
    """The place at which a listing continues: a public queue number, and the offset there. Opaque to clients."""
    return base64.urlsafe_b64encode(f"{queue}:{offset}".encode()).decode()


def newest_page_of(cursors: Mapping[int, int]) -> str:
    """As `page_of`, newest first: each queue's number, and the offset before which it continues; empty: nowhere."""
    text = ",".join(f"{queue}:{offset}" for queue, offset in cursors.items())
    return base64.urlsafe_b64encode(f"<{text}".encode()).decode() if cursors else ""


def parse_page(page: str) -> tuple[int, int]:
    """Raises: InvalidArgument."""
    return _place(_text_of(page), page)


def parse_newest_page(page: str) -> dict[int, int]:
    """The cursors of `newest_page_of`. Raises: InvalidArgument."""
    text = _text_of(page)
    if not text.startswith("<"):
        raise _no_page(page)
    return dict(_place(part, page) for part in text[1:].split(","))


def _text_of(page: str) -> str:
    try:
        return base64.b64decode(page, b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise _no_page(page) from None


def _place(text: str, page: str) -> tuple[int, int]:
    place = _pair(text)
    if place is None:
        raise _no_page(page)
    return place


def _no_page(page: str) -> InvalidArgument:
    return InvalidArgument([Violation("page", f"{page[:64]!r} is not the next_page of an answer in this order")])


def _pair(text: str) -> tuple[int, int] | None:
    """Queue and offset in `QUEUE:OFFSET`."""
    queue, offset = map(number_of, text.partition(":")[::2])
    return None if queue is None or offset is None else (queue, offset)
