"""The pauses of a group over HTTP: set, shown and ended."""

from duetime.v1 import consumer_pb2
from pydantic import Field

from duetime_console.api.descriptions import GroupPauseAnswer, group_pauses
from duetime_console.api.fields import AnswerModel, QueryModel
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall
from duetime_console.api.pauses import PauseFields

_PATH = "/api/v1/groups/{group}/pause"
_TOPIC = "in this topic; empty: in all topics"


class GroupPauseFields(PauseFields):
    """The topic and the end of a pause: `until` or `length`. Without them it lasts until it is ended."""

    topic: str = Field("", description=_TOPIC)


class GroupResumeQuery(QueryModel):
    topic: str = Field("", description="the pause of this topic; empty: all pauses of the group")


class GroupPausesAnswer(AnswerModel):
    """The pauses of a group, by topic."""

    pauses: list[GroupPauseAnswer]


async def get_pauses(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    found = await call.gateway("DescribeGroup", consumer_pb2.DescribeGroupRequest(name=call.group))
    return OperationAnswer(GroupPausesAnswer(pauses=group_pauses(found.pauses)))


async def put_pause(call: OperationCall, _: EmptyQuery, given: GroupPauseFields) -> OperationAnswer:
    wanted = consumer_pb2.PauseGroupRequest(name=call.group, topic=given.topic)
    if given.until is not None:
        wanted.until_ms = given.until
    elif given.length is not None:
        wanted.for_ms = given.length
    found = await call.gateway("PauseGroup", wanted)
    return OperationAnswer(GroupPausesAnswer(pauses=group_pauses(found.pauses)))


async def delete_pause(call: OperationCall, asked: GroupResumeQuery, _: None) -> OperationAnswer:
    wanted = consumer_pb2.ResumeGroupRequest(name=call.group, topic=asked.topic)
    found = await call.gateway("ResumeGroup", wanted)
    return OperationAnswer(GroupPausesAnswer(pauses=group_pauses(found.pauses)))


OPERATIONS = [
    Operation(
        "GET",
        _PATH,
        "getGroupPauses",
        "Show the pauses of a group",
        get_pauses,
        {200: GroupPausesAnswer},
        description="With those of its topics for all groups.",
    ),
    Operation(
        "PUT",
        _PATH,
        "pauseGroup",
        "Pause the deliveries to a group",
        put_pause,
        {200: GroupPausesAnswer},
        body=GroupPauseFields,
        description="Replaces an earlier pause of the same topic. In force when answered. 503 (PAUSE_INCOMPLETE): some "
        "shards may have paused; a repeat does the rest.",
    ),
    Operation(
        "DELETE",
        _PATH,
        "resumeGroup",
        "End pauses of a group",
        delete_pause,
        {200: GroupPausesAnswer},
        query=GroupResumeQuery,
        description="Pauses of its topics for all groups remain. May be repeated.",
    ),
]
