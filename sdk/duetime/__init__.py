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
    from duetime.client.batch import Outcome
    from duetime.client.consumer import Consumer
    from duetime.client.dead_letters import AsyncDeadLetters, DeadLetter, DeadLetterResult, FailedAttempt
    from duetime.client.errors import (
        AlreadyExists,
        Closed,
        Conflict,
        Damaged,
        DueTimeError,
        InvalidArgument,
        InvalidMessage,
        NotFound,
        Overloaded,
        ServerError,
        Timeout,
        Unavailable,
        Unsupported,
        Violation,
    )
    from duetime.client.failing import Reject, Retry
    from duetime.client.finder import AsyncFinder, FoundMessage
    from duetime.client.leases import LeasedMessage
    from duetime.client.logs import MessageFilter
    from duetime.client.message import Message, Receipt, to_proto
    from duetime.client.producer import AsyncProducer
    from duetime.client.puller import AsyncPuller
    from duetime.client.receiver import AsyncReceiver
    from duetime.client.record import ReceivedMessage
    from duetime.client.settling import Stats
    from duetime.client.sync.clients import DeadLetters, Finder, Producer, Puller, Receiver
    from duetime.client.trace import Trace, TraceEvent

__all__ = [
    "Producer",
    "Consumer",
    "Receiver",
    "Puller",
    "Finder",
    "DeadLetters",
    "AsyncProducer",
    "AsyncReceiver",
    "AsyncPuller",
    "AsyncFinder",
    "AsyncDeadLetters",
    "Message",
    "Receipt",
    "LeasedMessage",
    "ReceivedMessage",
    "FoundMessage",
    "Trace",
    "TraceEvent",
    "DeadLetter",
    "FailedAttempt",
    "DeadLetterResult",
    "Outcome",
    "Retry",
    "Reject",
    "Stats",
    "MessageFilter",
    "to_proto",
    "DueTimeError",
    "InvalidArgument",
    "InvalidMessage",
    "Unsupported",
    "NotFound",
    "AlreadyExists",
    "Conflict",
    "Overloaded",
    "Unavailable",
    "Timeout",
    "Damaged",
    "Closed",
    "ServerError",
    "Violation",
]

# Loaded when first asked for: who needs the contract alone (duetime.v1) does not load the client, and the command
# sets gRPC up before it is.
_MODULE_BY_NAME = {
    "Outcome": "batch",
    "Consumer": "consumer",
    "AsyncDeadLetters": "dead_letters",
    "DeadLetter": "dead_letters",
    "DeadLetterResult": "dead_letters",
    "FailedAttempt": "dead_letters",
    "Reject": "failing",
    "Retry": "failing",
    "LeasedMessage": "leases",
    "MessageFilter": "logs",
    "Message": "message",
    "Receipt": "message",
    "to_proto": "message",
    "AsyncProducer": "producer",
    "AsyncPuller": "puller",
    "AsyncReceiver": "receiver",
    "AsyncFinder": "finder",
    "FoundMessage": "finder",
    "ReceivedMessage": "record",
    "Stats": "settling",
    "DeadLetters": "sync.clients",
    "Producer": "sync.clients",
    "Puller": "sync.clients",
    "Finder": "sync.clients",
    "Receiver": "sync.clients",
    "Trace": "trace",
    "TraceEvent": "trace",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"duetime.client.{_MODULE_BY_NAME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
