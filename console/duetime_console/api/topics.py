"""Topics over HTTP: lite topics, deletion."""

from duetime.v1 import gateway_pb2
from duetime_format.limits import LITE_PAGE_COUNT, LITE_PAGE_COUNT_MAX
from pydantic import Field

from duetime_console.api.fields import AnswerModel, QueryModel
from duetime_console.api.limits import HTTP_CALL_S_MAX
from duetime_console.api.operations import Operation, OperationAnswer, OperationCall
from duetime_console.gateway import DELETE_TIMEOUT_S


class DeletionQuery(QueryModel):
    force: bool = Field(False, description="include undelivered messages")
    dry_run: bool = Field(False, description="change nothing, and return the contents that would end")


class GroupWorkAnswer(AnswerModel):
    """The remaining work of a group on the topic."""

    group: str
    unread: int
    in_flight: int
    retrying: int = Field(description="waiting for a retry")
    dead_letters: int


class TopicDeletionAnswer(AnswerModel):
    """The contents that ended with the topic, or would end."""

    topic: str
    deleted: bool = Field(description="false: it was a dry run")
    cancelled: int = Field(description="pending messages")
    rolled_back: int = Field(description="undecided transactions")
    groups: list[GroupWorkAnswer] = Field(description="groups with remaining work")


class LiteTopicsQuery(QueryModel):
    group: str = Field("", description="also count the messages that this group has not received")
    after: str = Field("", description="only names greater than this one: the last one of the previous answer")
    max: int = Field(LITE_PAGE_COUNT, ge=1, le=LITE_PAGE_COUNT_MAX, description="lite topics per page")


class LiteTopicAnswer(AnswerModel):
    name: str
    messages: int = Field(description="stored")
    unread: int | None = Field(description="not received by the group; null: no group was given")


class LiteTopics(AnswerModel):
    """A page, by name. One with fewer than `max` is the last."""

    lite_topics: list[LiteTopicAnswer]


async def list_lites(call: OperationCall, asked: LiteTopicsQuery, _: None) -> OperationAnswer:
    wanted = gateway_pb2.ListLiteTopicsRequest(
        topic=call.topic, group=asked.group, after=asked.after, max_count=asked.max
    )
    answer = await call.gateway("ListLiteTopics", wanted)
    found = [
        LiteTopicAnswer(name=one.name, messages=one.message_count, unread=one.unread_count if asked.group else None)
        for one in answer.lite_topics
    ]
    return OperationAnswer(LiteTopics(lite_topics=found))


async def delete(call: OperationCall, asked: DeletionQuery, _: None) -> OperationAnswer:
    wanted = gateway_pb2.DeleteTopicRequest(name=call.topic, force=asked.force, dry_run=asked.dry_run)
    answer = await call.gateway("DeleteTopic", wanted, DELETE_TIMEOUT_S - HTTP_CALL_S_MAX)
    groups = [
        GroupWorkAnswer(
            group=one.group,
            unread=one.unread_count,
            in_flight=one.in_flight_count,
            retrying=one.retry_count,
            dead_letters=one.dead_letter_count,
        )
        for one in answer.groups
    ]
    result = TopicDeletionAnswer(
        topic=call.topic,
        deleted=not asked.dry_run,
        cancelled=answer.pending_count,
        rolled_back=answer.transaction_count,
        groups=groups,
    )
    return OperationAnswer(result)


OPERATIONS = [
    Operation(
        "GET",
        "/api/v1/topics/{name}/lite-topics",
        "listLiteTopics",
        "List the lite topics of a topic",
        list_lites,
        {200: LiteTopics},
        query=LiteTopicsQuery,
        description="Topics of other types have none. Unused lite topics are forgotten after a time.",
    ),
    Operation(
        "DELETE",
        "/api/v1/topics/{name}",
        "deleteTopic",
        "Delete a topic and its contents",
        delete,
        {200: TopicDeletionAnswer},
        query=DeletionQuery,
        description="Deletion is final. 409 (TOPIC_NOT_EMPTY): without `force` no message of the topic may be "
        "pending, unread by a group, under a lease, in retry, dead or undecided. After 503 and 504 it may be in "
        "progress: a repeat continues it. 404: the topic does not exist, or is deleted.",
    ),
]
