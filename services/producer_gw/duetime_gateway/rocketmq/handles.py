"""Handles that clients keep and send back: of a delivery, and of a delayed message. Pure.

    receipt    | 0 u8 version | 1 u8 kind | 2 u16 attempt | 4 the store's receipt                    in base64url
    recall     | 0 u8 version | 1 u16 shard | 3 u32 lane | 7 u64 entry | 15 the message's id | CRC-32 of all and of the
               topic

Any gateway can read them. They are not signatures: the right to the group or topic is checked too.
"""

import base64
import binascii
import struct
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from duetime_format.receipts import RECEIPT_BYTES

from duetime_gateway.rocketmq.codes import RocketMQError
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

VERSION = 1
SIMPLE, RENEWED = 0, 1
_RECEIPT, _RECALL, _CRC = Struct(">BBH"), Struct(">BHIQ"), Struct(">I")
_ATTEMPT_MAX = 0xFFFF
_CHARS_MAX = 1_024


class Handle(NamedTuple):
    """A delivery, as named by its receiver."""

    receipt: bytes
    # Delivery number, from 1.
    attempt: int
    # Whether the gateway renews its lease, as for push consumers.
    is_renewed: bool


class Recall(NamedTuple):
    """A delayed message, as named by its sender."""

    shard: int
    lane: int
    entry: int
    message_id: str


def handle_of(receipt: bytes, attempt: int, *, is_renewed: bool) -> str:
    head = _RECEIPT.pack(VERSION, RENEWED if is_renewed else SIMPLE, min(attempt, _ATTEMPT_MAX))
    return _text(head + receipt)


def parse_handle(text: str) -> Handle:
    """Raises: RocketMQError: not made by a gateway."""
    data = _bytes(text)
    if data is None or len(data) != _RECEIPT.size + RECEIPT_BYTES or data[0] != VERSION or data[1] > RENEWED:
        raise RocketMQError(pb.INVALID_RECEIPT_HANDLE, "receipt_handle: was not returned by ReceiveMessage")
    _, kind, attempt = _RECEIPT.unpack_from(data)
    return Handle(data[_RECEIPT.size :], attempt, kind == RENEWED)


def recall_of(topic: str, recall: Recall) -> str:
    data = _RECALL.pack(VERSION, recall.shard, recall.lane, recall.entry) + recall.message_id.encode()
    return _text(data + _CRC.pack(crc32(topic.encode(), crc32(data))))


def parse_recall(topic: str, text: str) -> Recall:
    """Raises: RocketMQError: not made by a gateway for this topic."""
    data = _bytes(text) or b""
    try:
        version, shard, lane, entry = _RECALL.unpack_from(data)
        body, (crc,) = data[: -_CRC.size], _CRC.unpack_from(data, len(data) - _CRC.size)
        message_id = body[_RECALL.size :].decode()
    except (struct.error, UnicodeDecodeError):
        version, crc, body = 0, 0, b""
    if version != VERSION or crc != crc32(topic.encode(), crc32(body)) or not message_id:
        raise RocketMQError(pb.BAD_REQUEST, f"recall_handle: was not returned by SendMessage for topic {topic}")
    return Recall(shard, lane, entry, message_id)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes | None:
    if len(text) > _CHARS_MAX or not text.isascii():
        return None
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return None
