"""Makes records from their parts, many for one pair of hosts; the gateway's compiled twin uses `layout.pxd` for it."""

from struct import Struct

from duetime_format import layout
from duetime_format.record import body_crc

# Heads by length of born host and store host: the record up to its body, and the sysFlag bits for these lengths.
_HEADS = {
    (8, 8): (layout.HEAD_V4, 0),
    (20, 8): (Struct(">iiiiiqqiq20sq8siqi"), layout.SYS_BORN_V6),
    (8, 20): (Struct(">iiiiiqqiq8sq20siqi"), layout.SYS_STORE_V6),
    (20, 20): (Struct(">iiiiiqqiq20sq20siqi"), layout.SYS_BORN_V6 | layout.SYS_STORE_V6),
}


def topic_field(topic: str) -> bytes:
    """The topic's bytes in a record, preceded by its length."""
    encoded = topic.encode()
    return bytes([len(encoded)]) + encoded


class RecordMaker:
    """Makes V1 records without places, which the store fills in."""

    __slots__ = ("_born_host", "_fixed_bytes", "_pack", "_store_host", "_sys_flag")

    def __init__(self, born_host: bytes, store_host: bytes) -> None:
        head, self._sys_flag = _HEADS[len(born_host), len(store_host)]
        self._pack = head.pack
        # Size with the length of the properties; the topic counts its own.
        self._fixed_bytes = head.size + 2
        self._born_host = born_host
        self._store_host = store_host

    def make(self, flag: int, born_at_ms: int, body: bytes, topic: bytes, queue: int, properties: bytes) -> bytes:
        """`topic`: a `topic_field`."""
        head = self._pack(
            self._fixed_bytes + len(body) + len(topic) + len(properties),
            layout.MAGIC_V1,
            body_crc(body),
            queue,
            flag,
            0,
            0,
            self._sys_flag,
            born_at_ms,
            self._born_host,
            0,
            self._store_host,
            0,
            0,
            len(body),
        )
        return b"".join((head, body, topic, len(properties).to_bytes(2, "big"), properties))
