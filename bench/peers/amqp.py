"""The part of AMQP 0-9-1 that a benchmark's client needs: frames encoded and parsed at little cost per message.

    frame: type u8, channel u16, size u32, payload, 0xCE
    payload of a method: class u16, method u16, arguments
    payload of a content header: class u16, 0 u16, body size u64, flags u16, values

Source: the AMQP 0-9-1 specification, chapters 2.3 and 4.2.
"""

from collections.abc import Iterator
from struct import Struct

HEADER = b"AMQP\x00\x00\x09\x01"
FRAME = Struct(">BHI")
U16, U32, U64 = Struct(">H"), Struct(">I"), Struct(">Q")
METHOD, CONTENT_HEADER, BODY = 1, 2, 3
END = b"\xce"
CHANNEL = 1
FRAME_BYTES_MAX = 131_072

# (class, method)
START_OK, TUNE_OK, OPEN = (10, 11), (10, 31), (10, 40)
CHANNEL_OPEN, CONFIRM_SELECT, QUEUE_DECLARE = (20, 10), (85, 10), (50, 10)
QOS, CONSUME, PUBLISH, DELIVER, ACK, NACK = (60, 10), (60, 20), (60, 40), (60, 60), (60, 80), (60, 120)
CONNECTION_CLOSE, CHANNEL_CLOSE = (10, 50), (20, 40)
DELIVERY_MODE_FLAG = 0x1000
PERSISTENT = b"\x02"


class Refused(Exception):
    """The server closed the connection or the channel, or rejected a message."""


def frame(kind: int, payload: bytes, channel: int = CHANNEL) -> bytes:
    return FRAME.pack(kind, channel, len(payload)) + payload + END


def method(which: tuple[int, int], arguments: bytes, channel: int = CHANNEL) -> bytes:
    return frame(METHOD, U16.pack(which[0]) + U16.pack(which[1]) + arguments, channel)


def short(text: str) -> bytes:
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded


def long(value: bytes) -> bytes:
    return U32.pack(len(value)) + value


def table(values: dict[str, int | str]) -> bytes:
    """A field table of texts and 32-bit numbers."""
    fields = [
        short(name) + (b"S" + long(value.encode()) if isinstance(value, str) else b"I" + U32.pack(value))
        for name, value in values.items()
    ]
    return long(b"".join(fields))


def handshake() -> list[bytes]:
    """The client's frames up to an open channel, each sent after the server's next one."""
    plain = table({}) + short("PLAIN") + long(b"\x00guest\x00guest") + short("en_US")
    tune = U16.pack(1) + U32.pack(FRAME_BYTES_MAX) + U16.pack(0)
    opened = method(OPEN, short("/") + short("") + b"\x00", 0)
    return [
        HEADER,
        method(START_OK, plain, 0),
        method(TUNE_OK, tune, 0) + opened,
        method(CHANNEL_OPEN, short("")),
        method(CONFIRM_SELECT, b"\x00"),
    ]


def declare(queue: str, arguments: dict[str, int | str]) -> bytes:
    durable = b"\x02"
    return method(QUEUE_DECLARE, U16.pack(0) + short(queue) + durable + table(arguments))


def publish_head(queue: str, body_bytes: int) -> bytes:
    """The frames of a persistent message before its body, to the queue of that name."""
    head = U16.pack(PUBLISH[0]) + U16.pack(0) + U64.pack(body_bytes) + U16.pack(DELIVERY_MODE_FLAG) + PERSISTENT
    published = method(PUBLISH, U16.pack(0) + short("") + short(queue) + b"\x00")
    return published + frame(CONTENT_HEADER, head) + FRAME.pack(BODY, CHANNEL, body_bytes)


def qos(count: int) -> bytes:
    return method(QOS, U32.pack(0) + U16.pack(count) + b"\x00")


def consume(queue: str) -> bytes:
    return method(CONSUME, U16.pack(0) + short(queue) + short("") + b"\x00" + table({}))


def ack(tag: int) -> bytes:
    """Acknowledges all deliveries up to this one."""
    return method(ACK, U64.pack(tag) + b"\x01")


class Unread:
    """The received bytes of a stream, parsed frame by frame."""

    def __init__(self) -> None:
        self._bytes = b""

    def frames(self, more: bytes) -> Iterator[tuple[int, bytes]]:
        """(type, payload) of the whole frames.

        Raises:
            Refused: one of them closes the connection or the channel, or rejects a message.
        """
        data = self._bytes + more
        at, end = 0, len(data)
        while at + FRAME.size <= end:
            kind, _, size = FRAME.unpack_from(data, at)
            payload_at = at + FRAME.size
            if payload_at + size >= end:
                break
            payload = data[payload_at : payload_at + size]
            if kind == METHOD and which(payload) in (CONNECTION_CLOSE, CHANNEL_CLOSE, NACK):
                raise Refused(f"{which(payload)}: {payload[4:200]!r}")
            yield kind, payload
            at = payload_at + size + 1
        self._bytes = data[at:]


def which(payload: bytes) -> tuple[int, int]:
    """The class and the method of a method frame."""
    return U16.unpack_from(payload, 0)[0], U16.unpack_from(payload, 2)[0]


def delivery_tag(payload: bytes) -> int:
    """The tag of a Deliver: behind the consumer's tag."""
    return int(U64.unpack_from(payload, 5 + payload[4])[0])


def acked(payload: bytes) -> tuple[int, bool]:
    """(tag, whether all up to it) of an Ack."""
    return int(U64.unpack_from(payload, 4)[0]), bool(payload[12] & 1)
