"""The audit log's table of calls at the gateway's port: admin acts with their targets.

The table has every call except health and reflection. Reads and calls that move messages are not acts.
"""

from collections.abc import Mapping

from duetime.v1 import consumer_pb2, export_pb2, gateway_pb2, pending_pb2, quotas_pb2, schedules_pb2, webhooks_pb2
from duetime_core.audit.events import Act
from duetime_format import rates

_DRY = " (dry run)"
# Schedules that one event names.
_NAMED_MAX = 8


def _topic(
    request: gateway_pb2.CreateTopicRequest | gateway_pb2.PauseTopicRequest | gateway_pb2.ResumeTopicRequest,
) -> str:
    return f"topic {request.name}"


def _deleted_topic(request: gateway_pb2.DeleteTopicRequest) -> str:
    return f"topic {request.name}{' (forced)' * request.force}{_DRY * request.dry_run}"


def _new_group(request: consumer_pb2.CreateGroupRequest) -> str:
    return f"group {request.group.name}"


def _group(request: consumer_pb2.UpdateGroupRequest | consumer_pb2.DeleteGroupRequest) -> str:
    return f"group {request.name}"


def _reset(request: consumer_pb2.ResetGroupRequest) -> str:
    return f"group {request.name}, topic {request.topic}{_DRY * request.dry_run}"


def _pause(request: consumer_pb2.PauseGroupRequest | consumer_pb2.ResumeGroupRequest) -> str:
    return f"group {request.name}{f', topic {request.topic}' if request.topic else ''}"


def _limit(request: consumer_pb2.LimitGroupRequest) -> str:
    topic, limit = request.limit.topic, rates.limit_text(request.limit)
    return f"group {request.name}{f', topic {topic}' if topic else ''}: {limit or 'no limit'}"


def _declared(request: consumer_pb2.DeclareGroupLimitsRequest) -> str:
    limits = ", ".join(f"topic {one.topic}: {rates.limit_text(one)}" for one in request.limits)
    return f"group {request.name}, {limits or 'no limit'}"


def _letters(request: consumer_pb2.RedriveRequest | consumer_pb2.DiscardRequest) -> str:
    return f"dead letters of group {request.filter.group}{_DRY * request.dry_run}"


def _retries(request: consumer_pb2.EndRetriesRequest) -> str:
    return f"waiting retries of group {request.filter.group}{_DRY * request.dry_run}"


def _pending(request: pending_pb2.CancelMatchingRequest) -> str:
    return f"pending messages of topic {request.filter.topic or '*'}{_DRY * request.dry_run}"


def _put_schedule(request: schedules_pb2.PutScheduleRequest) -> str:
    return f"schedule {request.schedule.name} of topic {request.schedule.message.topic}"


def _put_schedules(request: schedules_pb2.PutSchedulesRequest) -> str:
    named = ", ".join(_put_schedule(one) for one in request.puts[:_NAMED_MAX])
    return f"{len(request.puts)} schedules: {named}"


def _schedule(request: schedules_pb2.ScheduleRef | schedules_pb2.RunScheduleRequest) -> str:
    return f"schedule {request.name} of topic {request.topic}"


def _quota_of(of: quotas_pb2.QuotaOf) -> str:
    return f"quota of {of.WhichOneof('of') or 'nobody'} {of.user or of.topic}"


def _set_quota(request: quotas_pb2.SetQuotaRequest) -> str:
    return _quota_of(request.quota.of)


def _quota(request: quotas_pb2.RemoveQuotaRequest) -> str:
    return _quota_of(request.of)


def _lane(request: gateway_pb2.PauseLaneRequest) -> str:
    return f"lane {request.level} of {f'shard {request.shard}' if request.HasField('shard') else 'all shards'}"


def _file(request: export_pb2.ExportRequest) -> str:
    return f"file {request.path} of shard {request.shard}"


def _new_webhook(request: webhooks_pb2.CreateWebhookRequest) -> str:
    one = request.webhook
    return f"webhook {one.name} of topic {one.topic}, group {one.group}"


def _webhook(
    request: webhooks_pb2.WebhookRef | webhooks_pb2.UpdateWebhookRequest | webhooks_pb2.RotateWebhookSecretRequest,
) -> str:
    return f"webhook {request.name}"


_GATEWAY: Mapping[str, Act | None] = {
    "CreateTopic": Act(gateway_pb2.CreateTopicRequest, _topic),
    "DeleteTopic": Act(gateway_pb2.DeleteTopicRequest, _deleted_topic),
    "PauseTopic": Act(gateway_pb2.PauseTopicRequest, _topic),
    "ResumeTopic": Act(gateway_pb2.ResumeTopicRequest, _topic),
    "CreateGroup": Act(consumer_pb2.CreateGroupRequest, _new_group),
    "UpdateGroup": Act(consumer_pb2.UpdateGroupRequest, _group),
    "DeleteGroup": Act(consumer_pb2.DeleteGroupRequest, _group),
    "ResetGroup": Act(consumer_pb2.ResetGroupRequest, _reset),
    "LimitGroup": Act(consumer_pb2.LimitGroupRequest, _limit),
    "DeclareGroupLimits": Act(consumer_pb2.DeclareGroupLimitsRequest, _declared),
    "PauseGroup": Act(consumer_pb2.PauseGroupRequest, _pause),
    "ResumeGroup": Act(consumer_pb2.ResumeGroupRequest, _pause),
    "RetryNow": Act(consumer_pb2.EndRetriesRequest, _retries),
    "DiscardRetries": Act(consumer_pb2.EndRetriesRequest, _retries),
    "RedriveDeadLetters": Act(consumer_pb2.RedriveRequest, _letters),
    "DiscardDeadLetters": Act(consumer_pb2.DiscardRequest, _letters),
    "CancelMatching": Act(pending_pb2.CancelMatchingRequest, _pending),
    "PutSchedule": Act(schedules_pb2.PutScheduleRequest, _put_schedule),
    "PutSchedules": Act(schedules_pb2.PutSchedulesRequest, _put_schedules),
    "PauseSchedule": Act(schedules_pb2.ScheduleRef, _schedule),
    "ResumeSchedule": Act(schedules_pb2.ScheduleRef, _schedule),
    "DeleteSchedule": Act(schedules_pb2.ScheduleRef, _schedule),
    "RunSchedule": Act(schedules_pb2.RunScheduleRequest, _schedule),
    "SetQuota": Act(quotas_pb2.SetQuotaRequest, _set_quota),
    "RemoveQuota": Act(quotas_pb2.RemoveQuotaRequest, _quota),
    "CreateWebhook": Act(webhooks_pb2.CreateWebhookRequest, _new_webhook),
    "UpdateWebhook": Act(webhooks_pb2.UpdateWebhookRequest, _webhook),
    "PauseWebhook": Act(webhooks_pb2.WebhookRef, _webhook),
    "ResumeWebhook": Act(webhooks_pb2.WebhookRef, _webhook),
    "RotateWebhookSecret": Act(webhooks_pb2.RotateWebhookSecretRequest, _webhook),
    "TestWebhook": Act(webhooks_pb2.WebhookRef, _webhook),
    "DeleteWebhook": Act(webhooks_pb2.WebhookRef, _webhook),
    "PauseLane": Act(gateway_pb2.PauseLaneRequest, _lane),
    "ResumeLane": Act(gateway_pb2.PauseLaneRequest, _lane),
    # Changes nothing, but exposes all messages.
    "Export": Act(export_pb2.ExportRequest, _file),
    # An operator's ends only: those of producers are their traffic.
    "EndTransaction": Act(),
    **dict.fromkeys(
        (
            *("Send", "SendStream", "SendBatch", "SendBack", "Prepare", "WatchTransactions"),
            *("Pull", "PullQueues", "Subscribe", "SearchOffset", "CommitOffsets", "GetOffsets"),
            *("Receive", "ReceiveStream", "Ack", "Nack", "ChangeInvisible"),
            *("Cancel", "Reschedule", "ListPending", "Backlog", "GetBacklogReport", "GetReports"),
            *("GetSchedule", "ListSchedules", "CountSchedules"),
            *("QueryMessages", "GetMessage", "TraceMessage", "ListTransactions", "GetTransaction"),
            *("DescribeTopic", "ListTopics", "ListLiteTopics", "GetRoute", "ListLanes", "ListShards", "ListFiles"),
            *(
                "ListGroups",
                "DescribeGroup",
                "ListRetries",
                "ListDeadLetters",
                "ListAuditEvents",
                "ListQuotas",
                "ListWebhooks",
                "WhoAmI",
            ),
        )
    ),
}
ACTS: Mapping[str, Act | None] = {
    **{f"duetime.v1.Gateway/{name}": act for name, act in _GATEWAY.items()},
    **{
        f"externalscaler.ExternalScaler/{name}": None
        for name in ("IsActive", "StreamIsActive", "GetMetricSpec", "StreamMetricSpec", "GetMetrics")
    },
    # Reads, and calls that move messages.
    **{
        f"apache.rocketmq.v2.MessagingService/{name}": None
        for name in (
            *("QueryRoute", "Heartbeat", "SendMessage", "QueryAssignment", "ReceiveMessage", "AckMessage"),
            *("ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue", "EndTransaction", "Telemetry"),
            *("NotifyClientTermination", "RecallMessage", "SyncLiteSubscription"),
        )
    },
}
