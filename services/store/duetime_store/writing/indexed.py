"""The first record on each journal of a shard with index words (duetime_format.subjects).

A release before the words wrote records without them, and may have served the directory in between. So the newest
record at a start decides: it holds the first offset with words, or has none itself, and then words begin with the next.
"""

from duetime_format import record, subjects
from duetime_format.errors import DamagedBytes
from duetime_format.names import GROUPS_TOPIC

from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.queues import Queues


class IndexedJournals:
    """Belongs to the event loop's thread."""

    def __init__(self, queues: Queues, log: CommitLog) -> None:
        self._queues = queues
        self._log = log
        self._since: dict[str, int] = {}

    @property
    def groups_since(self) -> int:
        """As `since`, for the events of groups."""
        return self.since(GROUPS_TOPIC)

    def since(self, topic: str) -> int:
        """The offset from which all records of the journal have words. Call it before this process stages one."""
        if topic not in self._since:
            self._since[topic] = self._read(topic)
        return self._since[topic]

    def _read(self, topic: str) -> int:
        queue = self._queues.known(topic.encode(), 0)
        if queue is None:
            return 0
        units = queue.read(queue.max_offset - 1, 1)
        if not len(units):
            return queue.max_offset
        position, size, _ = units[0].item()
        try:
            since = subjects.since_of(record.decode(self._log.read_record(position, size)).properties)
        except DamagedBytes:
            since = None
        return queue.max_offset if since is None else since
