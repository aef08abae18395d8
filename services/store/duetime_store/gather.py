"""Records that a row of units names, copied out of the log one behind the other.

    units    | p, 300 | p + 300, 310 | q, 290 | ...        of a queue, in order
    bytes    | record of 300 | record of 310 | record of 290 | ...

Only what is plainly right goes this way, in one pass: a copy ends at the first unit whose record needs a closer look
(`intact` and `Store.read_record` give it) or lies in another segment.
"""

from mmap import mmap

from duetime_core import record
from duetime_core.compiled import twin

from duetime_store.commitlog import CommitLog
from duetime_store.consumequeue import Units

_SIZE_MIN = record.SIZE_MAGIC.size
_TOPIC_BYTES_MAX = 0x7F


def gather(log: CommitLog, units: Units, *, checked: bool) -> tuple[bytes, int]:
    """The records of the first units, and how many units they are: 0 where the first one needs a closer look.

    Each says its unit's size; `checked`: and is a V1 record with IPv4 hosts whose body matches its CRC.
    """
    segment = log.segment_at(int(units["position"][0]))
    if segment is None:
        return b"", 0
    records, count = _copy(segment.map, segment.base, units, checked)
    segment.touch(len(records))
    return records, count


def copy(data: mmap | bytes, base: int, units: Units, checked: bool) -> tuple[bytes, int]:
    """As `gather`, from a segment's bytes, the first of which is at position `base`; in Python."""
    parts: list[bytes] = []
    count = 0
    for at, sizes in _runs(units, base, len(data)):
        run = data[at : at + sum(sizes)]
        end = 0
        for size in sizes:
            if record.SIZE_MAGIC.unpack_from(run, end)[0] != size or (checked and not intact(run, end, size)):
                return b"".join((*parts, run[:end])), count
            end += size
            count += 1
        parts.append(run)
    return b"".join(parts), count


def _runs(units: Units, base: int, length: int) -> list[tuple[int, list[int]]]:
    """(index, sizes) of what lies without a gap, up to the first unit that is not within `length` bytes from `base`."""
    runs: list[tuple[int, list[int]]] = []
    end = -1
    for position, size, _ in units.tolist():
        at = position - base
        if at < 0 or size < _SIZE_MIN or at + size > length:
            break
        if at != end:
            runs.append((at, []))
        runs[-1][1].append(size)
        end = at + size
    return runs


def intact(data: bytes, at: int, size: int) -> bool:
    """Whether the record there has the usual shape (two IPv4 hosts) and matches its CRC: the whole record's where it
    has one, else the body's."""
    if size < record.FIXED_BYTES_V4 or data[at + record.SYS_FLAG_AT + 3] & (record.SYS_BORN_V6 | record.SYS_STORE_V6):
        return False
    head = record.HEAD_V4.unpack_from(data, at)
    topic_at = record.HEAD_V4.size + head[-1]
    if head[1] != record.MAGIC_V1 or not 0 <= head[-1] <= size - record.FIXED_BYTES_V4:
        return False
    whole = data[at : at + size]
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
