"""DueTime's Python SDK: producers and pullers, synchronous and asynchronous.

with Producer("localhost:9800") as producer:
    receipt = producer.send("orders", b"cancel 42", delay="30m", tags="timeout", keys=["42"])

with Puller("localhost:9800", "orders", tags="timeout") as puller:
    for message in puller:
        print(message.body, message.late_ms)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duetime.client.batch import Outcome
    from duetime.client.errors import (
        AlreadyExists,
        Closed,
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
    from duetime.client.finder import AsyncFinder, FoundMessage
    from duetime.client.message import Message, Receipt, to_proto
    from duetime.client.producer import AsyncProducer
    from duetime.client.puller import AsyncPuller
    from duetime.client.record import ReceivedMessage
    from duetime.client.sync import Finder, Producer, Puller

__all__ = [
    "Producer",
    "Puller",
    "Finder",
    "AsyncProducer",
    "AsyncPuller",
    "AsyncFinder",
    "Message",
    "Receipt",
    "ReceivedMessage",
    "FoundMessage",
    "Outcome",
    "to_proto",
    "DueTimeError",
    "InvalidArgument",
    "InvalidMessage",
    "Unsupported",
    "NotFound",
    "AlreadyExists",
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
    "Message": "message",
    "Receipt": "message",
    "to_proto": "message",
    "AsyncProducer": "producer",
    "AsyncPuller": "puller",
    "AsyncFinder": "finder",
    "FoundMessage": "finder",
    "ReceivedMessage": "record",
    "Producer": "sync",
    "Puller": "sync",
    "Finder": "sync",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"duetime.client.{_MODULE_BY_NAME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
