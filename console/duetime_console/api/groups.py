"""The limits of a group over HTTP: shown and changed."""

from typing import Annotated

from duetime.v1 import consumer_pb2
from duetime_format import rates
from duetime_format.limits import PER_KEY_MAX
from pydantic import AfterValidator, Field

from duetime_console.api.fields import AnswerModel, RequestModel
from duetime_console.api.operations import EmptyQuery, Operation, OperationAnswer, OperationCall


def _rate(text: str) -> str:
    """Raises: ValueError."""
    rates.fill(consumer_pb2.DeliveryRate(), text)
    return text


_RATE = "`50/s`, `3000/m`, `100/h` or `5000/d`; `,burst=N`: N at once after a rest"


_PER_KEY = "messages with one sharding key received at a time"


class LimitFields(RequestModel):
    """A limit that all receivers of a group share. Without `rate` and `per_key`, it is removed."""

    rate: Annotated[str, AfterValidator(_rate)] | None = Field(None, description=_RATE)
    per_key: int | None = Field(None, ge=1, le=PER_KEY_MAX, description=_PER_KEY)
    topic: str = Field("", description="the limit is for this topic; empty: for each topic without its own")


class LimitAnswer(AnswerModel):
    topic: str | None = Field(description="null: each topic without its own limit")
    rate: str | None = Field(description=_RATE)
    per_key: int | None = Field(description=_PER_KEY)
    declared: bool = Field(description="the group's tasks declare it; limits set here take precedence")


class GroupLimits(AnswerModel):
    """The limits of a group, by topic."""

    limits: list[LimitAnswer]


async def get_limits(call: OperationCall, _: EmptyQuery, __: None) -> OperationAnswer:
    found = await call.gateway("DescribeGroup", consumer_pb2.DescribeGroupRequest(name=call.group))
    return _answer(found.group)


async def put_limit(call: OperationCall, _: EmptyQuery, given: LimitFields) -> OperationAnswer:
    wanted = consumer_pb2.LimitGroupRequest(name=call.group)
    wanted.limit.topic, wanted.limit.per_key = given.topic, given.per_key or 0
    if given.rate is not None:
        rates.fill(wanted.limit.rate, given.rate)
    return _answer(await call.gateway("LimitGroup", wanted))


def _answer(group: consumer_pb2.Group) -> OperationAnswer:
    return OperationAnswer(GroupLimits(limits=limit_answers(group)))


def limit_answers(group: consumer_pb2.Group) -> list[LimitAnswer]:
    """The limits of a group."""
    return [
        LimitAnswer(
            topic=one.topic or None,
            rate=rates.rate_of(one) or None,
            per_key=one.per_key or None,
            declared=one.declared,
        )
        for one in group.limits.limits
    ]


OPERATIONS = [
    Operation(
        "GET",
        "/api/v1/groups/{group}/limits",
        "getGroupLimits",
        "Show the limits of a group",
        get_limits,
        {200: GroupLimits},
    ),
    Operation(
        "PUT",
        "/api/v1/groups/{group}/limits",
        "putGroupLimit",
        "Change or remove a limit of a group",
        put_limit,
        {200: GroupLimits},
        body=LimitFields,
        description="Replaces the limit of all topics, or that of `topic`; the group's other limits stay. In force at "
        "once. Redeliveries count too, and other messages wait. 404: no such group or topic. 409 (GROUP_ORDERED): "
        "`per_key` for an ordered group. 429: the group has 100 limits.",
    ),
]
