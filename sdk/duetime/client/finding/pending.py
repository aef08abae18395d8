"""Pending messages as listed, and their counts by due time."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from duetime.client.message import MessageRef, moment, pending_filter
from duetime.client.view import MessageView
from duetime.v1 import pending_pb2


class PendingMessage(MessageView, MessageRef):
    """A message that is not due yet; `cancel` and `reschedule` accept it. Fields are decoded on access."""

    __slots__ = ("_pending",)

    def __init__(self, pending: pending_pb2.PendingMessage) -> None:
        super().__init__(pending.message)
        self._pending = pending

    @property
    def queue(self) -> int:
        """The queue of `topic`."""
        return self._message.queue

    @property
    def due_at(self) -> datetime:
        """The time when it reaches its topic, by the server's clock."""
        return moment(self._message.due_at_ms)

    @property
    def stored_at(self) -> datetime:
        """The time when it became pending, by the server's clock; a reschedule resets it."""
        return moment(self._message.stored_at_ms)

    @property
    def delay_level(self) -> int:
        """The delay level; 0: its due time matches no level."""
        return self._message.delay_level

    @property
    def schedule(self) -> str:
        """The name of the schedule that it is an occurrence of; empty: of none."""
        return self._pending.schedule.name

    @property
    def place(self) -> tuple[int, int, int]:
        """Shard, lane and entry of the lane."""
        return self._pending.shard, self._pending.lane, self._message.offset

    def _ref(self) -> pending_pb2.PendingRef:
        shard, lane, entry = self.place
        return pending_pb2.PendingRef(message_id=self.id, topic=self.topic, shard=shard, lane=lane, entry=entry)

    def __repr__(self) -> str:
        return f"PendingMessage({self.id}, topic={self.topic!r}, due_at={self.due_at})"


@dataclass(frozen=True, slots=True)
class DueCount:
    """The number of pending messages due from `start` on, within `width`."""

    start: datetime
    width: timedelta
    """1 s, 1 minute, 1 hour or 1 day."""
    count: int
    topic: str
    """Empty: all topics together."""
    lane: int
    """0: all lanes together."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Pending messages by due time, exact as of one point in time of each shard."""

    counts: list[DueCount]
    """Ordered by due time; a bucket that the range cuts is counted whole."""
    pending: int
    """The sum of `counts`."""
    overdue: int
    """Messages of `total` that are due and not delivered yet."""
    at: datetime
    """The time of the count."""
    unreachable_shards: list[int]
    """Shards that do not answer; their messages are missing."""


def counted(
    topic: str, after: datetime | None, before: datetime | None, *, by_topic: bool, by_lane: bool
) -> pending_pb2.BacklogRequest:
    """Raises: InvalidArgument: an argument is not a datetime, or `before` is not after `after`."""
    wanted = pending_filter(topic, "", after, before)
    return pending_pb2.BacklogRequest(
        topic=topic,
        due_from_ms=wanted.due_from_ms,
        due_before_ms=wanted.due_before_ms,
        all_topics_together=not by_topic,
        all_lanes_together=not by_lane,
    )


def from_proto(answer: pending_pb2.BacklogResponse) -> Backlog:
    counts = [
        DueCount(moment(one.due_from_ms), timedelta(milliseconds=one.width_ms), one.count, one.topic, one.lane)
        for one in answer.buckets
    ]
    unreachable = list(answer.unreachable_shards)
    return Backlog(counts, answer.pending_count, answer.overdue_count, moment(answer.now_ms), unreachable)
