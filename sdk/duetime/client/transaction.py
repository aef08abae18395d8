"""References to transactions, and decisions about them."""

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
    """A producer's decision about a transaction."""

    COMMIT = "commit"
    """The message is delivered to its topic; a delay starts now."""
    ROLLBACK = "rollback"
    """The message is never delivered."""
    UNKNOWN = "unknown"
    """Undecided: the transaction stays open, and its group is asked again."""

    @property
    def wire(self) -> pb.Decision:
        return _WIRE[self]


_WIRE = {
    Decision.COMMIT: pb.DECISION_COMMIT,
    Decision.ROLLBACK: pb.DECISION_ROLLBACK,
    Decision.UNKNOWN: pb.DECISION_UNKNOWN,
}


class TransactionRef:
    """A reference to a transaction for `end_many`: one that was prepared, found, or is to be checked."""

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
        """The topic of the message after the commit."""
        raise NotImplementedError

    def _is_ordered(self) -> bool:
        """Whether the message names its queue, directly or by sharding key: ends must not overtake each other."""
        return False
