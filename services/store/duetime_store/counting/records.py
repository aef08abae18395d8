"""Values of pending records, read from the records: for when neither a column nor a lane's row has them."""

import numpy as np
from duetime_format import layout, record
from duetime_format.columns import values
from duetime_format.errors import DamagedBytes
from duetime_format.units import FILLER_SIZE, Ints, Units

from duetime_store.lanes.order.topics import NO_TOPIC, TopicNumbers
from duetime_store.log.commitlog import CommitLog

_NAMES = (record.REAL_TOPIC.encode(),)


class RecordTopics:
    """Reads the log. A record costs about a microsecond."""

    def __init__(self, log: CommitLog, numbers: TopicNumbers) -> None:
        self._log = log
        self._numbers = numbers

    def of(self, units: Units) -> Ints:
        """The number of each unit's topic; NO_TOPIC if its record is missing."""
        (names,) = self.values(units, _NAMES)
        number = self._numbers.number
        # Equal values of neighbours are one object: most lookups repeat the last one.
        numbers = {name: number(name) for name in set(names) if name is not None}
        return np.array([NO_TOPIC if name is None else numbers[name] for name in names], np.int64)

    def values(self, units: Units, names: tuple[bytes, ...]) -> list[list[bytes | None]]:
        """For each property, its value in the record of each unit; None: it has none, or is missing."""
        records: list[bytes] = []
        sizes: list[int] = []
        for position, size in units[["position", "size"]].tolist():
            data = self._log.read(position, size) if size not in (0, FILLER_SIZE) else b""
            is_whole = len(data) == size == layout.size_at(data)
            records.append(data if is_whole else b"")
            sizes.append(size if is_whole else 0)
        return _values(records, sizes, names)


def _values(records: list[bytes], sizes: list[int], names: tuple[bytes, ...]) -> list[list[bytes | None]]:
    try:
        return values(b"".join(records), sizes, names)
    except DamagedBytes:
        if len(records) == 1:
            return [[None] for _ in names]
        alone = [_values([data], [size], names) for data, size in zip(records, sizes, strict=True)]
        return [[one[column][0] for one in alone] for column in range(len(names))]
