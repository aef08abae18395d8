"""Names the ends of messages sent with `replace`: a lane marks cancelled and replaced entries alike.

A cancel has a row in a record of DT_CANCELLED; an entry without a row was replaced by another message.
"""

from collections.abc import Mapping

from duetime_core.errors import MessageEnded
from duetime_format.names import CANCELLED_TOPIC

from duetime_store.finding.end_search import ends_among
from duetime_store.finding.finder import MessageFinder
from duetime_store.finding.journals import Journals, view_of
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.queues import Queues
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.ended import UnsureEnd
from duetime_store.writing.indexed import IndexedJournals
from duetime_store.writing.staging import PutOutcome


class EndNamer:
    """See the module. Reads only durable ends."""

    def __init__(
        self,
        queues: Queues,
        log: CommitLog,
        indexed: IndexedJournals,
        reader: Reader,
        finder: MessageFinder,
        turns: ScanTurns,
    ) -> None:
        self._queues = queues
        self._log = log
        self._indexed = indexed
        self._reader = reader
        self._finder = finder
        self._turns = turns

    async def complete(self, outcome: PutOutcome) -> None:
        """Names the ends in a durable outcome."""
        unsure = {index: one for index, one in outcome.errors.items() if isinstance(one, UnsureEnd)}
        if unsure:
            for index, error in (await self.named(unsure)).items():
                outcome.refuse(index, error)

    async def named(self, errors: Mapping[int, UnsureEnd]) -> dict[int, MessageEnded]:
        """The errors, with the ends found in the log."""
        since_ms = min(one.ended.stored_at_ms for one in errors.values())
        view = await view_of(self._finder)
        with self._turns.walk() as walk:
            await walk.begin()
            journals = Journals(self._queues, self._log, self._indexed, self._reader, self._finder, walk, view)
            places = {(one.ended.lane, one.ended.entry) for one in errors.values()}
            cancelled = await ends_among(journals.reading(CANCELLED_TOPIC), places, since_ms)
        return {
            index: one.named(is_replaced=(one.ended.lane, one.ended.entry) not in cancelled)
            for index, one in errors.items()
        }
