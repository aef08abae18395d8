r"""A record's properties: `name 0x01 value 0x02 name 0x01 value ...`, the last 0x02 optional. Pure bytes.

All readers share one rule for equal names and malformed parts: parts without a name or a value are left out, and of
equal names the last one counts. RocketMQ's brokers and clients build their map in the same way, and a broker takes a
message's tag and keys from that map.

Source: RocketMQ 4.9.3, 5.x MessageDecoder.string2messageProperties.
"""

import re
from collections.abc import Mapping

NAME_END = b"\x01"
VALUE_END = b"\x02"
# All such numbers fit in 64 bits.
NUMBER_DIGITS_MAX = 18

# Java reads a surrogate in UTF-8 as one replacement character, Python as three.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Without the last 0x02, as written by brokers 4.9.1 to 5.1.4."""
    return "\x02".join([f"{name}\x01{value}" for name, value in properties.items()]).encode()


def decode_properties(encoded: bytes) -> dict[str, str]:
    """All properties."""
    properties = {}
    for part in as_text(encoded).split("\x02"):
        name, _, value = part.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def value_of(encoded: bytes, name: bytes) -> bytes:
    """The value of one property, without decoding the others; empty: there is none."""
    at = value_at(encoded, name)
    return b"" if at < 0 else encoded[at : _end_of(encoded, at)]


def value_at(encoded: bytes, name: bytes) -> int:
    """The index of one property's value; -1: there is none."""
    mark = name + NAME_END
    stop = len(encoded)
    while (at := encoded.rfind(VALUE_END + mark, 0, stop)) >= 0:
        begin = at + 1 + len(mark)
        if _end_of(encoded, begin) > begin:
            return begin
        # An empty value does not hide an earlier one.
        stop = at + 1
    begin = len(mark)
    return begin if encoded.startswith(mark) and _end_of(encoded, begin) > begin else -1


def as_text(encoded: bytes) -> str:
    """Bytes of properties as text, as in RocketMQ's readers: bytes that are not UTF-8 become U+FFFD."""
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub("\ufffd".encode(), encoded).decode("utf-8", "replace")


def number_of(value: str | bytes | None, digits_max: int = NUMBER_DIGITS_MAX) -> int | None:
    """The number of a property; None: it is missing, too long, or not of decimal digits alone."""
    return int(value) if value and value.isascii() and value.isdigit() and len(value) <= digits_max else None


def _end_of(encoded: bytes, at: int) -> int:
    """The end of a value that begins at `at`."""
    end = encoded.find(VALUE_END, at)
    return len(encoded) if end < 0 else end
