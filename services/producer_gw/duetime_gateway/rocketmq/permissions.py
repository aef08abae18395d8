"""The rights needed by RocketMQ's calls: the counterpart of face.permissions. Pure.

Callers sign their calls; rejections are codes in the answer.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from duetime_gateway.access.grants import ANY_RIGHT, Kind, Right
from duetime_gateway.access.rules import Need, Rule, Rules
from duetime_gateway.rocketmq.names import stored

SERVICE_NAME = "apache.rocketmq.v2.MessagingService"


def _its_topic(request: Any) -> Iterable[str]:
    return (stored(request.topic),)


def _its_group(request: Any) -> Iterable[str]:
    return (stored(request.group),)


def _topics_sent_to(request: Any) -> Iterable[str]:
    return {stored(one.topic) for one in request.messages}


def _topic_of_queue(request: Any) -> Iterable[str]:
    return (stored(request.message_queue.topic),)


_rule = partial(Rule, signed=True)
_ANY_USER = _rule()
_LEASED = _rule(needs=(Need(Right.RECEIVE, Kind.GROUP, _its_group),))
_CALLS = {
    "QueryRoute": _rule(needs=(Need(ANY_RIGHT, Kind.TOPIC, _its_topic),)),
    "Heartbeat": _ANY_USER,
    # Half messages also take a right to the group, which has the topic's name; it is checked deeper.
    "SendMessage": _rule(needs=(Need(Right.SEND, Kind.TOPIC, _topics_sent_to),)),
    "QueryAssignment": _rule(
        needs=(Need(Right.RECEIVE, Kind.TOPIC, _its_topic), Need(Right.RECEIVE, Kind.GROUP, _its_group))
    ),
    "ReceiveMessage": _rule(
        needs=(Need(Right.RECEIVE, Kind.TOPIC, _topic_of_queue), Need(Right.RECEIVE, Kind.GROUP, _its_group))
    ),
    "AckMessage": _LEASED,
    "ChangeInvisibleDuration": _LEASED,
    "ForwardMessageToDeadLetterQueue": _LEASED,
    # The producer group has the topic's name.
    "EndTransaction": _rule(needs=(Need(Right.SEND, Kind.GROUP, _its_topic),)),
    # The rights to checks are tested for each topic.
    "Telemetry": _ANY_USER,
    "NotifyClientTermination": _ANY_USER,
    "RecallMessage": _rule(needs=(Need(Right.SEND, Kind.TOPIC, _its_topic),)),
    "SyncLiteSubscription": _rule(
        needs=(Need(Right.RECEIVE, Kind.TOPIC, _its_topic), Need(Right.RECEIVE, Kind.GROUP, _its_group))
    ),
}
ROCKETMQ_RULES: Rules = {f"/{SERVICE_NAME}/{name}": rule for name, rule in _CALLS.items()}
