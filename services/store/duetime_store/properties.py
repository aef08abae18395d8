"""Properties of many records, as columns: those that are asked for, nothing else decoded."""

from duetime_format import record
from duetime_format.compiled import twin

_compiled = twin("duetime_store._properties")

_LENGTH_AT = record.HEAD_V4.size - 4
_TOPIC_AT = record.HEAD_V4.size


def columns(records: bytes, sizes: list[int], names: tuple[bytes, ...]) -> list[list[bytes | None]]:
    """For each name its value in each of the records, which lie back to back and are intact; None where one has none.

    As RocketMQ's readers see it: the last of equal names counts, and empty values do not.
    """
    if _compiled is not None:
        compiled: list[list[bytes | None]] | None = _compiled.columns(records, sizes, names)
        if compiled is not None:
            return compiled
    return in_python(records, sizes, names)


def in_python(records: bytes, sizes: list[int], names: tuple[bytes, ...]) -> list[list[bytes | None]]:
    """As `columns`."""
    found: list[list[bytes | None]] = [[] for _ in names]
    at = 0
    for size in sizes:
        properties = properties_of(records, at, size) if size else b""
        for column, name in zip(found, names, strict=True):
            column.append(value_of(properties, name))
        at += size
    return found


def properties_of(records: bytes, at: int, size: int) -> bytes:
    """The encoded properties of an intact record."""
    if records[at + record.SYS_FLAG_AT + 3] & (record.SYS_BORN_V6 | record.SYS_STORE_V6):
        return record.decode(records, at, check_crc=False).properties
    if record.SIZE_MAGIC.unpack_from(records, at)[1] != record.MAGIC_V1:
        return record.decode(records, at, check_crc=False).properties
    topic_at = at + _TOPIC_AT + int.from_bytes(records[at + _LENGTH_AT : at + _TOPIC_AT], "big")
    return records[topic_at + 1 + records[topic_at] + 2 : at + size]


def value_of(properties: bytes, name: bytes) -> bytes | None:
    """One value in encoded properties."""
    wanted = name + record.NAME_END
    stop = len(properties)
    while (at := properties.rfind(record.VALUE_END + wanted, 0, stop)) >= 0:
        value = _value_at(properties, at + 1 + len(wanted))
        if value:
            return value
        # An empty value does not hide an earlier one.
        stop = at + 1
    return (_value_at(properties, len(wanted)) or None) if properties.startswith(wanted) else None


def _value_at(properties: bytes, at: int) -> bytes:
    end = properties.find(record.VALUE_END, at)
    return properties[at:] if end < 0 else properties[at:end]
