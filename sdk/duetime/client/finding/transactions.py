"""Transactions as found: those of a group, open or given up, and single ones."""

from datetime import datetime

from duetime.client.message import Receipt, moment
from duetime.client.transaction import STATES, TransactionRef, TransactionState
from duetime.client.view import MessageView
from duetime.v1 import transactions_pb2 as pb


class FoundTransaction(TransactionRef):
    """A transaction and its state; `end_many` accepts it. Fields are decoded on access."""

    __slots__ = ("_answer", "_transaction")

    def __init__(self, transaction: pb.Transaction, answer: pb.GetTransactionResponse | None = None) -> None:
        self._transaction = transaction
        # None: it was listed, which returns fewer fields.
        self._answer = answer

    @property
    def id(self) -> str:
        return self._transaction.transaction_id

    @property
    def message_id(self) -> str:
        return self._transaction.message_id

    @property
    def group(self) -> str:
        return self._transaction.group

    @property
    def topic(self) -> str:
        return self._transaction.topic

    @property
    def queue(self) -> int:
        """The queue of `topic`."""
        return self._transaction.queue

    @property
    def shard(self) -> int:
        return self._transaction.shard

    @property
    def state(self) -> TransactionState:
        """`open`, `committed`, `rolled back` or `given up`."""
        return STATES[self._transaction.state]

    @property
    def prepared_at(self) -> datetime:
        """By the server's clock, as all times here."""
        return moment(self._transaction.prepared_at_ms)

    @property
    def checks(self) -> int:
        """The number of checks delivered to a living producer."""
        return self._transaction.checks

    @property
    def next_check_at(self) -> datetime | None:
        """None: it has ended."""
        return moment(self._transaction.next_check_at_ms) if self._transaction.next_check_at_ms else None

    @property
    def ended_at(self) -> datetime | None:
        """The time when it ended or was given up; None: it is open, or the time is no longer known."""
        return moment(self._transaction.ended_at_ms) if self._transaction.ended_at_ms else None

    @property
    def message(self) -> MessageView | None:
        """The prepared message; None: the transaction was listed, or its half message has left the log."""
        if self._answer is None or not self._answer.HasField("message"):
            return None
        return MessageView(self._answer.message)

    @property
    def receipt(self) -> Receipt | None:
        """The position of a committed message, if the transaction was not listed; else None."""
        if self._answer is None or not self._answer.HasField("sent"):
            return None
        return Receipt(self._answer.sent, self.topic)

    def __repr__(self) -> str:
        return f"FoundTransaction({self.id}, {self.state}, topic={self.topic!r}, group={self.group!r})"
