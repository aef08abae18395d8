"""The pause of a topic's deliveries to all groups over HTTP: set, shown and ended."""

from collections.abc import Iterable
from typing import Self

from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_format.levels import DELAY_MS_MAX
from pydantic import Field, model_validator

from duetime_console.api.fields import AnswerModel, Length, Moment, RequestModel, iso
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall

_PATH = "/api/v1/topics/{name}/pause"


class PauseFields(RequestModel):
    """The end of the pause: one of both. Without them it lasts until it is ended."""

    until: Moment | None = Field(None, description="a time, at most ten years ahead")
    length: Length | None = Field(None, ge=1, le=DELAY_MS_MAX, description="from now")

    @model_validator(mode="after")
    def _has_one_end(self) -> Self:
        if self.until is not None and self.length is not None:
            raise ValueError("until and length exclude each other")
        return self


class PauseAnswer(AnswerModel):
    since: str
    until: str | None = Field(description="null: until it is ended")


class TopicPause(AnswerModel):
    """A topic and its pause."""

    topic: str
    pause: PauseAnswer | None = Field(description="null: all groups receive the topic")


async def get_pause(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    found = await call.gateway("DescribeTopic", gateway_pb2.DescribeTopicRequest(name=call.topic))
    return _answer(call, [found.pause] if found.HasField("pause") else [])


async def put_pause(call: OperationCall, _: EmptyQuery, given: PauseFields) -> OperationAnswer:
    wanted = gateway_pb2.PauseTopicRequest(name=call.topic)
    if given.until is not None:
        wanted.until_ms = given.until
    elif given.length is not None:
        wanted.for_ms = given.length
    return _answer(call, (await call.gateway("PauseTopic", wanted)).pauses)


async def delete_pause(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    return _answer(call, (await call.gateway("ResumeTopic", gateway_pb2.ResumeTopicRequest(name=call.topic))).pauses)


def _answer(call: OperationCall, pauses: Iterable[consumer_pb2.GroupPause]) -> OperationAnswer:
    found = [PauseAnswer(since=iso(one.since_ms) or "", until=iso(one.until_ms)) for one in pauses]
    return OperationAnswer(TopicPause(topic=call.topic, pause=found[0] if found else None))


OPERATIONS = [
    Operation(
        "GET",
        _PATH,
        "getTopicPause",
        "Show the pause of a topic",
        get_pause,
        {200: TopicPause},
    ),
    Operation(
        "PUT",
        _PATH,
        "pauseTopic",
        "Pause the deliveries of a topic to all groups",
        put_pause,
        {200: TopicPause},
        body=PauseFields,
        description="Replaces an earlier pause. In force when answered. Sends and due messages are not affected. 503: "
        "some shards may have paused; a repeat does the rest.",
    ),
    Operation(
        "DELETE",
        _PATH,
        "resumeTopic",
        "End the pause of a topic",
        delete_pause,
        {200: TopicPause},
        description="Pauses of single groups remain. May be repeated.",
    ),
]
