"""The parsed records of one put."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import columns, following, layout, record
from duetime_format.columns import Ints, RecordRun
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import BOUND_TOPIC_NAMES, lane_of
from duetime_format.names import DLQ_PREFIX, RETRY_PREFIX
from duetime_format.properties import as_text, value_of

_UNIQ_KEY, _REAL_TOPIC, _REAL_QID, _SEND_BACK = (
    name.encode() for name in (record.UNIQ_KEY, record.REAL_TOPIC, record.REAL_QID, record.SEND_BACK)
)
NO_BATCHES = np.empty((0, 2), np.int64)
GROUP_PREFIXES = (RETRY_PREFIX.encode(), DLQ_PREFIX.encode())


class Name(NamedTuple):
    """The name of a record: two with equal names are one message, sent twice."""

    # Its destination.
    topic: bytes
    message_id: bytes
    # A group's copies: the token of the call that asked for it.
    token: bytes = b""

    @property
    def is_one(self) -> bool:
        """Whether this name has one record. A group's copies keep the message's id, attempt after attempt."""
        return bool(self.message_id) and (bool(self.token) or not self.topic.startswith(GROUP_PREFIXES))


class Intake(RecordRun):
    """They have no place in the log yet: `position` is 0.

    `batches`: the runs of records, rows of [first, stop), each stored as a whole or not at all.
    """

    __slots__ = ("_part", "_readings", "batches")

    batches: Ints
    # The last part asked for, and its range: places are promised to records that fall due together.
    _part: tuple[tuple[int, int], "Intake"] | None
    _readings: Ints | None

    @property
    def readings(self) -> Ints:
        """Those of restored occurrences of schedules (duetime_format.following)."""
        if self._readings is None:
            self._readings = following.readings(self)
        return self._readings

    def bytes_of(self, index: int) -> bytes:
        start = int(self.starts[index])
        return self.data[start : start + int(self.sizes[index])]

    def name_of(self, index: int) -> Name:
        """A pending message's topic is its destination."""
        topic, _ = self.keys[int(self.key_of[index])]
        if topic in BOUND_TOPIC_NAMES:
            topic = self._property(index, _REAL_TOPIC) or topic
        token = self._property(index, _SEND_BACK) if topic.startswith(GROUP_PREFIXES) else b""
        return Name(topic, self._property(index, _UNIQ_KEY), token)

    def topic_queue(self, index: int) -> int:
        """The queue in the topic that `name_of` returns."""
        topic, queue = self.keys[int(self.key_of[index])]
        return int(self._property(index, _REAL_QID) or 0) if topic in BOUND_TOPIC_NAMES else queue

    def lane(self, index: int) -> int:
        """The lane that it enters; 0: none."""
        topic, queue = self.keys[int(self.key_of[index])]
        return lane_of(as_text(topic), queue) or 0

    def _property(self, index: int, name: bytes) -> bytes:
        return value_of(self.properties(index), name)

    def name_entries(self, indices: Ints, lane: int, entries: Ints, dues: Ints) -> npt.NDArray[np.bool_]:
        """Whether each record at `indices` ends, apart from its CRC mark, with the property that names its entry of the
        lane and the due time: recovery finds restored entries by it."""
        if self.entries is None:
            return np.zeros(len(indices), np.bool_)
        lanes, own, own_dues = self.entries[:, indices]
        named: npt.NDArray[np.bool_] = (lanes == lane) & (own == entries) & (own_dues == dues)
        return named

    def part(self, start: int, stop: int) -> "Intake":
        """The records [start, stop)."""
        if (start, stop) == (0, self.count):
            return self
        if self._part is None or self._part[0] != (start, stop):
            part = of_run(columns.part(self, start, stop))
            if self._readings is not None:
                part._readings = following.part(self._readings, start, stop, int(self.starts[start]))
            self._part = (start, stop), part
        return self._part[1]

    def only(self, indices: Sequence[int], batches: Ints = NO_BATCHES) -> "Intake":
        """The records at these indices, in this order. `batches`: theirs."""
        return parse(b"".join([self.bytes_of(index) for index in indices]), batches)


def parse(data: bytes, batches: Ints = NO_BATCHES) -> Intake:
    """Raises: InvalidArgument: the bytes are not whole V1 records."""
    try:
        run = columns.parse(data)
    except DamagedBytes as error:
        raise InvalidArgument([Violation("records", error.text)], reason="RECORDS_INVALID") from error
    return of_run(run, batches)


def of_run(run: RecordRun, batches: Ints = NO_BATCHES) -> Intake:
    """The records of a run that `columns.parse` or `following.follow` has made."""
    intake = Intake(run.data, run.position, run.end, run.keys, run.columns, run.entries, run.destinations)
    intake.batches, intake._part, intake._readings = batches, None, None
    return intake


def whole_bytes(data: bytes) -> int:
    """The number of bytes at the front of `data` that are whole records, by their sizes."""
    at = 0
    while 0 < (size := layout.size_at(data, at)) <= len(data) - at:
        at += size
    return at
