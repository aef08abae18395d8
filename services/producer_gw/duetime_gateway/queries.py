"""Requests of consumers in the gateway's own terms: reading queues, leasing messages, ending leases.

Faces create them from their requests; inner packages are independent of protocols. The store's answer to a pull or a
receive stays encoded; only a face decodes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple


class Encoding(IntEnum):
    """The form of returned messages; the numbers are those of the store's contract."""

    # Decoded fields.
    MESSAGES = 0
    # The log's own bytes.
    RECORDS = 1


class LeaseStatus(IntEnum):
    """The result for a receipt's lease; the numbers are those of the store's contract."""

    OK = 0
    # The lease has already ended.
    EXPIRED = 1
    # Not a receipt of the group.
    UNKNOWN = 2


class QueueEnd(Enum):
    """One end of a queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(slots=True)
class Selection:
    """The limits, filter, wait and form of requested messages. 0: the default."""

    max_count: int = 0
    max_bytes: int = 0
    wait_ms: int = 0
    # `a || b`; empty or `*`: all.
    tags: str = ""
    # SQL92 over properties; empty: all.
    sql: str = ""
    # A value of `Encoding`, once checked.
    encoding: int = Encoding.MESSAGES
    # Capacity for the first message, which may exceed `max_bytes`. Set by faces; 0: enough for any.
    first_bytes_max: int = 0


class Position(NamedTuple):
    """A position in a queue, given by its topic's number."""

    queue: int
    # Logical offset of the next message.
    offset: int


@dataclass(slots=True)
class Pull:
    """Reads one queue from an offset."""

    topic: str
    position: Position
    selection: Selection


@dataclass(slots=True)
class PullQueues:
    """Reads several queues of one shard, in this order."""

    topic: str
    positions: Sequence[Position]
    selection: Selection


@dataclass(slots=True)
class Subscribe:
    """Reads several queues of one shard continuously, as credit permits."""

    topic: str
    positions: Sequence[Position]
    tags: str
    sql: str
    # Credit for encoded answers.
    credit_bytes: int
    # Time after which positions are reported if only filtered messages were passed; 0: the default.
    untold_ms: int


@dataclass(slots=True)
class Receive:
    """Leases messages of a topic to a member of a group."""

    group: str
    topic: str
    selection: Selection
    # Length of the leases; 0: the default.
    invisible_ms: int = 0
    # Deliveries after which a message becomes a dead letter; 0: the group's.
    max_attempts: int = 0
    # Name of the receiver; empty: the connection's address.
    member: str = ""
    # Lite topics of the topic whose messages are received alone; none: all messages.
    lite_topics: Sequence[str] = ()


@dataclass(slots=True)
class Extension:
    """Moves the end of leases: `invisible_ms` from now; 0: at once, with redelivery."""

    group: str
    receipts: Sequence[bytes]
    invisible_ms: int
    # Whether, with 0, these deliveries do not count as attempts.
    not_attempted: bool = False


@dataclass(slots=True)
class OffsetSearch:
    """The offset of a queue at a time (Unix milliseconds) or an end; None: missing in the request."""

    topic: str
    queue: int
    at: int | QueueEnd | None


@dataclass(slots=True)
class KeyQuery:
    """Messages of a topic by key, or by tag. Times are Unix milliseconds of storing, both inclusive; 0: no bound."""

    topic: str
    key: str
    from_ms: int = 0
    to_ms: int = 0
    max_count: int = 0
    tag: str = ""


@dataclass(slots=True)
class IdQuery:
    """A message by its id, or by RocketMQ's offset id."""

    id: str
    # Empty: any topic.
    topic: str = ""
