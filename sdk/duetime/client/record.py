"""Messages as read: views over the records of the server's log, decoded on access."""

from datetime import datetime

from duetime_format import errors, expiry, priority
from duetime_format.bodies import UnpackError, unpacked
from duetime_format.lanes import is_timer_lane
from duetime_format.record import EXPIRES, LITE_TOPIC, RESERVED_PROPERTIES, SCHEDULE
from duetime_format.schedules import schedule_of
from duetime_format.view import View, quickest_split, quickest_views

from duetime.client.bodies import CONTENT_TYPE, JsonBody
from duetime.client.errors import Damaged
from duetime.client.message import moment

__all__ = ["RESERVED_PROPERTIES", "ReceivedMessage", "decompressed", "slices", "split_records"]

# The limit of a decompressed body: 4 MiB of zeros, compressed a thousand times, would be 4 GiB.
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
_CONTENT_TYPE = CONTENT_TYPE.encode()
_LITE_TOPIC = LITE_TOPIC.encode()
_SCHEDULE = SCHEDULE.encode()
_PRIORITY = priority.PRIORITY.encode()
_EXPIRES = EXPIRES.encode()


class ReceivedMessage(View, JsonBody):
    """A message read from a queue: one record's bytes, decoded on access."""

    __slots__ = ()

    @property
    def content_type(self) -> str:
        """`application/json` if the body was sent as a value; empty: unknown."""
        return self.text_of(_CONTENT_TYPE)

    @property
    def properties(self) -> dict[str, str]:
        """The sender's properties, as a new dict each time."""
        return {name: value for name, value in self.all_properties.items() if name not in RESERVED_PROPERTIES}

    @property
    def lite_topic(self) -> str:
        """The lite topic as sent; empty: none."""
        return self.text_of(_LITE_TOPIC)

    @property
    def priority(self) -> int | None:
        """The priority as sent; None: it has none."""
        return priority.parse(self.text_of(_PRIORITY))

    @property
    def schedule(self) -> str:
        """The name of the schedule that it is an occurrence of; empty: of none."""
        found = schedule_of(self._schedule_property())
        return found.name if found else ""

    @property
    def planned_at(self) -> datetime | None:
        """The time for which its schedule planned it, also if it comes late; None: it is no occurrence."""
        found = schedule_of(self._schedule_property())
        return moment(found.planned) if found else None

    def _schedule_property(self) -> bytes:
        return f"{SCHEDULE}\x01{self.text_of(_SCHEDULE)}".encode()

    @property
    def born_at(self) -> datetime:
        """The producer's clock."""
        return moment(self.born_at_ms)

    @property
    def stored_at(self) -> datetime:
        """The time when it entered this queue, by the server's clock."""
        return moment(self.stored_at_ms)

    @property
    def due_at(self) -> datetime | None:
        """The due time, by the server's clock; None: it was not delayed."""
        entry = self.lane_entry
        return moment(entry[2]) if entry else None

    @property
    def expires_at(self) -> datetime | None:
        """The time from which groups do not receive it, by the server's clock; None: no limit."""
        entry = self.lane_entry
        expires_at_ms = expiry.at_ms(self.text_of(_EXPIRES), entry[2] if entry else self.stored_at_ms)
        return moment(expires_at_ms) if expires_at_ms else None

    @property
    def delay_level(self) -> int:
        """The delay level; 0: it was not delayed, or its due time matched no level."""
        entry = self.lane_entry
        return entry[0] if entry and not is_timer_lane(entry[0]) else 0

    @property
    def lane(self) -> int | None:
        """The lane of its wait: a delay level's number, or from 1000 on for any time; None: it was not delayed."""
        entry = self.lane_entry
        return entry[0] if entry else None

    def _decompressed(self) -> bytes:
        return decompressed(self.stored_body, self.sys_flag)

    def __repr__(self) -> str:
        return f"ReceivedMessage({self.id}, topic={self.topic!r}, queue={self.queue}, offset={self.offset})"


def decompressed(body: bytes, sys_flag: int) -> bytes:
    """A body as its sender sent it. Raises: Damaged."""
    try:
        return unpacked(body, sys_flag, DECOMPRESSED_BYTES_MAX)
    except UnpackError as error:
        raise Damaged(error.text, reason="BODY_DAMAGED" if error.is_damaged else "BODY_COMPRESSION") from error


def split_records(records: bytes, queue: int | None = None) -> list[ReceivedMessage]:
    """Splits contiguous records of a queue into messages. Raises: Damaged."""
    try:
        return quickest_views(ReceivedMessage, records, queue)
    except errors.DamagedBytes as error:
        raise Damaged(error.text, reason="RECORD_DAMAGED") from error


def slices(records: bytes) -> list[bytes]:
    """Copies contiguous records one by one, so that keeping one does not keep the whole answer.

    Raises:
        Damaged: the bytes are not whole records.
    """
    try:
        return quickest_split(records)
    except errors.DamagedBytes as error:
        raise Damaged(error.text, reason="RECORD_DAMAGED") from error
