"""The index keys of a record: `topic#word` for its message id, then for each word of its KEYS, and `topic#T#tag`.

    row   i32 hash | i64 position | i64 store time, ms        20 bytes, in the machine's byte order

A record that rolls a transaction back is not indexed. The compiled twin takes the words from a run's columns and hashes
them in one pass: a record with an id costs it 0.03 µs.

Brokers before 5.4 make no entry for the tag, and ignore one.

Source: RocketMQ 4.9.3 IndexService.buildIndex; 5.5.1 for the tag.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from duetime_format import layout, record
from duetime_format.columns import Ints, RecordRun
from duetime_format.compiled import twin
from duetime_format.properties import as_text, value_of

_twin = twin("duetime_format._keys")

ROW = np.dtype([("hash", "=i4"), ("position", "=i8"), ("stored_at_ms", "=i8")])
Rows = npt.NDArray[np.void]

NO_ROWS: Rows = np.empty(0, ROW)
_I32_MAX = (1 << 31) - 1
_UNIQ_KEY, _KEYS, _TAGS = record.UNIQ_KEY.encode(), record.KEYS.encode(), record.TAGS.encode()
_TAG_PREFIX = "T#"


def words_of(properties: bytes) -> list[bytes]:
    """The words of a record's encoded properties: the message id, the words of its KEYS, its tag's word."""
    words = [value_of(properties, _UNIQ_KEY), *value_of(properties, _KEYS).split(b" ")]
    tags = value_of(properties, _TAGS)
    if tags:
        words.append(_TAG_PREFIX.encode() + tags)
    return [word for word in words if word]


def tag_word(tag: str) -> str:
    """The word under which a tag is indexed."""
    return _TAG_PREFIX + tag


def rows_of(run: RecordRun) -> Rows:
    """A row for each key of a run of the log, in order."""
    rows = rows_placed(run, run.data)
    assert rows is not None
    return rows


def rows_placed(run: RecordRun, placed: bytes | bytearray, count_max: int = _I32_MAX) -> Rows | None:
    """As `rows_of`, for the records of a put.

    Args:
        placed: the run's bytes, with the records' places filled in (placing.py).
        count_max: None is returned if there are more keys, maybe without reading the rest.
    """
    if _twin is not None:
        found = _twin.rows_of(placed, run.columns, run.keys, count_max)
        return None if found is None else np.frombuffer(found, ROW)
    pairs = list(_texts(run))
    if len(pairs) > count_max:
        return None
    rows = np.empty(len(pairs), ROW)
    rows["hash"] = key_hashes(hash_codes([text for _, text in pairs]))
    for number, (index, _) in enumerate(pairs):
        start, flags = int(run.starts[index]), int(run.flags[index])
        (rows["position"][number],) = layout.I64.unpack_from(placed, start + layout.POSITION_AT)
        (rows["stored_at_ms"][number],) = layout.I64.unpack_from(placed, start + layout.stored_at(flags))
    return rows


def _texts(run: RecordRun) -> Iterator[tuple[int, str]]:
    """(record, key) of all keys."""
    topics = [topic.decode() for topic, _ in run.keys]
    indexed = (run.flags & layout.SYS_TRANSACTION) != layout.SYS_TRANSACTION_ROLLBACK
    key_of = run.key_of.tolist()
    for index in np.flatnonzero(indexed).tolist():
        for word in words_of(run.properties(index)):
            yield index, f"{topics[key_of[index]]}#{as_text(word)}"


def hash_codes(texts: Sequence[str]) -> npt.NDArray[np.uint32]:
    """Java's String.hashCode of each, as 32 bits without a sign; none of the texts is empty.

    The hash is the sum over a text's UTF-16 units of unit * 31^(units after it): one product over all texts' units.
    """
    if not texts:
        return np.empty(0, np.uint32)
    joined = "".join(texts)
    units = np.frombuffer(joined.encode("utf-16-be", "surrogatepass"), ">u2").astype(np.uint32)
    if len(units) == len(joined):
        lengths = np.array([len(text) for text in texts])
    else:
        lengths = np.array([len(text.encode("utf-16-be", "surrogatepass")) // 2 for text in texts])
    ends = lengths.cumsum()
    units_after = np.repeat(ends, lengths) - np.arange(1, len(units) + 1)
    return np.add.reduceat(units * _powers(int(lengths.max()))[units_after], ends - lengths, dtype=np.uint32)


@lru_cache(16)
def _powers(count: int) -> npt.NDArray[np.uint32]:
    """31^0 ... 31^(count - 1), modulo 2^32."""
    powers = np.full(count, 31, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


def key_hashes(codes: npt.NDArray[np.uint32]) -> Ints:
    """The hashes in index entries: the code's absolute value; 0 for the one code that has none."""
    signed = codes.astype(np.int32).astype(np.int64)
    hashes = np.abs(signed)
    hashes[hashes > _I32_MAX] = 0
    return hashes


def key_hash(topic: str, word: str) -> int:
    """The hash of one key."""
    return int(key_hashes(hash_codes([f"{topic}#{word}"]))[0])
