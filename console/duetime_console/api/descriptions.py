"""Groups and topics over HTTP, as they are now."""

from collections.abc import Iterable
from typing import Any

from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_format.lengths import written
from pydantic import Field

from duetime_console.api.fields import AnswerModel, iso
from duetime_console.api.groups import LimitAnswer, limit_answers
from duetime_console.api.models import retry_fields
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall
from duetime_console.api.pauses import PauseAnswer
from duetime_console.api.schedule_models import word_of


class GroupAnswer(AnswerModel):
    """A consumer group."""

    name: str
    start: str = Field(description="`earliest`, `latest`, or a time: the first message of a queue that is new to it")
    ordered: bool
    retry: dict[str, Any] = Field(description="as RetryFields; those of messages and handlers take precedence")
    created_at: str | None
    limits: list[LimitAnswer]


class GroupsAnswer(AnswerModel):
    """Groups by name."""

    groups: list[GroupAnswer]


class GroupQueueAnswer(AnswerModel):
    """A group's offsets in one queue."""

    topic: str = Field(description="retries are in `%RETRY%group`")
    queue: int
    shard: int
    acknowledged_offset: int = Field(description="all messages before it are acknowledged, dead, or filtered out")
    next_offset: int = Field(description="all messages before it were delivered at least once, or filtered out")
    max_offset: int
    lag: int = Field(description="unacknowledged messages: not delivered yet, in flight, or waiting for a retry")
    in_flight: int
    waiting: int = Field(description="delivered before, and to be redelivered")
    oldest_unacknowledged_at: str | None = Field(description="its store time")


class GroupMemberAnswer(AnswerModel):
    """A receiver, seen within ten minutes."""

    name: str
    topic: str
    seen_at: str | None


class GroupPauseAnswer(PauseAnswer):
    topic: str | None = Field(description="null: all topics")
    all_groups: bool = Field(description="the pause is that of the topic, for all groups")


class GroupDescriptionAnswer(GroupAnswer):
    """A group and its progress. The queues of shards in `unreachable_shards` are missing."""

    lag: int = Field(description="of all queues")
    queues: list[GroupQueueAnswer]
    members: list[GroupMemberAnswer] = Field(description="the latest first")
    received_per_s: float = Field(description="over the last minute")
    acknowledged_per_s: float
    waiting_retries: int = Field(description="failed messages that wait for their next attempt; not part of `lag`")
    next_retry_at: str | None
    dead_letters: int
    lapsed: int = Field(description="expired before their delivery, since the group's creation")
    pauses: list[GroupPauseAnswer]
    unreachable_shards: list[int]
    counting_shards: list[int] = Field(description="shards whose waiting retries are missing, after a start")


class TopicAnswer(AnswerModel):
    """A topic."""

    name: str
    queues: int
    type: str = Field(description="its messages: `any`, `normal`, `fifo`, `delay`, `transaction`, `lite`, `priority`")
    max_delay: str | None = Field(description="the longest delay; null: ten years")
    created_at: str | None


class TopicsAnswer(AnswerModel):
    """Topics by name."""

    topics: list[TopicAnswer]


class TopicQueueAnswer(AnswerModel):
    queue: int
    shard: int
    min_offset: int
    max_offset: int


class TopicDescriptionAnswer(TopicAnswer):
    """A topic, its queues and its pause."""

    queue_offsets: list[TopicQueueAnswer]
    pause: PauseAnswer | None = Field(description="of all groups; null: there is none")


def group_pauses(pauses: Iterable[consumer_pb2.GroupPause]) -> list[GroupPauseAnswer]:
    """The pauses of a group."""
    return [
        GroupPauseAnswer(
            topic=one.topic or None,
            since=iso(one.since_ms) or "",
            until=iso(one.until_ms),
            all_groups=one.all_groups,
        )
        for one in pauses
    ]


def _group_fields(found: consumer_pb2.Group) -> dict[str, Any]:
    start = word_of(consumer_pb2.GroupStart, found.start, "earliest")
    return {
        "name": found.name,
        "start": (iso(found.start_at_ms) or "") if found.start_at_ms else start,
        "ordered": found.ordered,
        "retry": retry_fields(found.retry),
        "created_at": iso(found.created_at_ms),
        "limits": limit_answers(found),
    }


def _topic_fields(found: gateway_pb2.Topic) -> dict[str, Any]:
    return {
        "name": found.name,
        "queues": found.queue_count,
        "type": word_of(gateway_pb2.TopicType, found.message_type, "any"),
        "max_delay": written(found.max_delay_ms) if found.max_delay_ms else None,
        "created_at": iso(found.created_at_ms),
    }


async def list_groups(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    answer = await call.gateway("ListGroups", consumer_pb2.ListGroupsRequest())
    return OperationAnswer(GroupsAnswer(groups=[GroupAnswer(**_group_fields(one)) for one in answer.groups]))


async def get_group(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    found = await call.gateway("DescribeGroup", consumer_pb2.DescribeGroupRequest(name=call.group))
    queues = [
        GroupQueueAnswer(
            topic=one.topic,
            queue=one.queue,
            shard=one.shard,
            acknowledged_offset=one.committed_offset,
            next_offset=one.next_offset,
            max_offset=one.max_offset,
            lag=one.lag,
            in_flight=one.in_flight,
            waiting=one.waiting,
            oldest_unacknowledged_at=iso(one.oldest_unacked_at_ms),
        )
        for one in found.queues
    ]
    answer = GroupDescriptionAnswer(
        **_group_fields(found.group),
        lag=sum(one.lag for one in found.queues),
        queues=queues,
        members=[
            GroupMemberAnswer(name=one.name, topic=one.topic, seen_at=iso(one.seen_at_ms)) for one in found.members
        ],
        received_per_s=found.receives_per_s,
        acknowledged_per_s=found.acks_per_s,
        waiting_retries=found.waiting_retries,
        next_retry_at=iso(found.next_retry_at_ms),
        dead_letters=found.dead_letters,
        lapsed=found.lapsed_messages,
        pauses=group_pauses(found.pauses),
        unreachable_shards=list(found.unreachable_shards),
        counting_shards=list(found.counting_shards),
    )
    return OperationAnswer(answer)


async def list_topics(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    answer = await call.gateway("ListTopics", gateway_pb2.ListTopicsRequest())
    return OperationAnswer(TopicsAnswer(topics=[TopicAnswer(**_topic_fields(one)) for one in answer.topics]))


async def get_topic(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    found = await call.gateway("DescribeTopic", gateway_pb2.DescribeTopicRequest(name=call.topic))
    queues = [
        TopicQueueAnswer(queue=one.queue, shard=one.shard, min_offset=one.min_offset, max_offset=one.max_offset)
        for one in found.queues
    ]
    pause = PauseAnswer(since=iso(found.pause.since_ms) or "", until=iso(found.pause.until_ms))
    answer = TopicDescriptionAnswer(
        **_topic_fields(found.topic), queue_offsets=queues, pause=pause if found.HasField("pause") else None
    )
    return OperationAnswer(answer)


OPERATIONS = [
    Operation("GET", "/api/v1/groups", "listGroups", "List the groups", list_groups, {200: GroupsAnswer}),
    Operation(
        "GET",
        "/api/v1/groups/{group}",
        "getGroup",
        "Show a group, its lag, limits and pauses",
        get_group,
        {200: GroupDescriptionAnswer},
    ),
    Operation("GET", "/api/v1/topics", "listTopics", "List the topics", list_topics, {200: TopicsAnswer}),
    Operation(
        "GET",
        "/api/v1/topics/{name}",
        "getTopic",
        "Show a topic and its queues",
        get_topic,
        {200: TopicDescriptionAnswer},
    ),
]
