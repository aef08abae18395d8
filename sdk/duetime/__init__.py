"""DueTime's Python SDK: producers, consumers and pullers, synchronous and asynchronous.

with Producer("localhost:9800") as producer:
    receipt = producer.send("orders", b"cancel 42", delay="30m", tags="timeout", keys=["42"])

consumer = Consumer("localhost:9800", group="billing")

@consumer.handler("orders", tags="timeout")
async def settle(message):
    print(message.body, message.attempt)

consumer.run()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duetime.client.administering.admin import AsyncAdmin
    from duetime.client.administering.described import (
        DeletedTopic,
        Group,
        GroupDescription,
        GroupLeft,
        GroupLimit,
        GroupMember,
        GroupPause,
        GroupQueue,
        Lane,
        Lanes,
        LiteTopic,
        Topic,
        TopicDescription,
        TopicQueue,
    )
    from duetime.client.administering.retries import RetriesProgress, WaitingRetry
    from duetime.client.administering.schedules import (
        AsyncSchedules,
        Schedule,
        ScheduleCount,
        ScheduleCounts,
        ScheduleDefinition,
    )
    from duetime.client.administering.webhooks import AsyncWebhooks, SignedWebhook, Webhook, WebhookTest
    from duetime.client.bodies import Body
    from duetime.client.consuming.consumer import Consumer
    from duetime.client.consuming.failing import Reject, Retry
    from duetime.client.consuming.leased import LeasedMessage
    from duetime.client.consuming.logs import MessageFilter
    from duetime.client.consuming.puller import AsyncPuller
    from duetime.client.consuming.receiver import AsyncReceiver
    from duetime.client.consuming.settling import Stats
    from duetime.client.consuming.wrapping import Middleware
    from duetime.client.errors import (
        AlreadyExists,
        BadBody,
        Closed,
        Conflict,
        Damaged,
        DueTimeError,
        Forked,
        InvalidArgument,
        InvalidMessage,
        MessageCancelled,
        NotFound,
        Overloaded,
        PermissionDenied,
        ServerError,
        SomeFailed,
        Timeout,
        Unauthenticated,
        Unavailable,
        Unsupported,
        Violation,
        WrongLoop,
    )
    from duetime.client.finding.dead_letters import AsyncDeadLetters, DeadLetter, DeadLetterResult, FailedAttempt
    from duetime.client.finding.finder import AsyncFinder, FoundMessage
    from duetime.client.finding.pending import Backlog, DueCount, PendingMessage
    from duetime.client.finding.trace import Trace, TraceEvent
    from duetime.client.finding.transactions import FoundTransaction
    from duetime.client.message import CancelResult, Message, Receipt, to_proto
    from duetime.client.record import ReceivedMessage
    from duetime.client.sending.checking import UndecidedMessage
    from duetime.client.sending.ending import CancelProgress, Rescheduled
    from duetime.client.sending.outcomes import Outcome, Outcomes
    from duetime.client.sending.producer import AsyncProducer
    from duetime.client.sending.transacting import Ended, Prepared
    from duetime.client.sending.transaction import AsyncTransaction
    from duetime.client.sync.clients import (
        Admin,
        DeadLetters,
        Finder,
        Producer,
        Puller,
        Receiver,
        Schedules,
        Transaction,
        Webhooks,
    )
    from duetime.client.tasks.app import App
    from duetime.client.tasks.context import Context, Depends, Occurrence, current
    from duetime.client.tasks.task import Task
    from duetime.client.tokens import Token
    from duetime.client.transaction import Decision
    from duetime.client.trust import Tls

__all__ = [
    "Producer",
    "Consumer",
    "App",
    "Task",
    "Context",
    "Occurrence",
    "Depends",
    "current",
    "Receiver",
    "Puller",
    "Finder",
    "DeadLetters",
    "Admin",
    "Schedules",
    "Webhooks",
    "AsyncProducer",
    "AsyncReceiver",
    "AsyncPuller",
    "AsyncFinder",
    "AsyncDeadLetters",
    "AsyncAdmin",
    "AsyncSchedules",
    "Schedule",
    "ScheduleCount",
    "ScheduleCounts",
    "ScheduleDefinition",
    "AsyncWebhooks",
    "Webhook",
    "SignedWebhook",
    "WebhookTest",
    "Transaction",
    "AsyncTransaction",
    "Decision",
    "UndecidedMessage",
    "Prepared",
    "Ended",
    "FoundTransaction",
    "Message",
    "Body",
    "Receipt",
    "CancelResult",
    "CancelProgress",
    "Rescheduled",
    "LeasedMessage",
    "ReceivedMessage",
    "FoundMessage",
    "PendingMessage",
    "Backlog",
    "DueCount",
    "Trace",
    "TraceEvent",
    "DeadLetter",
    "FailedAttempt",
    "DeadLetterResult",
    "Outcome",
    "Outcomes",
    "Topic",
    "TopicQueue",
    "TopicDescription",
    "LiteTopic",
    "DeletedTopic",
    "GroupLeft",
    "GroupLimit",
    "Group",
    "GroupQueue",
    "GroupMember",
    "GroupPause",
    "GroupDescription",
    "WaitingRetry",
    "RetriesProgress",
    "Lane",
    "Lanes",
    "Retry",
    "Reject",
    "Middleware",
    "Stats",
    "Token",
    "Tls",
    "MessageFilter",
    "to_proto",
    "DueTimeError",
    "InvalidArgument",
    "InvalidMessage",
    "Unsupported",
    "Unauthenticated",
    "PermissionDenied",
    "NotFound",
    "AlreadyExists",
    "Conflict",
    "MessageCancelled",
    "Overloaded",
    "Unavailable",
    "Timeout",
    "Damaged",
    "Closed",
    "Forked",
    "WrongLoop",
    "BadBody",
    "SomeFailed",
    "ServerError",
    "Violation",
]

# Names are loaded on first use: an import of the contract alone (duetime.v1) does not load the client, and the command
# configures gRPC before the client is loaded.
_MODULE_BY_NAME = {
    "Outcome": "sending.outcomes",
    "Outcomes": "sending.outcomes",
    "AsyncAdmin": "administering.admin",
    "DeletedTopic": "administering.described",
    "Group": "administering.described",
    "GroupDescription": "administering.described",
    "GroupLeft": "administering.described",
    "GroupLimit": "administering.described",
    "GroupMember": "administering.described",
    "GroupPause": "administering.described",
    "GroupQueue": "administering.described",
    "Lane": "administering.described",
    "Lanes": "administering.described",
    "LiteTopic": "administering.described",
    "Topic": "administering.described",
    "TopicDescription": "administering.described",
    "TopicQueue": "administering.described",
    "RetriesProgress": "administering.retries",
    "WaitingRetry": "administering.retries",
    "AsyncSchedules": "administering.schedules",
    "Schedule": "administering.schedules",
    "ScheduleCount": "administering.schedules",
    "ScheduleCounts": "administering.schedules",
    "ScheduleDefinition": "administering.schedules",
    "AsyncWebhooks": "administering.webhooks",
    "SignedWebhook": "administering.webhooks",
    "Webhook": "administering.webhooks",
    "WebhookTest": "administering.webhooks",
    "Body": "bodies",
    "Consumer": "consuming.consumer",
    "Middleware": "consuming.wrapping",
    "AsyncDeadLetters": "finding.dead_letters",
    "DeadLetter": "finding.dead_letters",
    "DeadLetterResult": "finding.dead_letters",
    "FailedAttempt": "finding.dead_letters",
    "Reject": "consuming.failing",
    "Retry": "consuming.failing",
    "LeasedMessage": "consuming.leases",
    "MessageFilter": "consuming.logs",
    "Message": "message",
    "Receipt": "message",
    "CancelResult": "message",
    "CancelProgress": "sending.ending",
    "Rescheduled": "sending.ending",
    "PendingMessage": "finding.pending",
    "Backlog": "finding.pending",
    "DueCount": "finding.pending",
    "to_proto": "message",
    "AsyncProducer": "sending.producer",
    "AsyncTransaction": "sending.transaction",
    "Decision": "transaction",
    "Ended": "sending.transacting",
    "Prepared": "sending.transacting",
    "UndecidedMessage": "sending.checking",
    "FoundTransaction": "finding.transactions",
    "Transaction": "sync.clients",
    "AsyncPuller": "consuming.puller",
    "AsyncReceiver": "consuming.receiver",
    "AsyncFinder": "finding.finder",
    "FoundMessage": "finding.finder",
    "ReceivedMessage": "record",
    "Stats": "consuming.settling",
    "Admin": "sync.clients",
    "DeadLetters": "sync.clients",
    "Producer": "sync.clients",
    "Puller": "sync.clients",
    "Finder": "sync.clients",
    "Receiver": "sync.clients",
    "App": "tasks.app",
    "Context": "tasks.context",
    "Occurrence": "tasks.context",
    "Depends": "tasks.context",
    "current": "tasks.context",
    "Task": "tasks.task",
    "Schedules": "sync.clients",
    "Webhooks": "sync.clients",
    "Trace": "finding.trace",
    "TraceEvent": "finding.trace",
    "Token": "tokens",
    "Tls": "trust",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Loaded late: the outbox costs as much as all the rest.
        return import_module("importlib.metadata").version("duetime")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"duetime.client.{_MODULE_BY_NAME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
