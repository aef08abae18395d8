"""The rates of a group over HTTP: shown and changed."""

from typing import Annotated

from duetime.v1 import consumer_pb2
from duetime_format import rates
from pydantic import AfterValidator, Field

from duetime_console.api.fields import AnswerModel, RequestModel
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall


def _rate(text: str) -> str:
    """Raises: ValueError."""
    rates.fill(consumer_pb2.DeliveryRate(), text)
    return text


_RATE = "`50/s`, `3000/m`, `100/h` or `5000/d`; `,burst=N`: N at once after a rest"


class RateFields(RequestModel):
    """The rate at which a group receives. Its receivers share it."""

    rate: Annotated[str, AfterValidator(_rate)] | None = Field(description=f"{_RATE}; null: removes the limit")
    topic: str = Field("", description="the limit is for this topic; empty: for each topic without its own")


class RateAnswer(AnswerModel):
    topic: str | None = Field(description="null: each topic without its own limit")
    rate: str = Field(description=_RATE)


class GroupRates(AnswerModel):
    """The limits of a group, by topic."""

    limits: list[RateAnswer]


async def get_limits(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    found = await call.gateway("DescribeGroup", consumer_pb2.DescribeGroupRequest(name=call.group))
    return _answer(found.group)


async def put_limit(call: OperationCall, _: EmptyQuery, given: RateFields) -> OperationAnswer:
    wanted = consumer_pb2.LimitGroupRequest(name=call.group)
    wanted.limit.topic = given.topic
    if given.rate is not None:
        rates.fill(wanted.limit.rate, given.rate)
    return _answer(await call.gateway("LimitGroup", wanted))


def _answer(group: consumer_pb2.Group) -> OperationAnswer:
    found = [RateAnswer(topic=one.topic or None, rate=rates.written(one.rate)) for one in group.limits.limits]
    return OperationAnswer(GroupRates(limits=found))


OPERATIONS = [
    Operation(
        "GET",
        "/api/v1/groups/{group}/limits",
        "getGroupLimits",
        "Show the rates of a group",
        get_limits,
        {200: GroupRates},
    ),
    Operation(
        "PUT",
        "/api/v1/groups/{group}/limits",
        "putGroupLimit",
        "Change or remove a rate of a group",
        put_limit,
        {200: GroupRates},
        body=RateFields,
        description="Replaces the rate of all topics, or that of `topic`; the group's other rates stay. In force at "
        "once. Redeliveries count too, and messages above the rate wait. 404: no such group or topic. 429: the group "
        "has 100 limits.",
    ),
]
