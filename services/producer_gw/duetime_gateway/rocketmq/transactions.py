"""Transactions by the ids of their messages: RocketMQ's clients know them by no other name.

A proxy answers a half message with the message's id as transaction id, which the committed message carries too. The
places of recent half messages are remembered; others are looked up in the stores' index.
"""

from duetime_core.errors import NotFound
from duetime_format.limits import ID_CHARS_MAX

from duetime_gateway.transactions.listing import TransactionList
from duetime_gateway.transactions.names import TransactionName, parse

# Remembered transactions, of some 400 bytes each.
REMEMBERED_MAX = 16_384


class TransactionIds:
    """Finds transactions of a topic by the ids of their messages."""

    def __init__(self, listing: TransactionList) -> None:
        self._listing = listing
        self._names: dict[tuple[str, str], TransactionName] = {}

    def note(self, topic: str, name: TransactionName) -> None:
        """Remembers a transaction."""
        key = topic, name.message_id
        self._names.pop(key, None)
        self._names[key] = name
        if len(self._names) > REMEMBERED_MAX:
            del self._names[next(iter(self._names))]

    async def find(self, topic: str, message_id: str, remaining_ms: float | None) -> TransactionName | None:
        """The topic's latest transaction of this message; None: there is none.

        Raises:
            DueTimeError: a store that may have it does not answer, or has no index.
        """
        known = self._names.get((topic, message_id))
        if known is not None or not 1 <= len(message_id) <= ID_CHARS_MAX:
            return known
        try:
            answer = await self._listing.get(message_id, topic, remaining_ms)
        except NotFound:
            return None
        found = parse(answer.half.transaction.transaction_id)
        if found is not None:
            self.note(topic, found)
        return found
