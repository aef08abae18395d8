"""What consumers ask for, in the gateway's own terms: queues to be read, messages to be leased, leases to be ended.

Faces make these of their requests; the rooms inside know nothing of the protocols. What a store answers to a pull or a
receive stays encoded as the store gave it, and only a face looks inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple


class Encoding(IntEnum):
    """How messages are given; the numbers are those of the store's contract."""

    # Field by field.
    MESSAGES = 0
    # As the log's own bytes.
    RECORDS = 1


class ReceiptStatus(IntEnum):
    """What happened to the lease that a receipt names; the numbers are those of the store's contract."""

    OK = 0
    # The lease has ended before.
    EXPIRED = 1
    # No receipt of the group.
    UNKNOWN = 2


class QueueEnd(Enum):
    """One end of a queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(slots=True)
class Selection:
    """Which messages are wanted at most, how long to wait for the first, and how they are given. 0: the default."""

    max_count: int = 0
    max_bytes: int = 0
    wait_ms: int = 0
    # `a || b`; empty or `*`: all.
    tags: str = ""
    # SQL92 over properties; empty: all.
    sql: str = ""
    # One of `Encoding`, once it is checked.
    encoding: int = Encoding.MESSAGES


class Position(NamedTuple):
    """A place in a queue, which has its topic's number."""

    queue: int
    # Logical: of the next message.
    offset: int


@dataclass(slots=True)
class Pull:
    """One queue to be read from an offset."""

    topic: str
    position: Position
    selection: Selection


@dataclass(slots=True)
class PullQueues:
    """Several queues of one shard to be read in this order."""

    topic: str
    positions: Sequence[Position]
    selection: Selection


@dataclass(slots=True)
class Subscribe:
    """Several queues of one shard to be read from now on, as far as the credit goes."""

    topic: str
    positions: Sequence[Position]
    tags: str
    sql: str
    # Of answers, encoded.
    credit_bytes: int
    # How long positions may stay untold that have passed filtered messages only; 0: the default.
    untold_ms: int


@dataclass(slots=True)
class Receive:
    """Messages of a topic to be leased to a member of a group."""

    group: str
    topic: str
    selection: Selection
    # Length of the leases; 0: the default.
    invisible_ms: int = 0
    # Deliveries after which a message is dead; 0: the group's.
    max_attempts: int = 0
    # Who receives; empty: the connection's address.
    member: str = ""


@dataclass(slots=True)
class Extension:
    """Leases whose end is moved: they end so long from now; 0: at once, and the messages come back."""

    group: str
    receipts: Sequence[bytes]
    invisible_ms: int
    # With 0: these deliveries do not count as attempts.
    not_attempted: bool = False


@dataclass(slots=True)
class OffsetSearch:
    """The offset of a queue at a time (Unix milliseconds) or an end; None: the caller has not said which."""

    topic: str
    queue: int
    at: int | QueueEnd | None


@dataclass(slots=True)
class KeyQuery:
    """Messages of a topic by key. Times are Unix milliseconds of storing, both included; 0: no bound."""

    topic: str
    key: str
    from_ms: int = 0
    to_ms: int = 0
    max_count: int = 0


@dataclass(slots=True)
class IdQuery:
    """A message by its id, or by RocketMQ's offset id."""

    id: str
    # Empty: any.
    topic: str = ""
