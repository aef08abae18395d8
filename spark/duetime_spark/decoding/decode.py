"""Records of the log as Arrow: the rows of table `messages`, of the columns that are wanted and no others.

    bytes of a segment ──take──▶ intact records, one pass, straight into Arrow's buffers (the compiled twin, or Python)
                       ──judge─▶ what is not plainly intact, one by one: a row with its `damage`, bytes that are skipped

What is damaged is judged as the store does when it recovers (scan.py): a record whose structure holds and whose CRC
does not match is a row; bytes that are no record are skipped up to the next record that knows its position.

Text is valid UTF-8, as Arrow and Spark demand: other bytes become U+FFFD, as for RocketMQ's readers. Properties are
a map as those make it: parts without a name or a value are left out, of equal names the last one counts, in the place
of the first. The mark `__CRC32#` is no property. Bodies are as stored, compressed ones too.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol

import pyarrow as pa
from duetime_core.ondisk.scan import Skipped, judge
from duetime_format import layout
from duetime_format.compiled import twin
from duetime_format.record import Record

from duetime_spark.decoding.rows import PythonRows, TwinRows

_twin = twin("duetime_spark.decoding._decode")

# Spark reads a map's value as one that may be null.
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
# Of records in one batch, so that bodies do not make it as large as they like.
BATCH_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 8 * 1024 * 1024
# Asked for where nobody knows how much is needed; and searched at once.
_LOOK_BYTES = 1024 * 1024
_SEARCH_BYTES = 1024 * 1024
# What topic and properties can have at most.
_TEXT_BYTES_MAX = 2 * 0x7FFF + 4

Buffer = bytes | bytearray | memoryview


class Rows(Protocol):
    """Records become rows here, back to back."""

    @property
    def count(self) -> int: ...

    @property
    def is_full(self) -> bool: ...

    def take(self, view: memoryview, base: int, at: int, end: int, check_crc: bool) -> int:
        """Takes the records at indices [at, end) of the bytes at position `base` for as long as they are plainly intact
        and there is room; the index behind them."""
        ...

    def finish(self) -> dict[str, pa.Array]:
        """All columns but shard and damage; there are no rows then."""
        ...


class Decoder:
    """Decodes the records of one segment that start in [.., end); the bytes come in pieces, which it does not keep."""

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
        """`bound`: where the segment ends, `end` at most that.

        Raises:
            ValueError: there is no such column, or none is asked for.
        """
        if not columns:
            raise ValueError("no column of table messages is asked for")
        unknown = [name for name in columns if name not in SCHEMA.names]
        if unknown:
            raise ValueError(f"table messages has no column {', '.join(unknown)}")
        self.schema = pa.schema([SCHEMA.field(name) for name in columns])
        # What was passed over, in order.
        self.skipped: list[Skipped] = []
        # Bytes that the next feed has to have for it to get on; 0: as many as there are.
        self.wants = 0
        self._end, self._bound, self._shard, self._check_crc = min(end, bound), bound, shard, check_crc
        self._rows: Rows = (TwinRows if _twin is not None else PythonRows)(self.schema, rows_max, bytes_max)
        self._damage: list[tuple[int, str]] = []
        # Bytes behind it are being skipped.
        self._words = ""

    @property
    def rows(self) -> int:
        """How many there are to `take`."""
        return self._rows.count

    @property
    def is_full(self) -> bool:
        """Nothing more is decoded before a `take`."""
        return self._rows.is_full

    def feed(self, data: Buffer, position: int) -> int:
        """Decodes what lies at `position`, a record's start or where the last feed stopped. Where it stopped: `end` or
        behind; before that, what follows is to be fed again, `wants` bytes at least, or there is no room for rows."""
        self.wants = 0
        at, data_end = position, position + len(data)
        with memoryview(data) as view:
            while at < self._end and not self.is_full:
                if self._words:
                    behind = self._resume(view, position, at)
                else:
                    stop = min(self._end, data_end) - position
                    at = position + self._rows.take(view, position, at - position, stop, self._check_crc)
                    if at >= self._end or self.is_full:
                        break
                    behind = self._judge(view, position, at)
                if behind == at and self.wants:
                    break
                at = behind
        return at

    def take(self) -> pa.RecordBatch:
        """The rows so far; there are none then."""
        count = self.rows
        found = self._rows.finish()
        if "shard" in self.schema.names:
            found["shard"] = pa.repeat(pa.scalar(self._shard, pa.int32()), count)
        if "damage" in self.schema.names:
            found["damage"] = _sparse(self._damage, count)
        self._damage.clear()
        return pa.record_batch([found[name] for name in self.schema.names], schema=self.schema)

    # --- what is not plainly intact ---------------------------------------------------------------------------------

    def _judge(self, view: memoryview, base: int, at: int) -> int:
        """Where to go on from what lies at position `at`."""
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
            # Not all of it is here, and nothing is gained by more.
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
        """Skips bytes that are no record, the one at `at` first: up to the next record, the end, or all that there
        are."""
        data_end = base + len(view)
        behind = self._next_record(view, base, at + 1)
        if behind is None:
            # A record may begin in the last bytes of what there is.
            behind = self._bound if data_end >= self._bound else data_end - layout.PREFIX_BYTES
            if behind <= at:
                return self._ask(at, _LOOK_BYTES)
            found = behind >= self._end
        else:
            found = True
        behind = min(behind, self._end)
        last = self.skipped[-1] if self.skipped else None
        if last is not None and last.position + last.size == at:
            self.skipped[-1] = Skipped(last.position, behind - last.position, last.damage)
        else:
            self.skipped.append(Skipped(at, behind - at, self._words))
        if found:
            self._words = ""
        return behind

    def _next_record(self, view: memoryview, base: int, at: int) -> int | None:
        """The first position from `at` on at which a record seems to lie that knows it; None: not in these bytes."""
        index = at - base
        while index < len(view) - layout.PREFIX_BYTES:
            stop = min(index + _SEARCH_BYTES, len(view))
            start = layout.next_start(bytes(view[index:stop]), 0)
            if start < 0:
                # The size stands in front of the magic, which may be cut by the end of the part.
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
    """All records that start in positions [position, end), out of bytes that begin there; the decoder, with what it has
    passed over, and where it stopped. `options` are Decoder's."""
    decoder = Decoder(end, bound, **options)
    stopped_at = decoder.feed(data, position)
    return decoder.take(), decoder, stopped_at


def batches(
    read: Callable[[int, int], bytes], position: int, decoder: Decoder, end: int, bound: int
) -> Iterator[pa.RecordBatch]:
    """The rows of records that start in [position, end), a record's start or the end of one; `read(position, length)`
    gives so many bytes of the segment, or fewer where it ends before its `bound`: what is not there is a finding."""
    while position < end:
        length = min(max(min(end - position, _CHUNK_BYTES), decoder.wants), bound - position)
        data = read(position, length)
        behind = decoder.feed(data, position)
        if behind < end and not decoder.is_full and len(data) < length:
            text = f"the file ends within its segment, at position {position + len(data)}"
            decoder.skipped.append(Skipped(behind, end - behind, text))
            behind = end
        position = behind
        if decoder.is_full:
            yield decoder.take()
    if decoder.rows:
        yield decoder.take()


def _record_at(view: memoryview, index: int, position: int, bound: int) -> tuple[Record | None, str]:
    """As `judge`, of any bytes."""
    if not 0 < layout.size_at(view, index) <= bound - position:
        return None, f"no record at position {position}"
    return judge(view, index, position)


def _seems(view: memoryview, index: int, position: int) -> bool:
    """Whether the head of a record whose end is not there fits what it says of its size and position."""
    head = layout.head_of(view, index)
    if head is None or not head.is_message or head.position != position:
        return False
    body_size: int = layout.TAIL.unpack_from(view, index + head.tail_at)[-1]
    return 0 <= head.size - head.body_at - body_size <= _TEXT_BYTES_MAX and body_size >= 0


def _sparse(values: list[tuple[int, str]], count: int) -> pa.Array:
    """A text column with few values: row and text."""
    if not values:
        return pa.nulls(count, pa.string())
    whole: list[str | None] = [None] * count
    for row, text in values:
        whole[row] = text
    return pa.array(whole, pa.string())
