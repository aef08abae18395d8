"""The log as readers will see it, and the parts of its records that answer repeated sends."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from duetime_format import layout, record
from duetime_format.lanes import BOUND_TOPIC_NAMES, LANE_TOPIC_NAMES, lane_of
from duetime_format.properties import as_text, value_of

from duetime_store.files.disk import Buffer
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.intake import GROUP_PREFIXES, Name
from duetime_store.writing.staging import FlushBatch

_UNIQ_KEY, _REAL_TOPIC, _REAL_QID, _SEND_BACK = (
    name.encode() for name in (record.UNIQ_KEY, record.REAL_TOPIC, record.REAL_QID, record.SEND_BACK)
)


@dataclass(slots=True)
class FirstCopy:
    """A stored record: the parts that answer its repetition."""

    topic: bytes
    queue: int
    queue_offset: int
    position: int
    stored_at_ms: int
    properties: bytes

    @property
    def is_delayed(self) -> bool:
        return self.topic in LANE_TOPIC_NAMES

    @property
    def lane(self) -> int:
        """The number of the lane that it entered; 0: none."""
        return lane_of(as_text(self.topic), self.queue) or 0

    @property
    def is_bound(self) -> bool:
        """Whether it is pending, on its way to its topic."""
        return self.topic in BOUND_TOPIC_NAMES

    @property
    def name(self) -> Name:
        topic = (value_of(self.properties, _REAL_TOPIC) if self.is_bound else b"") or self.topic
        token = value_of(self.properties, _SEND_BACK) if topic.startswith(GROUP_PREFIXES) else b""
        return Name(topic, value_of(self.properties, _UNIQ_KEY), token)

    @property
    def topic_queue(self) -> int:
        """The queue of its destination topic."""
        return int(value_of(self.properties, _REAL_QID) or 0) if self.is_bound else self.queue


class VisibleLog:
    """The log as readers will see it: durable bytes and staged ones."""

    def __init__(self, log: CommitLog, durable_end: int, batches: Iterable[FlushBatch | None]) -> None:
        self._log = log
        self._durable_end = durable_end
        self._starts: list[int] = []
        self._buffers: list[Buffer] = []
        runs = sorted((run for batch in batches if batch for run in batch.runs), key=lambda run: run[0])
        for start, buffers in runs:
            for buffer in buffers:
                self._starts.append(start)
                self._buffers.append(buffer)
                start += len(buffer)

    def read(self, position: int, size: int) -> bytes:
        """Reads up to `size` bytes. Excludes bytes after the durable end that are not staged: they were taken back."""
        index = bisect_right(self._starts, position) - 1
        if index >= 0 and position < self._starts[index] + len(self._buffers[index]):
            at = position - self._starts[index]
            return bytes(self._buffers[index][at : at + size])
        return self._log.read(position, size) if position < self._durable_end else b""

    def record_at(self, position: int) -> FirstCopy | None:
        """None: no record begins there any more. Does not read the body, however large: readers check the CRC."""
        data = self.read(position, layout.HEAD_BYTES_MAX)
        head = layout.head_of(data)
        if head is None or not head.is_message or head.position != position or len(data) < head.body_at:
            return None
        *_, body_bytes = layout.TAIL.unpack_from(data, head.tail_at)
        topic_at = head.body_at + body_bytes
        if not head.body_at <= topic_at < head.size:
            return None
        topic, properties = layout.topic_and_properties(head, self.read(position + topic_at, head.size - topic_at))
        (stored_at_ms,) = layout.I64.unpack_from(data, head.stored_at)
        return FirstCopy(topic, head.queue, head.queue_offset, position, stored_at_ms, properties)
