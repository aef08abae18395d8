"""One transaction as a with block: prepared at its beginning, and committed or rolled back at its end."""

import asyncio
from datetime import datetime
from types import TracebackType
from typing import Self

from duetime import deadlines
from duetime.client import tracing
from duetime.client.errors import Conflict, DueTimeError
from duetime.client.lengths import Length
from duetime.client.message import Message, Receipt
from duetime.client.sending.transacting import Ended, Prepared, ProducerTransactions
from duetime.client.transaction import Decision

# Longest wait of an interrupted block for its rollback.
INTERRUPTED_S = 1.0


class AsyncTransaction:
    """A message, delivered or dropped by its block. For one event loop; `Transaction` is for plain code.

    The end of the block commits it, and an exception rolls it back, unless `commit`, `rollback` or `leave_open` was
    called. An interruption (a cancelled task, Ctrl-C) may come while the database commits. Then the transaction is left
    open if the producer has a check handler for the group, which decides; else it is rolled back. It is also left open
    if the coroutine or generator around the block is closed.
    """

    def __init__(
        self, transacting: ProducerTransactions, message: Message, group: str, check_after: Length | None
    ) -> None:
        self._transacting = transacting
        self._message = message
        self._group = group
        self._check_after = check_after
        self._prepared: Prepared | None = None
        # The requested decision; an interrupted or failed commit may have taken effect.
        self._asked: Decision | None = None
        self._receipt: Receipt | None = None

    @property
    def id(self) -> str:
        """The transaction's."""
        return self._known.id

    @property
    def message_id(self) -> str:
        return self._known.message_id

    @property
    def topic(self) -> str:
        return self._message.topic

    @property
    def group(self) -> str:
        """The producer group."""
        return self._group

    @property
    def check_at(self) -> datetime:
        """The time of the first check, if the transaction is open by then; by the server's clock."""
        return self._known.check_at

    @property
    def duplicate(self) -> bool:
        """Whether a transaction with this topic and message id was prepared before: this is that transaction, and it
        may have ended."""
        return self._known.duplicate

    @property
    def result(self) -> Receipt | None:
        """After the commit: the message's receipt, as from `send`; else None."""
        return self._receipt

    async def commit(self) -> Receipt:
        """Commits. On return the message is in its topic, or pending.

        Raises:
            Conflict: it was rolled back or given up before.
            DueTimeError: the result is unknown; if the commit failed, the transaction is open and its group is asked.
        """
        if self._receipt is None:
            ended = await self._end(Decision.COMMIT, "committed")
            self._receipt = ended.receipt
        assert self._receipt is not None
        return self._receipt

    async def rollback(self) -> None:
        """Rolls back: the message is never delivered. Raises: as `commit`; Conflict: it was committed before."""
        await self._end(Decision.ROLLBACK, "rolled back")

    def leave_open(self) -> None:
        """Lets the end of the block decide nothing: the producer group is asked about the transaction later."""
        self._asked = Decision.UNKNOWN

    async def __aenter__(self) -> Self:
        if self._prepared is not None:
            raise Conflict("a transaction can have only one with block", reason="TRANSACTION_PREPARED")
        self._prepared = await self._transacting.prepare(self._message, self._group, self._check_after)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._asked is not None:
            # After an unanswered commit a rollback would be wrong: the block's own work may be committed.
            return
        if error is None:
            await self.commit()
        elif self._may_be_decided(error):
            self.leave_open()
        else:
            await self._roll_back_after(error)

    def _may_be_decided(self, error: BaseException) -> bool:
        """Whether the block's own work may be committed despite this error."""
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            return self._transacting.checks.has(self._group)
        # A closed coroutine can't wait for anything.
        return isinstance(error, GeneratorExit)

    async def _roll_back_after(self, error: BaseException) -> None:
        """Rolls back and lets the error propagate, even if the rollback fails."""
        try:
            async with deadlines.within(None if isinstance(error, Exception) else INTERRUPTED_S):
                await self.rollback()
        except DueTimeError as failed:
            error.add_note(f"duetime: not rolled back: {failed}")
        except TimeoutError:
            error.add_note(
                f"duetime: no answer to the rollback within {INTERRUPTED_S:g} s; if transaction {self.id} is open, "
                f"group {self._group} will be asked about it"
            )

    async def _end(self, decision: Decision, state: str) -> Ended:
        prepared, self._asked = self._known, decision
        if tracing.active is None:
            ended = await self._transacting.end(prepared, decision)
        else:
            with tracing.active.ending(decision.value, self.topic, self.message_id):
                ended = await self._transacting.end(prepared, decision)
        if ended.state != state:
            reason = f"TRANSACTION_{ended.state.upper().replace(' ', '_')}"
            text = f"transaction {self.id} is {ended.state}: it was decided before"
            raise Conflict(text, reason=reason, message_id=self.message_id)
        return ended

    @property
    def _known(self) -> Prepared:
        if self._prepared is None:
            raise Conflict("the transaction starts at its with block", reason="TRANSACTION_NOT_PREPARED")
        return self._prepared

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._prepared or self._message.topic})"
