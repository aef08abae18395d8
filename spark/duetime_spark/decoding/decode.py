"""Records of the log as Arrow: the rows of table `messages`, of the requested columns.

    bytes of a segment ──take──▶ intact records, one pass, straight into Arrow's buffers (the compiled twin, or Python)
                       ──judge─▶ the others, one by one: a row with its `damage`, or skipped bytes

Damage is judged as in the store's recovery (walk.py): a record with a valid structure and a wrong CRC is a row; other
bytes are skipped up to the next record with its own position.

Text is valid UTF-8, as required by Arrow and Spark: other bytes become U+FFFD, as for RocketMQ's readers. Properties
are a map, built as those build it: parts without a name or a value are left out, of equal names the last one is used,
in the place of the first. The mark `__CRC32#` is not a property. Bodies are as stored, compressed ones too.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol

import pyarrow as pa
from duetime_format import layout
from duetime_format.compiled import twin
from duetime_format.record import Record
from duetime_shard.walk import SkippedBytes, judge

from duetime_spark.decoding.rows import PythonRows, TwinRows

_twin = twin("duetime_spark.decoding._decode")

# Spark reads a map's values as nullable.
PROPERTIES_TYPE = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=True))
SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("position", pa.int64()),
        ("size", pa.int32()),
        ("id", pa.string()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("level", pa.int32()),
        ("real_topic", pa.string()),
        ("real_queue", pa.int32()),
        ("lane_level", pa.int32()),
        ("lane_offset", pa.int64()),
        ("lane_due_at_ms", pa.int64()),
        ("born_at_ms", pa.int64()),
        ("stored_at_ms", pa.int64()),
        ("born_host", pa.string()),
        ("store_host", pa.string()),
        ("flag", pa.int32()),
        ("sys_flag", pa.int32()),
        ("reconsume_times", pa.int32()),
        ("prepared_offset", pa.int64()),
        ("body_crc", pa.int32()),
        ("body_size", pa.int32()),
        ("body", pa.binary()),
        ("properties", PROPERTIES_TYPE),
        ("damage", pa.string()),
    ]
)
DEFAULT_COLUMNS = tuple(name for name in SCHEMA.names if name != "body")
ROWS_MAX = 262_144
# Limit on a batch's records, so that large bodies do not make it too large.
BATCH_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 8 * 1024 * 1024
# Bytes to ask for when the needed size is unknown; bytes to search at once.
_ASK_BYTES = 1024 * 1024
_SEARCH_BYTES = 1024 * 1024
# Limit on topic and properties together.
_TEXT_BYTES_MAX = 2 * 0x7FFF + 4

Buffer = bytes | bytearray | memoryview


class RowBuilder(Protocol):
    """Builds rows from consecutive records."""

    @property
    def count(self) -> int: ...

    @property
    def is_full(self) -> bool: ...

    def take(self, view: memoryview, base: int, at: int, end: int, check_crc: bool) -> int:
        """Takes intact records at indices [at, end) of the bytes at position `base`, up to the first damaged one or a
        full batch; returns the index after the last one taken."""
        ...

    def finish(self) -> dict[str, pa.Array]:
        """All columns but shard and damage; leaves no rows."""
        ...


class Decoder:
    """Decodes records of one segment with a start before `end`; the bytes come in pieces, and are not kept."""

    def __init__(
        self,
        end: int,
        bound: int,
        *,
        columns: Collection[str] = DEFAULT_COLUMNS,
        shard: int = 0,
        check_crc: bool = True,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BATCH_BYTES,
    ) -> None:
        """`bound`: the segment's end, at or after `end`.

        Raises:
            ValueError: a column is unknown, or none is requested.
        """
        if not columns:
            raise ValueError("no column of table messages is requested")
        unknown = [name for name in columns if name not in SCHEMA.names]
        if unknown:
            raise ValueError(f"table messages has no column {', '.join(unknown)}")
        self.schema = pa.schema([SCHEMA.field(name) for name in columns])
        # Skipped bytes, in order.
        self.skipped: list[SkippedBytes] = []
        # Minimum bytes of the next feed; 0: any number.
        self.wants = 0
        self._end, self._bound, self._shard, self._check_crc = min(end, bound), bound, shard, check_crc
        self._rows: RowBuilder = (TwinRows if _twin is not None else PythonRows)(self.schema, rows_max, bytes_max)
        self._damage: list[tuple[int, str]] = []
        # Reason for skipping bytes now; empty: none.
        self._words = ""

    @property
    def rows(self) -> int:
        """Rows ready for `take`."""
        return self._rows.count

    @property
    def is_full(self) -> bool:
        """Whether `take` must be called before the next `feed`."""
        return self._rows.is_full

    def feed(self, data: Buffer, position: int) -> int:
        """Decodes bytes at `position`, a record's start or the end of the last feed. Returns its own end: at or after
        `end`; or earlier, because it needs at least `wants` bytes from there, or has no space for rows."""
        self.wants = 0
        at, data_end = position, position + len(data)
        with memoryview(data) as view:
            while at < self._end and not self.is_full:
                if self._words:
                    next_at = self._resume(view, position, at)
                else:
                    stop = min(self._end, data_end) - position
                    at = position + self._rows.take(view, position, at - position, stop, self._check_crc)
                    if at >= self._end or self.is_full:
                        break
                    next_at = self._judge(view, position, at)
                if next_at == at and self.wants:
                    break
                at = next_at
        return at

    def take(self) -> pa.RecordBatch:
        """The rows so far; leaves none."""
        count = self.rows
        found = self._rows.finish()
        if "shard" in self.schema.names:
            found["shard"] = pa.repeat(pa.scalar(self._shard, pa.int32()), count)
        if "damage" in self.schema.names:
            found["damage"] = _sparse(self._damage, count)
        self._damage.clear()
        return pa.record_batch([found[name] for name in self.schema.names], schema=self.schema)

    # --- damage ----------------------------------------------------------------------------------------------------

    def _judge(self, view: memoryview, base: int, at: int) -> int:
        """Handles bytes at `at` without an intact record; returns the position to continue from."""
        index, room = at - base, len(view) - (at - base)
        if self._bound - at < layout.BLANK_BYTES:
            return self._end
        if room < layout.BLANK_BYTES:
            return self._ask(at, layout.HEAD_BYTES_MAX)
        if layout.blank_at(view, index) == self._bound - at:
            return self._end
        size = layout.size_at(view, index)
        if room < size <= self._bound - at:
            if room < min(size, layout.HEAD_BYTES_MAX):
                return self._ask(at, layout.HEAD_BYTES_MAX)
            if _seems(view, index, at):
                return self._ask(at, size)
            # The record is incomplete, and more bytes would not make it valid.
            found, damage = None, f"no record at position {at}"
        else:
            found, damage = _record_at(view, index, at, self._bound)
        if found is None:
            self._words = damage
            return at
        taken = self._rows.take(view, base, index, index + 1, check_crc=False)
        assert taken == index + found.size, "twin and Python differ about a record's structure"
        if self._check_crc:
            self._damage.append((self.rows - 1, damage))
        return at + found.size

    def _ask(self, at: int, size: int) -> int:
        self.wants = min(size, self._bound - at)
        return at

    def _resume(self, view: memoryview, base: int, at: int) -> int:
        """Skips bytes from `at` on without a record: up to the next record, the end, or the end of the data."""
        data_end = base + len(view)
        next_at = self._next_record(view, base, at + 1)
        if next_at is None:
            # A record may begin in the last bytes of the data. The byte before these was searched: the next call begins
            # one byte after its `at`.
            next_at = self._bound if data_end >= self._bound else data_end - layout.PREFIX_BYTES - 1
            if next_at <= at:
                return self._ask(at, _ASK_BYTES)
            found = next_at >= self._end
        else:
            found = True
        next_at = min(next_at, self._end)
        last = self.skipped[-1] if self.skipped else None
        if last is not None and last.position + last.size == at:
            self.skipped[-1] = SkippedBytes(last.position, next_at - last.position, last.damage)
        else:
            self.skipped.append(SkippedBytes(at, next_at - at, self._words))
        if found:
            self._words = ""
        return next_at

    def _next_record(self, view: memoryview, base: int, at: int) -> int | None:
        """The first position from `at` on with the apparent start of a record that names this position; None: not in
        these bytes."""
        index = at - base
        while index < len(view) - layout.PREFIX_BYTES:
            stop = min(index + _SEARCH_BYTES, len(view))
            start = layout.next_start(bytes(view[index:stop]), 0)
            if start < 0:
                # The size precedes the magic, and the end of the part may cut the magic.
                index = stop - 7 if stop < len(view) else stop
                continue
            index += start
            if index >= len(view) - layout.PREFIX_BYTES:
                return None
            size, head, position = layout.size_at(view, index), layout.head_of(view, index), base + index
            if head is not None and head.position == position and 0 < size <= self._bound - position:
                if size > len(view) - index:
                    if len(view) - index < min(size, layout.HEAD_BYTES_MAX) or _seems(view, index, position):
                        return position
                elif _record_at(view, index, position, self._bound)[0] is not None:
                    return position
            index += 1
        return None


def decode(data: Buffer, position: int, end: int, bound: int, **options: Any) -> tuple[pa.RecordBatch, Decoder, int]:
    """Records with a start in [position, end), from bytes at `position`; the decoder, with the skipped bytes, and the
    position of its end. `options` are Decoder's."""
    decoder = Decoder(end, bound, **options)
    stopped_at = decoder.feed(data, position)
    return decoder.take(), decoder, stopped_at


def batches(
    read: Callable[[int, int], bytes], position: int, decoder: Decoder, end: int, bound: int
) -> Iterator[pa.RecordBatch]:
    """The rows of records with a start in [position, end); `position` is a record's start or end. `read(position,
    length)` returns bytes of the segment, fewer at the end of a short file: missing bytes are a finding."""
    while position < end:
        length = min(max(min(end - position, _CHUNK_BYTES), decoder.wants), bound - position)
        data = read(position, length)
        next_at = decoder.feed(data, position)
        if next_at < end and not decoder.is_full and len(data) < length:
            text = f"the file ends within its segment, at position {position + len(data)}"
            decoder.skipped.append(SkippedBytes(next_at, end - next_at, text))
            next_at = end
        position = next_at
        if decoder.is_full:
            yield decoder.take()
    if decoder.rows:
        yield decoder.take()


def _record_at(view: memoryview, index: int, position: int, bound: int) -> tuple[Record | None, str]:
    """As `judge`, for any bytes."""
    if not 0 < layout.size_at(view, index) <= bound - position:
        return None, f"no record at position {position}"
    return judge(view, index, position)


def _seems(view: memoryview, index: int, position: int) -> bool:
    """Whether the head of an incomplete record agrees with its own size and position."""
    head = layout.head_of(view, index)
    if head is None or not head.is_message or head.position != position:
        return False
    body_size: int = layout.TAIL.unpack_from(view, index + head.tail_at)[-1]
    return 0 <= head.size - head.body_at - body_size <= _TEXT_BYTES_MAX and body_size >= 0


def _sparse(values: list[tuple[int, str]], count: int) -> pa.Array:
    """A text column from a few (row, text) pairs."""
    if not values:
        return pa.nulls(count, pa.string())
    whole: list[str | None] = [None] * count
    for row, text in values:
        whole[row] = text
    return pa.array(whole, pa.string())
