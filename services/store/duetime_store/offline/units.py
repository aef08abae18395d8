r"""One JSON line for each consume queue unit, with its record, in the form of RocketMQ's own decoder.

    {"topic":"T","queueId":0,"queueOffset":0,"physicalOffset":0,"size":183, ... ,"bodyLength":5,"bodySha256":"..."}

Sorted by topic, queue, offset. ASCII only: other characters and control characters are \uXXXX. Properties are sorted by
name. Hosts have Java's form, IPv6 in eight groups. A unit with an unreadable record has `damage` in place of its
fields.
"""

import hashlib
import ipaddress
import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.properties import decode_properties
from duetime_shard.shard import DirectoryState

_BYTES_AT_ONCE = 1 << 20
# The size of larger records is checked first, as they are rare: a damaged unit may have any size.
_RECORD_BYTES_USUAL = 8 << 20
_ESCAPED = re.compile(r"[^ !#-\[\]-~]")
Reader = Callable[[int, int], bytes]


def lines(state: DirectoryState, topic: str | None = None) -> Iterator[str]:
    """A line for each unit of the directory, or of one topic."""
    read = _BufferedReader(state).read
    for key in sorted(state.queues):
        if topic is not None and key[0] != topic:
            continue
        for offsets, units in state.queues[key].read():
            for offset, unit in zip(offsets.tolist(), units.tolist(), strict=True):
                yield line(key[0], key[1], offset, unit, read)


def line(topic: str, queue: int, offset: int, unit: tuple[int, int, int], read: Reader) -> str:
    position, size, code = unit
    head = (
        f'{{"topic":{quoted(topic)},"queueId":{queue},"queueOffset":{offset},"physicalOffset":{position},"size":{size},'
        f'"tagsCode":{code},"tagsCodeHex":"{code & 0xFFFFFFFFFFFFFFFF:016x}",'
    )
    try:
        found = record.decode(read(position, size), check_crc=False)
    except DamagedBytes as error:
        return f'{head}"damage":{quoted(error.text)}}}'
    properties = decode_properties(found.properties)
    return (
        f'{head}"storeTimestamp":{found.stored_at_ms},"bornTimestamp":{found.born_at_ms},'
        f'"bornHost":"{host(found.born_host)}","storeHost":"{host(found.store_host)}",'
        f'"msgId":"{record.offset_message_id(found.store_host, found.position)}",'
        f'"uniqKey":{_quoted_or_null(properties.get(record.UNIQ_KEY))},"sysFlag":{found.sys_flag},"flag":{found.flag},'
        f'"bodyCRC":{found.body_crc},"reconsumeTimes":{found.reconsume_times},'
        f'"preparedTransactionOffset":{found.prepared_transaction_offset},"properties":{_object(properties)},'
        f'"bodyLength":{len(found.body)},"bodySha256":"{hashlib.sha256(found.body).hexdigest()}"}}'
    )


def quoted(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    if char in '"\\':
        return "\\" + char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _quoted_or_null(text: str | None) -> str:
    return "null" if text is None else quoted(text)


def _object(properties: dict[str, str]) -> str:
    names = sorted(properties, key=_java_order)
    return "{" + ",".join([f"{quoted(name)}:{quoted(properties[name])}" for name in names]) + "}"


def _java_order(text: str) -> bytes:
    """Java compares UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


@lru_cache(4_096)
def host(packed: bytes) -> str:
    """`1.2.3.4:80`, `0:0:0:0:0:0:0:1:80`."""
    address = ipaddress.ip_address(packed[:-4])
    port = int.from_bytes(packed[-4:], "big", signed=True)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        else:
            return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":")) + f":{port}"
    return f"{address}:{port}"


class _BufferedReader:
    """Reads ahead: the records of a queue are in order, often close to each other."""

    def __init__(self, state: DirectoryState) -> None:
        self._log = state.log
        self._start = 0
        self._data = b""
        self._ahead = 4_096

    def read(self, position: int, size: int) -> bytes:
        at = position - self._start
        if size > _RECORD_BYTES_USUAL and self._log.read(position, 4) != size.to_bytes(4, "big"):
            return b""
        if at < 0 or at + size > len(self._data):
            # Reads ahead as far as the last read-ahead was used.
            near = 0 <= at <= 4 * len(self._data)
            self._ahead = min(2 * self._ahead, _BYTES_AT_ONCE) if near else 4_096
            self._start, self._data = position, self._log.read(position, max(size, self._ahead))
            at = 0
        return self._data[at : at + size]
