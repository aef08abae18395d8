"""What names a transaction, and what is decided about one."""

from enum import Enum
from typing import Literal

from duetime.v1 import transactions_pb2 as pb

TransactionState = Literal["open", "committed", "rolled back", "given up"]

STATES: dict[int, TransactionState] = {
    pb.TRANSACTION_STATE_OPEN: "open",
    pb.TRANSACTION_STATE_COMMITTED: "committed",
    pb.TRANSACTION_STATE_ROLLED_BACK: "rolled back",
    pb.TRANSACTION_STATE_GIVEN_UP: "given up",
}


class Decision(Enum):
    """What a producer says of a transaction."""

    COMMIT = "commit"
    """The message goes to its topic; if it has a delay, that begins now."""
    ROLLBACK = "rollback"
    """The message is never delivered."""
    UNKNOWN = "unknown"
    """It is not known yet: the transaction stays open, and its group is asked again."""

    @property
    def wire(self) -> pb.Decision:
        return _WIRE[self]


_WIRE = {
    Decision.COMMIT: pb.DECISION_COMMIT,
    Decision.ROLLBACK: pb.DECISION_ROLLBACK,
    Decision.UNKNOWN: pb.DECISION_UNKNOWN,
}


class TransactionRef:
    """Something that names a transaction for `end_many`: one that was prepared, found, or is to be checked."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The transaction's."""
        raise NotImplementedError

    @property
    def message_id(self) -> str:
        raise NotImplementedError

    @property
    def group(self) -> str:
        """The producer group."""
        raise NotImplementedError

    @property
    def topic(self) -> str:
        """Where the message goes once it is committed."""
        raise NotImplementedError

    def _is_ordered(self) -> bool:
        """Whether the message names its queue, directly or by sharding key: ends must not overtake each other."""
        return False
