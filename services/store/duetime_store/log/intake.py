"""The records of one put, taken apart."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import columns, layout, record
from duetime_format.columns import Ints, Run
from duetime_format.errors import Damaged
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.properties import value_of

_UNIQ_KEY, _REAL_TOPIC, _REAL_QID = (name.encode() for name in (record.UNIQ_KEY, record.REAL_TOPIC, record.REAL_QID))
_LANE_TOPIC = SCHEDULE_TOPIC.encode()


class Intake(Run):
    """They lie nowhere yet: `position` is 0."""

    __slots__ = ()

    @property
    def all_have_ids(self) -> bool:
        return bool((self.id_hashes >= 0).all())

    def bytes_of(self, index: int) -> bytes:
        start = int(self.starts[index])
        return self.data[start : start + int(self.sizes[index])]

    def name_of(self, index: int) -> tuple[bytes, bytes]:
        """Topic and message id; a delayed message's topic is the one that it goes to."""
        topic, _ = self.keys[int(self.key_of[index])]
        if topic == _LANE_TOPIC:
            topic = self._property(index, _REAL_TOPIC) or topic
        return topic, self._property(index, _UNIQ_KEY)

    def topic_queue(self, index: int) -> int:
        """The queue of that topic."""
        topic, queue = self.keys[int(self.key_of[index])]
        return int(self._property(index, _REAL_QID) or 0) if topic == _LANE_TOPIC else queue

    def _property(self, index: int, name: bytes) -> bytes:
        return value_of(self.properties(index), name)

    def name_entries(self, indices: Ints, lane: int, entries: Ints, dues: Ints) -> npt.NDArray[np.bool_]:
        """Whether the records at `indices` end, their CRC marks apart, with the property that names these entries of
        the lane, due then: recovery finds by it what is restored."""
        if self.entries is None:
            return np.zeros(len(indices), np.bool_)
        lanes, own, own_dues = self.entries[:, indices]
        named: npt.NDArray[np.bool_] = (lanes == lane) & (own == entries) & (own_dues == dues)
        return named

    def part(self, first: int, behind: int) -> "Intake":
        """The records [first, behind)."""
        if (first, behind) == (0, self.count):
            return self
        end = int(self.starts[behind]) if behind < self.count else len(self.data)
        return parse(self.data[int(self.starts[first]) : end])

    def only(self, indices: Sequence[int]) -> "Intake":
        """Some of the records, in this order."""
        return parse(b"".join([self.bytes_of(index) for index in indices]))


def parse(data: bytes) -> Intake:
    """Raises: InvalidArgument where the bytes are not whole V1 records."""
    try:
        run = columns.parse(data)
    except Damaged as error:
        raise InvalidArgument([Violation("records", error.text)], reason="RECORDS_INVALID") from error
    return Intake(run.data, run.position, run.end, run.keys, run.columns, run.entries)


def whole_bytes(data: bytes) -> int:
    """How many bytes at the front of `data` are whole records, by their sizes."""
    at = 0
    while 0 < (size := layout.size_at(data, at)) <= len(data) - at:
        at += size
    return at
