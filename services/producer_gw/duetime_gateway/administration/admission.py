"""Rules for requests that administer groups. Pure.

Each `check_` raises InvalidArgument with all violations that can be found without knowing the group.
"""

from duetime.v1 import consumer_pb2
from duetime_core.errors import Violation, refuse
from duetime_core.rpc import group_limits, retry_policy
from duetime_format import limits
from duetime_format.admission import group_violations
from duetime_format.errors import within

from duetime_gateway.rules import INT64_MAX, group_read_violations

PauseRequest = consumer_pb2.PauseGroupRequest | consumer_pb2.ResumeGroupRequest


def check_new_group(group: consumer_pb2.Group) -> None:
    """See the module."""
    found = [*group_violations("group.name", group.name), *retry_policy.violations("group.retry", group.retry)]
    found += within("group.start", group.start, 0, max(consumer_pb2.GroupStart.values()))
    if group.start == consumer_pb2.GROUP_START_TIME and group.start_at_ms <= 0:
        text = f"{group.start_at_ms} is not above 0; a group that starts at a time takes Unix milliseconds"
        found.append(Violation("group.start_at_ms", text))
    if group.HasField("limits"):
        found.append(Violation("group.limits", "are set by LimitGroup and DeclareGroupLimits"))
    refuse(found)


def check_update_group(request: consumer_pb2.UpdateGroupRequest) -> None:
    """See the module."""
    refuse([*group_violations("name", request.name), *retry_policy.violations("retry", request.retry)])


def check_limit(request: consumer_pb2.LimitGroupRequest) -> None:
    """See the module."""
    found = [*group_violations("name", request.name), *group_limits.violations("limit", request.limit)]
    if request.limit.topic:
        found += group_read_violations("limit.topic", request.limit.topic)
    if request.limit.declared:
        found.append(Violation("limit.declared", "is for DeclareGroupLimits"))
    refuse(found)


def check_declared(request: consumer_pb2.DeclareGroupLimitsRequest) -> None:
    """See the module."""
    found, topics = list(group_violations("name", request.name)), set()
    for index, limit in enumerate(request.limits):
        field = f"limits[{index}]"
        found += group_read_violations(f"{field}.topic", limit.topic)
        found += group_limits.violations(field, limit)
        if not (limit.HasField("rate") or limit.per_key):
            found.append(Violation(field, "has neither a rate nor per_key"))
        if limit.topic in topics:
            found.append(Violation(f"{field}.topic", f"{limit.topic} has a limit before this one"))
        topics.add(limit.topic)
    refuse(found)


def check_pause(request: PauseRequest) -> None:
    """See the module. The shards judge the end of a pause: their clocks count."""
    found = list(group_violations("name", request.name))
    if request.topic:
        found += group_read_violations("topic", request.topic)
    refuse(found)


def check_reset(request: consumer_pb2.ResetGroupRequest) -> None:
    """See the module."""
    found = [*group_violations("name", request.name), *group_read_violations("topic", request.topic)]
    found += within("queue", request.queue, 0, limits.QUEUE_COUNT_MAX - 1)
    found += within("at_ms", request.at_ms, 0, INT64_MAX)
    found += within("offset", request.offset, 0, INT64_MAX)
    to = request.WhichOneof("to")
    if to is None:
        found.append(Violation("earliest", "none of earliest, latest, at_ms and offset is set"))
    elif to == "offset" and not request.HasField("queue"):
        found.append(Violation("queue", "is not set; an offset belongs to one queue"))
    refuse(found)
