"""The user topic of a record: an id names one message in each topic."""

from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.errors import Ambiguous
from duetime_format import record
from duetime_format.names import is_system_topic

from duetime_store.finding.finder import FoundRecord, MessageFinder
from duetime_store.finding.trace import MessageTraces
from duetime_store.queues.deletions import Deletions

# Records of one id to read: those of its newest messages.
_RECORDS_MAX = 256


def destination_of(deletions: Deletions, seen: FoundRecord) -> str:
    """The topic; for a failed message's copy, the topic that it was received from. Empty: a system topic, or one
    deleted since."""
    topic = seen.properties.get(record.RETRY_TOPIC, "") or seen.real_topic
    is_gone = is_system_topic(topic) or seen.record.position < deletions.position(topic)
    return "" if is_gone else topic


class IdFinder:
    """Serves GetMessage and TraceMessage."""

    def __init__(self, deletions: Deletions, finder: MessageFinder, traces: MessageTraces) -> None:
        self._deletions = deletions
        self._finder = finder
        self._traces = traces

    async def get(self, message_id: str, topic: str) -> gateway_pb2.FoundMessage:
        """As MessageFinder.get. Raises: Ambiguous: no topic is given, and more than one has a message with the id."""
        await self._check(message_id, topic)
        return await self._finder.get(message_id, topic)

    async def trace(self, message_id: str, topic: str) -> consumer_pb2.TraceMessageResponse:
        """As MessageTraces.trace. Raises: as `get`."""
        await self._check(message_id, topic)
        return await self._traces.trace(message_id, topic)

    async def _check(self, message_id: str, topic: str) -> None:
        if topic or self._finder.at(message_id) is not None:
            return
        records, _ = await self._finder.records_of(message_id, "", _RECORDS_MAX)
        topics = {destination_of(self._deletions, seen) for seen in records} - {""}
        if len(topics) > 1:
            raise Ambiguous(message_id, sorted(topics))
