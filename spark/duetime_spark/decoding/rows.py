"""Builders of rows: in Python, record by record, and by the compiled twin, into buffers for Arrow."""

from typing import Any

import numpy as np
import pyarrow as pa
from duetime_format import layout, record
from duetime_format.columns import entry_of
from duetime_format.compiled import twin
from duetime_format.errors import DamagedBytes
from duetime_format.properties import decode_properties
from duetime_format.record import Record

_twin = twin("duetime_spark.decoding._decode")

_DIGITS_MAX = 18
_I32_MAX, _I64_MAX = (1 << 31) - 1, (1 << 63) - 1
# Columns filled in by the decoder.
_OTHERS = ("shard", "damage")


def bytes_of(size: int, properties_size: int) -> int:
    """Bytes counted for a record in a batch: an upper bound for all columns, with U+FFFD for each byte of a
    property."""
    return size + 2 * properties_size + 128


class PythonRows:
    """See decode.RowBuilder."""

    def __init__(self, schema: pa.Schema, rows_max: int, bytes_max: int) -> None:
        self.count = 0
        self._schema = schema
        self._rows_max, self._bytes_max = rows_max, min(bytes_max, _I32_MAX)
        self._bytes = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in schema.names if name not in _OTHERS}

    @property
    def is_full(self) -> bool:
        return self.count >= self._rows_max or self._bytes >= self._bytes_max

    def take(self, view: memoryview, base: int, at: int, end: int, check_crc: bool) -> int:
        while at < end and not self.is_full:
            found = _intact(view, base, at, check_crc)
            if found is None:
                break
            row = _row(found)
            for name, column in self._columns.items():
                column.append(row[name])
            self._bytes += bytes_of(found.size, len(found.properties))
            self.count += 1
            at += found.size
        return at

    def finish(self) -> dict[str, pa.Array]:
        found = {name: pa.array(column, self._schema.field(name).type) for name, column in self._columns.items()}
        for column in self._columns.values():
            column.clear()
        self.count = self._bytes = 0
        return found


def _intact(view: memoryview, base: int, at: int, check_crc: bool) -> Record | None:
    if not 0 < layout.size_at(view, at) <= len(view) - at:
        return None
    try:
        found = record.decode(view, at, check_crc=check_crc)
    except DamagedBytes:
        return None
    return None if found.position != base + at or record.is_torn(found) else found


def _row(found: Record) -> dict[str, Any]:
    properties = decode_properties(record.without_crc_mark(found.properties))
    entry = entry_of(found)
    if entry is None or entry[0] > _I32_MAX or max(entry) > _I64_MAX:
        lane_level = lane_offset = lane_due_at_ms = None
    else:
        lane_level, lane_offset, lane_due_at_ms = entry
    return {
        "topic": found.topic,
        "queue": found.queue,
        "offset": found.queue_offset,
        "position": found.position,
        "size": found.size,
        "id": properties.get(record.UNIQ_KEY),
        "tags": properties.get(record.TAGS),
        "keys": properties.get(record.KEYS),
        "level": number(properties.get(record.DELAY, "")),
        "real_topic": properties.get(record.REAL_TOPIC),
        "real_queue": number(properties.get(record.REAL_QID, "")),
        "lane_level": lane_level,
        "lane_offset": lane_offset,
        "lane_due_at_ms": lane_due_at_ms,
        "born_at_ms": found.born_at_ms,
        "stored_at_ms": found.stored_at_ms,
        "born_host": record.host_text(found.born_host),
        "store_host": record.host_text(found.store_host),
        "flag": found.flag,
        "sys_flag": found.sys_flag,
        "reconsume_times": found.reconsume_times,
        # Only transactional records have an offset here.
        "prepared_offset": found.prepared_transaction_offset if found.sys_flag & layout.SYS_TRANSACTION else 0,
        "body_crc": found.body_crc,
        "body_size": len(found.body),
        "body": found.body,
        "properties": list(properties.items()),
    }


def number(text: str) -> int | None:
    """An INT of at most 18 digits; None if the text is not one."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        return None
    value = int(text)
    return value if -_I32_MAX - 1 <= value <= _I32_MAX else None


class TwinRows:
    """See decode.RowBuilder."""

    def __init__(self, schema: pa.Schema, rows_max: int, bytes_max: int) -> None:
        assert _twin is not None
        self._schema = schema
        self._names = [name for name in schema.names if name not in _OTHERS]
        self._limits = rows_max, min(bytes_max, _I32_MAX)
        self._rows = _twin.CompiledRows(self._names, *self._limits)

    @property
    def count(self) -> int:
        return int(self._rows.count)

    @property
    def is_full(self) -> bool:
        return bool(self._rows.is_full)

    def take(self, view: memoryview, base: int, at: int, end: int, check_crc: bool) -> int:
        return int(self._rows.take(view, base, at, end, check_crc))

    def finish(self) -> dict[str, pa.Array]:
        assert _twin is not None
        rows, self._rows = self._rows, _twin.CompiledRows(self._names, *self._limits)
        return {name: self._array(rows, name) for name in self._names}

    def _array(self, rows: Any, name: str) -> pa.Array:
        kind = self._schema.field(name).type
        if name == "properties":
            offsets = pa.Array.from_buffers(pa.int32(), rows.count + 1, [None, *_buffers(rows, rows.map_offsets())])
            keys, values = (_texts(rows, "property names"), _texts(rows, "property values"))
            return pa.MapArray.from_arrays(offsets, keys, values, type=kind)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return _texts(rows, name, kind)
        values_at, valid = rows.numbers(name)
        return pa.Array.from_buffers(kind, rows.count, [_bits(valid), *_buffers(rows, values_at)])


def _texts(rows: Any, name: str, kind: pa.DataType | None = None) -> pa.Array:
    count, offsets, data, valid = rows.texts(name)
    return pa.Array.from_buffers(kind or pa.string(), count, [_bits(valid), *_buffers(rows, offsets, data)])


def _buffers(rows: Any, *spans: tuple[int, int]) -> list[pa.Buffer]:
    """Arrow buffers over the rows' memory; each keeps the rows alive."""
    return [pa.foreign_buffer(address, size, rows) if size else pa.py_buffer(b"") for address, size in spans]


def _bits(valid: bytes | None) -> pa.Buffer | None:
    """A validity bitmap from one byte for each row; None: no row is null."""
    if valid is None:
        return None
    return pa.py_buffer(np.packbits(np.frombuffer(valid, np.uint8), bitorder="little").tobytes())
