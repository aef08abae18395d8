"""The right that each call at the gateway's port takes: one table of all methods.

If a need has no names, deeper code checks them: topics of sends after a request is packed or decoded, those of many
schedules, and groups of transactions. Lists contain only the entries to which the caller has a right. Ids that name no
topic may be any topic's, so that they take a right to all. Admins may do everything.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from duetime.v1 import consumer_pb2, retry_pb2
from duetime_core.errors import PermissionDenied

from duetime_gateway.access.grants import ANY_RIGHT, READ, Access, Kind, Right
from duetime_gateway.access.rules import AllowedCallers, Names, Need, Rule, Rules

SEND, RECEIVE, MANAGE = Right.SEND, Right.RECEIVE, Right.MANAGE


def _topic(rights: Right, names: Names | None) -> Need:
    return Need(rights, Kind.TOPIC, names)


def _group(rights: Right, names: Names | None) -> Need:
    return Need(rights, Kind.GROUP, names)


def _its_topic(request: Any) -> Iterable[str]:
    return (request.topic,)


def _its_group(request: Any) -> Iterable[str]:
    return (request.group,)


def _its_name(request: Any) -> Iterable[str]:
    return (request.name,)


def _its_group_if_named(request: Any) -> Iterable[str]:
    return (request.group,) if request.group else ()


def _of_filter(request: Any) -> Iterable[str]:
    return (request.filter.topic,)


def _group_of_filter(request: Any) -> Iterable[str]:
    return (request.filter.group,)


def _if_there(request: Any) -> Iterable[str]:
    """The topic of a subscription's first request; later ones only give credit."""
    return (request.topic,) if request.topic else ()


def _subscribed(field: str) -> Names:
    """Names in the first request of a ReceiveStream."""

    def names(request: Any) -> Iterator[str]:
        if request.HasField("subscription"):
            yield getattr(request.subscription, field)

    return names


def _everything(request: Any) -> Iterable[str]:
    return ("",)


_ANYBODY, _ADMINS, _ANY_USER = Rule(AllowedCallers.ANYBODY), Rule(AllowedCallers.ADMINS), Rule()
_SENDS = Rule(needs=(_topic(SEND, None),))
_READS = Rule(needs=(_topic(READ, _its_topic),))
_CHANGES_SCHEDULE = Rule(needs=(_topic(SEND, _its_topic),))
_SEES_SCHEDULES = Rule(needs=(_topic(SEND | RECEIVE, _its_topic),))
_SHOWS_TOPIC = _topic(ANY_RIGHT, _its_topic)
_IN_GROUP = (_topic(RECEIVE, _its_topic), _group(RECEIVE, _its_group))
_LEASED = Rule(needs=(_group(RECEIVE, _its_group),))
_MANAGES_FILTERED = Rule(needs=(_group(MANAGE, _group_of_filter),))
_MANAGES_NAMED = Rule(needs=(_group(MANAGE, _its_name),))
_OPERATES = Rule(needs=(_topic(MANAGE, _everything),))


def _dead_letters(read: Any) -> Rule:
    return Rule(needs=(_group(MANAGE, _group_of_filter),), read=read.FromString)


_GATEWAY = {
    "Send": _SENDS,
    "SendStream": _SENDS,
    "SendBatch": _SENDS,
    "Prepare": Rule(needs=(_topic(SEND, None), _group(SEND, None))),
    "EndTransaction": Rule(needs=(_group(SEND | MANAGE, None),)),
    "WatchTransactions": Rule(needs=(_group(SEND, _its_group),)),
    "ListTransactions": Rule(needs=(_group(MANAGE, _its_group),)),
    "GetTransaction": Rule(needs=(_group(MANAGE, _everything),)),
    "Pull": _READS,
    "PullQueues": _READS,
    "Subscribe": Rule(needs=(_topic(READ, _if_there),)),
    "SearchOffset": _READS,
    "QueryMessages": _READS,
    "GetMessage": _READS,
    # Shows the groups that failed it, and searches the pending messages and dead letters of all topics.
    "TraceMessage": Rule(needs=(_topic(RECEIVE, _everything),)),
    "Cancel": Rule(needs=(_topic(SEND, lambda request: {one.topic for one in request.messages}),)),
    "CancelMatching": Rule(needs=(_topic(SEND, _of_filter),)),
    "Reschedule": Rule(needs=(_topic(SEND, lambda request: {one.message.topic for one in request.messages}),)),
    "PutSchedule": Rule(needs=(_topic(SEND, lambda request: (request.schedule.message.topic,)),)),
    "PutSchedules": _SENDS,
    "PauseSchedule": _CHANGES_SCHEDULE,
    "ResumeSchedule": _CHANGES_SCHEDULE,
    "DeleteSchedule": _CHANGES_SCHEDULE,
    "RunSchedule": _CHANGES_SCHEDULE,
    # A program that may put a schedule sees it.
    "GetSchedule": _SEES_SCHEDULES,
    "ListSchedules": _SEES_SCHEDULES,
    "CountSchedules": _SEES_SCHEDULES,
    "ListPending": Rule(needs=(_topic(RECEIVE, _of_filter),)),
    "Backlog": Rule(needs=(_SHOWS_TOPIC,)),
    "CommitOffsets": Rule(needs=_IN_GROUP),
    "GetOffsets": Rule(needs=_IN_GROUP),
    "Receive": Rule(needs=_IN_GROUP),
    "ReceiveStream": Rule(needs=(_topic(RECEIVE, _subscribed("topic")), _group(RECEIVE, _subscribed("group")))),
    "Ack": _LEASED,
    "ChangeInvisible": _LEASED,
    "Nack": Rule(needs=_LEASED.needs, read=consumer_pb2.NackRequest.FromString),
    "SendBack": Rule(needs=_IN_GROUP, read=retry_pb2.SendBackRequest.FromString),
    # A first Receive creates a group too.
    "CreateGroup": Rule(needs=(_group(RECEIVE | MANAGE, lambda request: (request.group.name,)),)),
    "UpdateGroup": _MANAGES_NAMED,
    "ListGroups": _ANY_USER,
    "DescribeGroup": Rule(needs=(_group(ANY_RIGHT, _its_name),)),
    "ResetGroup": Rule(needs=(_group(MANAGE, _its_name), _topic(RECEIVE | MANAGE, _its_topic))),
    "LimitGroup": _MANAGES_NAMED,
    # It weakens no limit of LimitGroup, and a receiver may receive less anyway.
    "DeclareGroupLimits": Rule(needs=(_group(RECEIVE, _its_name),)),
    "PauseGroup": _MANAGES_NAMED,
    "ResumeGroup": _MANAGES_NAMED,
    "DeleteGroup": _MANAGES_NAMED,
    "ListRetries": _MANAGES_FILTERED,
    "RetryNow": _MANAGES_FILTERED,
    "DiscardRetries": _MANAGES_FILTERED,
    "ListDeadLetters": _dead_letters(consumer_pb2.ListDeadLettersRequest),
    "RedriveDeadLetters": _dead_letters(consumer_pb2.RedriveRequest),
    "DiscardDeadLetters": _dead_letters(consumer_pb2.DiscardRequest),
    "CreateTopic": Rule(needs=(_topic(MANAGE, _its_name),)),
    "DeleteTopic": Rule(needs=(_topic(MANAGE, _its_name),)),
    "PauseTopic": Rule(needs=(_topic(MANAGE, _its_name),)),
    "ResumeTopic": Rule(needs=(_topic(MANAGE, _its_name),)),
    "DescribeTopic": Rule(needs=(_topic(ANY_RIGHT, _its_name),)),
    "ListTopics": _ANY_USER,
    "ListLiteTopics": Rule(needs=(_topic(ANY_RIGHT, _its_topic), _group(ANY_RIGHT, _its_group_if_named))),
    "GetRoute": Rule(needs=(_SHOWS_TOPIC,)),
    "ListLanes": _OPERATES,
    "ListShards": _OPERATES,
    "GetBacklogReport": _OPERATES,
    "GetReports": _OPERATES,
    # A shard's files contain all topics; quotas limit users.
    "ListFiles": _ADMINS,
    "SetQuota": _ADMINS,
    "ListQuotas": _ADMINS,
    "RemoveQuota": _ADMINS,
    # A webhook sends a topic's messages out of the cluster, from its network, with the worker's rights.
    "CreateWebhook": _ADMINS,
    "UpdateWebhook": _ADMINS,
    "ListWebhooks": _ADMINS,
    "PauseWebhook": _ADMINS,
    "ResumeWebhook": _ADMINS,
    "RotateWebhookSecret": _ADMINS,
    "TestWebhook": _ADMINS,
    "DeleteWebhook": _ADMINS,
    "Export": _ADMINS,
    # All topics share a lane.
    "PauseLane": _ADMINS,
    "ResumeLane": _ADMINS,
    # Events name users and rejected calls.
    "ListAuditEvents": _ADMINS,
    "WhoAmI": _ANY_USER,
}
# KEDA cannot send a token. It gets the count of due messages, and the count of a named group, but never messages or
# lists of names. Probes and the contract are public.
_OPEN = {
    "externalscaler.ExternalScaler": ("IsActive", "StreamIsActive", "GetMetricSpec", "StreamMetricSpec", "GetMetrics"),
    "grpc.health.v1.Health": ("Check", "List", "Watch"),
    "grpc.reflection.v1alpha.ServerReflection": ("ServerReflectionInfo",),
}
# Rules by gRPC method.
RULES: Rules = {
    **{f"/duetime.v1.Gateway/{name}": rule for name, rule in _GATEWAY.items()},
    **{f"/{service}/{name}": _ANYBODY for service, names in _OPEN.items() for name in names},
}


def methods_of(access: Access) -> list[str]:
    """The calls of `duetime.v1.Gateway` with at least one permitted request, sorted."""
    return sorted(name for name, rule in _GATEWAY.items() if _is_within(access, name, rule))


def _is_within(access: Access, name: str, rule: Rule) -> bool:
    try:
        rule.check_method(access, f"/duetime.v1.Gateway/{name}")
    except PermissionDenied:
        return False
    return True
