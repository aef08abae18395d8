"""Records that a row of units names, checked and copied out of the log one behind the other.

    units    | p, 300 | p + 300, 310 | q, 290 | ...        of a queue, in order
    bytes    | record of 300 | record of 310 | record of 290 | ...

A unit and its record have to say the same: position and size; the topic, queue and queue offset that the unit has by
where it stands; and in a lane the due time, which is the record's store time and the lane's delay. So neither a flipped
bit of a record, which its CRC tells, nor one of a unit leads to another message or another time.

Only what is plainly right goes this way, in one pass: a copy ends at the first unit whose record needs a closer look
(repair.py gives it) or lies in another segment.
"""

from dataclasses import dataclass
from mmap import mmap

import numpy as np
import numpy.typing as npt
from duetime_format import record
from duetime_format.compiled import twin
from duetime_format.units import Units

from duetime_store.commitlog import CommitLog

_SIZE_MIN = record.SIZE_MAGIC.size
_TOPIC_BYTES_MAX = 0x7F

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Wanted:
    """What the records of a row of units have to be; the columns have one value for each unit."""

    topic: bytes
    queue: int
    offsets: Ints
    # Lanes: from store time to due time. None: the unit's tags are no due time.
    delays_ms: Ints | None = None

    def behind(self, index: int) -> "Wanted":
        delays_ms = self.delays_ms if self.delays_ms is None else self.delays_ms[index:]
        return Wanted(self.topic, self.queue, self.offsets[index:], delays_ms)


def gather(log: CommitLog, units: Units, wanted: Wanted) -> tuple[bytes, int]:
    """The records of the first units, and how many units they are: 0 where the first one needs a closer look.

    Each is intact, has IPv4 hosts, and is what its unit says.
    """
    segment = log.segment_at(int(units["position"][0]))
    if segment is None:
        return b"", 0
    records, count = _copy(segment.map, segment.base, units, wanted)
    segment.touch(len(records))
    return records, count


def copy(data: mmap | bytes, base: int, units: Units, wanted: Wanted) -> tuple[bytes, int]:
    """As `gather`, from a segment's bytes, the first of which is at position `base`; in Python."""
    parts: list[bytes] = []
    offsets = wanted.offsets.tolist()
    delays_ms = [None] * len(units) if wanted.delays_ms is None else wanted.delays_ms.tolist()
    for (position, size, tags), offset, delay_ms in zip(units.tolist(), offsets, delays_ms, strict=True):
        at = position - base
        if at < 0 or size < _SIZE_MIN or at + size > len(data):
            break
        whole = data[at : at + size]
        if not intact(whole):
            break
        head = record.HEAD_V4.unpack_from(whole)
        topic_at = record.HEAD_V4.size + head[14] + 1
        said = (head[0], head[3], head[5], head[6], whole[topic_at : topic_at + whole[topic_at - 1]])
        if said != (size, wanted.queue, offset, position, wanted.topic):
            break
        if delay_ms is not None and (delay_ms < 0 or tags != head[10] + delay_ms):
            break
        parts.append(whole)
    return b"".join(parts), len(parts)


def intact(whole: bytes) -> bool:
    """Whether a record has the usual shape (V1, two IPv4 hosts) and matches its CRC: the whole record's where it has
    one, else the body's."""
    size = len(whole)
    if size < record.FIXED_BYTES_V4 or whole[record.SYS_FLAG_AT + 3] & (record.SYS_BORN_V6 | record.SYS_STORE_V6):
        return False
    head = record.HEAD_V4.unpack_from(whole)
    topic_at = record.HEAD_V4.size + head[14]
    if head[1] != record.MAGIC_V1 or not 0 <= head[14] <= size - record.FIXED_BYTES_V4:
        return False
    properties_bytes = size - topic_at - 3 - whole[topic_at]
    if whole[topic_at] > _TOPIC_BYTES_MAX or properties_bytes < 0:
        return False
    if int.from_bytes(whole[-properties_bytes - 2 :][:2], "big") != properties_bytes:
        return False
    matches = record.matches_crc_mark(whole, properties_bytes)
    if matches is None:
        matches = record.body_crc(whole[record.HEAD_V4.size : topic_at]) == head[2]
    return bool(matches)


_compiled = twin("duetime_store._gather")
_copy = copy if _compiled is None else _compiled.copy
