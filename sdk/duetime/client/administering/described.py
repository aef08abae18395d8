"""Topics, groups and lanes as the server describes them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from duetime_format import rates
from duetime_format.policy import render

from duetime.client.errors import InvalidArgument
from duetime.client.message import moment
from duetime.v1 import consumer_pb2, gateway_pb2


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic."""

    name: str
    queue_count: int
    max_delay: timedelta | None
    """The longest delay of its messages; None: ten years."""
    created_at: datetime
    type: str = "any"
    """The type of its messages, as given to `create_topic`."""
    pause: "GroupPause | None" = None
    """Set if its deliveries to all groups are paused."""


@dataclass(frozen=True, slots=True)
class TopicQueue:
    """A queue of a topic: the messages from `min_offset` to before `max_offset`."""

    queue: int
    shard: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its queues, as of now."""

    topic: Topic
    queues: list[TopicQueue]


@dataclass(frozen=True, slots=True)
class LiteTopic:
    """A lite topic, as of now."""

    name: str
    message_count: int
    unread_count: int | None
    """Messages that the group has not received yet; None: no group was given."""


@dataclass(frozen=True, slots=True)
class GroupLeft:
    """The remaining work of a group on a topic."""

    group: str
    unread: int
    """Not received yet."""
    in_flight: int
    """Under a lease."""
    retrying: int
    """Waiting for a retry."""
    dead_letters: int


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """The contents of a topic that ended with it, or would end."""

    pending: int
    """Cancelled."""
    transactions: int
    """Rolled back."""
    groups: list[GroupLeft]
    """Groups with remaining work on the topic, by name."""

    @property
    def is_empty(self) -> bool:
        """Whether no pending messages, transactions or work of groups ended with it."""
        return not (self.pending or self.transactions or self.groups)


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """Limits that all receivers of a group share."""

    topic: str
    """Empty: each topic without its own limit."""
    rate: str | None
    """As written: `50/s`, `3000/m,burst=1`."""
    per_key: int | None
    """Messages with one sharding key received at a time."""
    declared: bool = False
    """Whether the group's tasks declare it: `limit_group` takes precedence."""


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group."""

    name: str
    start: Literal["earliest", "latest"] | datetime
    ordered: bool
    retry: str
    """The retry policy as written: `exponential:1s..10m,max=5`. Policies of messages and handlers take precedence; the
    server does not store those of handlers."""
    created_at: datetime
    limits: list[GroupLimit] = field(default_factory=list)
    """By topic, declared ones first; empty: no limit."""


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """A group's offsets in one queue."""

    topic: str
    """Retries are in `%RETRY%group`."""
    queue: int
    shard: int
    acknowledged_offset: int
    """All messages before it are acknowledged, dead letters, or skipped by the filter."""
    next_offset: int
    """All messages before it were delivered at least once, or skipped by the filter."""
    max_offset: int
    lag: int
    """Unacknowledged messages: not delivered yet, in flight, or waiting for a retry."""
    in_flight: int
    """Leased now."""
    waiting: int
    """Delivered before, and to be redelivered."""
    oldest_unacknowledged_at: datetime | None
    """Store time of the oldest unacknowledged message."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A receiver of a group, seen within ten minutes."""

    name: str
    topic: str
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class GroupPause:
    """A pause of a group, or of a topic for all groups: receivers get nothing."""

    topic: str
    """Empty: all topics."""
    since: datetime
    until: datetime | None
    """None: until it is resumed."""
    all_groups: bool = False
    """Whether `pause_topic` set it."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its progress, as of now."""

    group: Group
    queues: list[GroupQueue]
    """By topic, then queue."""
    members: list[GroupMember]
    """The latest first."""
    received_per_s: float
    """Over the last minute."""
    acknowledged_per_s: float
    dead_letters: int
    """Neither redriven nor discarded."""
    unreachable_shards: list[int]
    """Shards that do not answer; their queues are missing."""
    waiting_retries: int = 0
    """Failed messages that wait for their next attempt: exact, and not part of `lag`."""
    next_retry_at: datetime | None = None
    """The earliest time of the next delivery; None: no retry waits."""
    counting_shards: list[int] = field(default_factory=list)
    """Shards that still count their pending messages after a start; their waiting retries are missing."""
    pauses: list[GroupPause] = field(default_factory=list)
    """By topic; empty: the group is not paused."""
    lapsed_messages: int = 0
    """Expired before a delivery to the group, since its creation."""

    @property
    def lag(self) -> int:
        """Unacknowledged messages of all queues."""
        return sum(queue.lag for queue in self.queues)


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane of a shard: messages that wait for one delay level, or for any time."""

    shard: int
    number: int
    """The delay level, or from 1000 on for any time."""
    delay: timedelta | None
    """None: any time."""
    pending: int
    oldest_due_at: datetime | None
    """The earliest due time of a pending message; None: no message is pending."""
    next_due_at: datetime | None
    """The earliest due time in the future."""
    owner: str
    """The scheduler that serves the lane; empty: none."""
    paused: bool
    late_p50_ms: float | None
    """Lateness from due to durable in the topic, over the last 1,024 messages; None: there were none."""
    late_p99_ms: float | None
    restored: int
    """Messages that were delivered to their topics."""
    quarantined: int
    """Messages that can't be delivered."""


class Lanes(list[Lane]):
    """Lanes by shard, then number. `unreachable_shards`: shards that do not answer; their lanes are missing."""

    unreachable_shards: tuple[int, ...] = ()


# Numbers by name.
_TYPES = {name.removeprefix("TOPIC_TYPE_").lower(): number for name, number in gateway_pb2.TopicType.items()}
_NAMES = {number: name for name, number in _TYPES.items()}


def topic_type(name: str) -> Any:
    """Raises: InvalidArgument: there is no such type."""
    if name not in _TYPES:
        raise InvalidArgument.of("type", f"{name!r} is not one of {', '.join(_TYPES)}")
    return _TYPES[name]


def topic_of(topic: gateway_pb2.Topic, pause: consumer_pb2.GroupPause | None = None) -> Topic:
    max_delay = timedelta(milliseconds=topic.max_delay_ms) if topic.max_delay_ms else None
    kind = _NAMES.get(topic.message_type, "any")
    return Topic(
        topic.name,
        topic.queue_count,
        max_delay,
        moment(topic.created_at_ms),
        kind,
        None if pause is None else _pause(pause),
    )


def lite_topics_of(answer: gateway_pb2.ListLiteTopicsResponse, group: str) -> list[LiteTopic]:
    return [LiteTopic(one.name, one.message_count, one.unread_count if group else None) for one in answer.lite_topics]


def topics_of(answer: gateway_pb2.ListTopicsResponse) -> list[Topic]:
    pauses = {pause.topic: pause for pause in answer.pauses}
    return [topic_of(topic, pauses.get(topic.name)) for topic in answer.topics]


def topic_description_of(described: gateway_pb2.TopicDescription) -> TopicDescription:
    queues = [TopicQueue(one.queue, one.shard, one.min_offset, one.max_offset) for one in described.queues]
    return TopicDescription(topic_of(described.topic, described.pause if described.HasField("pause") else None), queues)


def deleted_topic_of(answer: gateway_pb2.DeleteTopicResponse) -> DeletedTopic:
    groups = [
        GroupLeft(one.group, one.unread_count, one.in_flight_count, one.retry_count, one.dead_letter_count)
        for one in answer.groups
    ]
    return DeletedTopic(answer.pending_count, answer.transaction_count, groups)


def group_of(group: consumer_pb2.Group) -> Group:
    start: Literal["earliest", "latest"] | datetime = "earliest"
    if group.start == consumer_pb2.GROUP_START_LATEST:
        start = "latest"
    elif group.start == consumer_pb2.GROUP_START_TIME:
        start = moment(group.start_at_ms)
    limits = [
        GroupLimit(one.topic, rates.rate_of(one) or None, one.per_key or None, one.declared)
        for one in group.limits.limits
    ]
    return Group(group.name, start, group.ordered, render(group.retry), moment(group.created_at_ms), limits)


def group_description_of(described: consumer_pb2.GroupDescription) -> GroupDescription:
    return GroupDescription(
        group_of(described.group),
        [_group_queue(one) for one in described.queues],
        [GroupMember(one.name, one.topic, moment(one.seen_at_ms)) for one in described.members],
        described.receives_per_s,
        described.acks_per_s,
        described.dead_letters,
        list(described.unreachable_shards),
        described.waiting_retries,
        _moment(described.next_retry_at_ms),
        list(described.counting_shards),
        pauses_of(described.pauses),
        described.lapsed_messages,
    )


def pauses_of(pauses: Iterable[consumer_pb2.GroupPause]) -> list[GroupPause]:
    return [_pause(one) for one in pauses]


def _pause(one: consumer_pb2.GroupPause) -> GroupPause:
    return GroupPause(one.topic, moment(one.since_ms), _moment(one.until_ms), one.all_groups)


def lanes_of(answer: gateway_pb2.ListLanesResponse) -> Lanes:
    lanes = Lanes(map(_lane, answer.lanes))
    lanes.unreachable_shards = tuple(answer.unreachable_shards)
    return lanes


def _group_queue(one: consumer_pb2.GroupQueue) -> GroupQueue:
    return GroupQueue(
        one.topic,
        one.queue,
        one.shard,
        one.committed_offset,
        one.next_offset,
        one.max_offset,
        one.lag,
        one.in_flight,
        one.waiting,
        _moment(one.oldest_unacked_at_ms),
    )


def _lane(one: gateway_pb2.Lane) -> Lane:
    return Lane(
        one.shard,
        one.level,
        timedelta(milliseconds=one.delay_ms) if one.delay_ms else None,
        one.pending_count,
        _moment(one.oldest_due_at_ms),
        _moment(one.next_due_at_ms),
        one.owner,
        one.paused,
        _late(one.late_p50_ms),
        _late(one.late_p99_ms),
        one.restored_count,
        one.quarantined_count,
    )


def _moment(at_ms: int) -> datetime | None:
    return moment(at_ms) if at_ms else None


def _late(late_ms: float) -> float | None:
    return None if late_ms < 0 else late_ms
