"""Charges of all calls at the gateway's port, for quotas: one table of all methods.

Restores, commits and redeliveries are free: their messages were counted on arrival.
"""

from collections.abc import Mapping, Sequence

from duetime.v1 import consumer_pb2, pending_pb2, retry_pb2, schedules_pb2

from duetime_gateway.access import permit
from duetime_gateway.access.grants import Kind, Right
from duetime_gateway.quotas.charges import MADE, RECORD, SENDS, STORES_NOTHING, Charge, Rate
from duetime_gateway.quotas.quotas import CopyCharge


def _rescheduled(request: pending_pb2.RescheduleRequest) -> Sequence[CopyCharge]:
    return [CopyCharge(one.message.topic, len(one.body) if one.HasField("body") else None) for one in request.messages]


NACK = Charge(
    copies=lambda request: [CopyCharge()] * len(request.nacks),
    stored=lambda answer: [one.stored_bytes for one in answer.results],
    read=consumer_pb2.NackRequest.FromString,
    read_answer=consumer_pb2.NackResponse.FromString,
)
_RESCHEDULE = Charge(copies=_rescheduled, stored=lambda answer: [one.stored_bytes for one in answer.results])


def _put(request: schedules_pb2.PutScheduleRequest) -> Sequence[CopyCharge]:
    message = request.schedule.message
    return [] if request.dry_run else [CopyCharge(message.topic, len(message.body), True)]


_PUT_SCHEDULE = Charge(
    # A dry run has no message.
    copies=_put,
    stored=lambda answer: [answer.stored_bytes] if answer.schedule.message_id else [],
)


def _put_all(request: schedules_pb2.PutSchedulesRequest) -> Sequence[CopyCharge]:
    """Puts in topics that the caller may not send to do not use up the quotas of these."""
    copies, access = [copy for one in request.puts for copy in _put(one)], permit.current()
    return [one if access.may(Right.SEND, Kind.TOPIC, one.topic) else CopyCharge(given=one.given) for one in copies]


_PUT_SCHEDULES = Charge(
    copies=_put_all,
    stored=lambda answer: [one.put.stored_bytes for one in answer.results],
)
_RUN_SCHEDULE = Charge(copies=lambda request: [CopyCharge(request.topic)], stored=lambda answer: [answer.stored_bytes])
_SEND_BACK = Charge(
    copies=lambda request: [CopyCharge(request.topic)],
    stored=lambda answer: [answer.stored_bytes],
    read=retry_pb2.SendBackRequest.FromString,
    read_answer=retry_pb2.SendBackResponse.FromString,
)
# One answer for each dead letter.
_REDRIVE = Charge(
    stored=lambda answer: [answer.stored_bytes] if answer.outcome == consumer_pb2.DEAD_LETTER_OUTCOME_REDRIVEN else [],
    read_answer=consumer_pb2.DeadLetterResult.FromString,
)
CHARGES: Mapping[str, Rate] = {
    **dict.fromkeys(("Send", "SendStream", "SendBatch", "Prepare"), SENDS),
    "Reschedule": _RESCHEDULE,
    "SendBack": _SEND_BACK,
    "PutSchedule": _PUT_SCHEDULE,
    "PutSchedules": _PUT_SCHEDULES,
    "RunSchedule": _RUN_SCHEDULE,
    "Nack": NACK,
    "RedriveDeadLetters": _REDRIVE,
    **dict.fromkeys(("CreateTopic", "CreateGroup"), MADE),
    **dict.fromkeys(("DeleteTopic", "UpdateGroup", "ResetGroup", "DeleteGroup", "CommitOffsets"), RECORD),
    **dict.fromkeys(("PauseGroup", "ResumeGroup", "LimitGroup", "DeclareGroupLimits"), RECORD),
    **dict.fromkeys(("PauseTopic", "ResumeTopic"), RECORD),
    **dict.fromkeys(("Receive", "ReceiveStream", "Ack", "ChangeInvisible"), RECORD),
    **dict.fromkeys(("EndTransaction", "WatchTransactions", "Cancel", "CancelMatching"), RECORD),
    **dict.fromkeys(("PauseSchedule", "ResumeSchedule", "DeleteSchedule"), RECORD),
    **dict.fromkeys(("RetryNow", "DiscardRetries", "DiscardDeadLetters"), RECORD),
    **dict.fromkeys(
        (
            *("Pull", "PullQueues", "Subscribe", "SearchOffset", "QueryMessages", "GetMessage", "TraceMessage"),
            *("ListPending", "Backlog", "GetOffsets", "ListGroups", "DescribeGroup", "ListRetries", "ListDeadLetters"),
            *("DescribeTopic", "ListTopics", "ListLiteTopics", "GetRoute", "ListLanes", "ListShards", "ListFiles"),
            *("Export", "GetSchedule", "ListSchedules", "CountSchedules"),
            *("ListTransactions", "GetTransaction", "GetBacklogReport", "GetReports", "ListAuditEvents", "WhoAmI"),
            # Rows of the metadata database, written by admins.
            *("SetQuota", "ListQuotas", "RemoveQuota", "PauseLane", "ResumeLane"),
            *("CreateWebhook", "UpdateWebhook", "ListWebhooks", "PauseWebhook", "ResumeWebhook"),
            *("RotateWebhookSecret", "TestWebhook", "DeleteWebhook"),
        ),
        STORES_NOTHING,
    ),
}
