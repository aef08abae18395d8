"""Index words of a journal's record: the places that the record is about. Pure bytes.

    DT_GROUPS, DT_CANCELLED, DT_CHECKS     KEYS         words of 8 hexadecimal digits, indexed like all KEYS (keys.py)
                                           DT_INDEXED   all records of this queue from this offset on have their words

A word names a block: 8^n neighbouring offsets of one queue. A run of offsets is named by the one or two blocks of the
smallest size that hold it, so a single message costs a word, and a thousand neighbours cost two. Every offset is in one
block of each size, so the words of nine blocks lead to all records about it. A word is a CRC-32 and only a hint:
readers check the body.
"""

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache

from duetime_format import record
from duetime_format.properties import encode_properties, number_of, value_of
from duetime_format.ranges import RANGE, ranges_of

# Blocks of 8^0 to 8^7 offsets, and one that has all.
_SHIFTS = (*range(0, 24, 3), 63)
# Maximum runs of one event named separately; more are named as one, from the first to the last.
RUNS_MAX = 32
# Maximum words of one record: 9 KiB of the 32 KiB that properties may take.
WORDS_MAX = 1_024
_INDEXED = record.INDEXED.encode()


def words_of(topic: str, queue: int, runs: bytes, runs_max: int = RUNS_MAX) -> list[str]:
    """The words of ascending offsets, as ranges.py encodes them. More than `runs_max` runs count as one."""
    seed = _seed(topic, queue)
    return list(dict.fromkeys(_word(seed, shift, block) for shift, block in _blocks(runs, runs_max)))


def words_at(topic: str, queue: int, offset: int) -> list[str]:
    """The words of all blocks that contain an offset."""
    seed = _seed(topic, queue)
    return [_word(seed, shift, offset >> shift) for shift in _SHIFTS]


def properties_of(words: Iterable[str], since: int) -> bytes:
    """The properties of a journal's record. `since`: the first offset from which all records have words."""
    keys = " ".join(dict.fromkeys(words))
    named = {record.KEYS: keys} if keys else {}
    return record.with_crc_mark(encode_properties(named | {record.INDEXED: str(since)}))


def since_of(properties: bytes) -> int | None:
    """None: the record was written without words."""
    return number_of(value_of(properties, _INDEXED))


def _blocks(runs: bytes, runs_max: int) -> Iterator[tuple[int, int]]:
    if len(runs) > runs_max * RANGE.size:
        (first, _), (last, count) = RANGE.unpack_from(runs), RANGE.unpack_from(runs, len(runs) - RANGE.size)
        pairs: Iterable[tuple[int, int]] = [(first, last + count - first)]
    else:
        pairs = ranges_of(runs)
    for first, count in pairs:
        last = first + count - 1
        shift = next(shift for shift in _SHIFTS if (last >> shift) - (first >> shift) <= 1)
        yield from ((shift, block) for block in range(first >> shift, (last >> shift) + 1))


def _word(seed: int, shift: int, block: int) -> str:
    return f"{zlib.crc32(b'%d:%d' % (shift, block), seed):08x}"


@lru_cache(4_096)
def _seed(topic: str, queue: int) -> int:
    return zlib.crc32(f"{topic}:{queue}:".encode())
