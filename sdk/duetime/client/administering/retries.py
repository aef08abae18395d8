"""Failed messages of a group that wait for their next attempt: listed, delivered now or discarded."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from duetime.client.finding.dead_letters import FailedAttempt, attempts_of, error_of, ids_of
from duetime.client.message import moment
from duetime.client.view import MessageView
from duetime.v1 import consumer_pb2


class WaitingRetry(MessageView):
    """A failed message of a group that waits for its next attempt. Fields are decoded on access."""

    __slots__ = ("_retry",)

    def __init__(self, retry: consumer_pb2.WaitingRetry) -> None:
        super().__init__(retry.message)
        self._retry = retry

    @property
    def next_at(self) -> datetime:
        """The time of the next delivery, by the server's clock."""
        return moment(self._message.due_at_ms)

    @property
    def deliveries(self) -> int:
        """Deliveries so far."""
        return self._retry.message.attempt

    @property
    def attempts(self) -> list[FailedAttempt]:
        """The failed deliveries, oldest first, as many as the message has space for; none for messages that a RocketMQ
        client sent back."""
        return attempts_of(self._retry.attempts)

    @property
    def error(self) -> str:
        """`TYPE: message` of the last attempt's error; empty if unknown."""
        return error_of(self._retry.attempts)

    @property
    def place(self) -> tuple[int, int, int]:
        """Shard, lane and entry of the lane."""
        return self._retry.shard, self._retry.lane, self._retry.entry

    def __repr__(self) -> str:
        return f"WaitingRetry({self.id}, topic={self.topic!r}, next_at={self.next_at}, error={self.error!r})"


@dataclass(frozen=True, slots=True)
class RetriesProgress:
    """The progress of a `retry_now` or `discard_retries`."""

    matched: int
    """Waiting messages that matched."""
    ended: int
    """Matched, and ended by this call."""
    gone: int
    """Matched, but delivered, discarded or hastened by another call first."""
    done: bool


def filter_of(group: str, topic: str, error: str, ids: Collection[str]) -> consumer_pb2.RetryFilter:
    return consumer_pb2.RetryFilter(group=group, topic=topic, error=error, ids=ids_of(ids))


def progress_of(one: consumer_pb2.EndRetriesProgress) -> RetriesProgress:
    return RetriesProgress(one.matched_count, one.ended_count, one.gone_count, one.done)
