"""DueTime's Python SDK: producers and pullers, synchronous and asynchronous.

with Producer("localhost:9800") as producer:
    receipt = producer.send("orders", b"cancel 42", delay="30m", tags="timeout", keys=["42"])

with Puller("localhost:9800", "orders", tags="timeout") as puller:
    for message in puller:
        print(message.body, message.late_ms)
"""

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
from duetime.client.message import Message, Receipt, to_proto
from duetime.client.producer import AsyncProducer
from duetime.client.puller import AsyncPuller
from duetime.client.record import ReceivedMessage
from duetime.client.sync import Producer, Puller

__all__ = [
    "Producer",
    "Puller",
    "AsyncProducer",
    "AsyncPuller",
    "Message",
    "Receipt",
    "ReceivedMessage",
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
