"""Topics over HTTP: one is deleted."""

from duetime.v1 import gateway_pb2
from pydantic import Field

from duetime_console.api.fields import Asked, Told
from duetime_console.api.limits import HTTP_CALL_S_MAX
from duetime_console.api.operations import Answer, Call, Operation
from duetime_console.gateway import DELETE_TIMEOUT_S


class AskedDeletion(Asked):
    force: bool = Field(False, description="also with messages that nobody has got yet")
    dry_run: bool = Field(False, description="nothing is changed: what would end")


class GroupLeft(Told):
    """What a group had left of the topic."""

    group: str
    unread: int
    in_flight: int
    retrying: int = Field(description="on their way back to it")
    dead_letters: int


class DeletedTopic(Told):
    """What ended with the topic, or would."""

    topic: str
    deleted: bool = Field(description="false: it was a dry run")
    cancelled: int = Field(description="messages that were pending")
    rolled_back: int = Field(description="transactions that were undecided")
    groups: list[GroupLeft] = Field(description="those that had something left of it")


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
    told = DeletedTopic(
        topic=call.topic,
        deleted=not asked.dry_run,
        cancelled=answer.pending_count,
        rolled_back=answer.transaction_count,
        groups=groups,
    )
    return Answer(told)


OPERATIONS = [
    Operation(
        "DELETE",
        "/api/v1/topics/{name}",
        "deleteTopic",
        "Delete a topic and what is left of it",
        delete,
        {200: DeletedTopic},
        query=AskedDeletion,
        description="It does not come back. 409 (TOPIC_NOT_EMPTY): without `force` only a topic of which nothing is "
        "pending, unread by a group, under a lease, in retry, dead or undecided. After 503 and 504 it may be under "
        "way: repeated, it goes on. 404: there is no such topic, or it is deleted.",
    ),
]
