"""Topics over HTTP: deletion."""

from duetime.v1 import gateway_pb2
from pydantic import Field

from duetime_console.api.fields import Asked, Told
from duetime_console.api.limits import HTTP_CALL_S_MAX
from duetime_console.api.operations import Answer, Call, Operation
from duetime_console.gateway import DELETE_TIMEOUT_S


class AskedDeletion(Asked):
    force: bool = Field(False, description="include undelivered messages")
    dry_run: bool = Field(False, description="change nothing, and return the contents that would end")


class GroupLeft(Told):
    """The remaining work of a group on the topic."""

    group: str
    unread: int
    in_flight: int
    retrying: int = Field(description="waiting for a retry")
    dead_letters: int


class DeletedTopic(Told):
    """The contents that ended with the topic, or would end."""

    topic: str
    deleted: bool = Field(description="false: it was a dry run")
    cancelled: int = Field(description="pending messages")
    rolled_back: int = Field(description="undecided transactions")
    groups: list[GroupLeft] = Field(description="groups with remaining work")


async def delete(call: Call, asked: AskedDeletion, _: None) -> Answer:
    wanted = gateway_pb2.DeleteTopicRequest(name=call.topic, force=asked.force, dry_run=asked.dry_run)
    answer = await call.gateway("DeleteTopic", wanted, DELETE_TIMEOUT_S - HTTP_CALL_S_MAX)
    groups = [
        GroupLeft(
            group=one.group,
            unread=one.unread_count,
            in_flight=one.in_flight_count,
            retrying=one.retry_count,
            dead_letters=one.dead_letter_count,
        )
        for one in answer.groups
    ]
    result = DeletedTopic(
        topic=call.topic,
        deleted=not asked.dry_run,
        cancelled=answer.pending_count,
        rolled_back=answer.transaction_count,
        groups=groups,
    )
    return Answer(result)


OPERATIONS = [
    Operation(
        "DELETE",
        "/api/v1/topics/{name}",
        "deleteTopic",
        "Delete a topic and its contents",
        delete,
        {200: DeletedTopic},
        query=AskedDeletion,
        description="Deletion is final. 409 (TOPIC_NOT_EMPTY): without `force` no message of the topic may be "
        "pending, unread by a group, under a lease, in retry, dead or undecided. After 503 and 504 it may be in "
        "progress: a repeat continues it. 404: the topic does not exist, or is deleted.",
    ),
]
