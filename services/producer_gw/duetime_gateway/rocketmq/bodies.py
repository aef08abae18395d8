"""Unpacks bodies: those compressed by a client before storing, those of a broker's clients on delivery. Pure.

DueTime's own readers treat bodies as plain bytes, so GZIP bodies are stored decompressed.
"""

import hashlib
import hmac

from duetime_format.bodies import UnpackError, inflated, unpacked
from duetime_format.limits import BODY_BYTES_MAX

from duetime_gateway.rocketmq.codes import RocketMQError
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

# Largest decompressed size of a body compressed by a broker's client; the original was no larger than that.
UNPACKED_BYTES_MAX = 4 * BODY_BYTES_MAX
_HASHES = {pb.MD5: "md5", pb.SHA1: "sha1"}


def checked(body: bytes, system: pb.SystemProperties) -> bytes:
    """The body sent by a client, unpacked.

    Raises:
        RocketMQError: it is empty or too large, or does not match its digest or its encoding.
    """
    if not body:
        raise RocketMQError(pb.MESSAGE_BODY_EMPTY, f"body: is empty; it has 1 to {BODY_BYTES_MAX} bytes")
    name = _HASHES.get(system.body_digest.type)
    # CRC-32 is written in three notations, and TCP and TLS have checksums of their own.
    if name is not None and system.body_digest.checksum:
        found = hashlib.new(name, body, usedforsecurity=False).hexdigest()
        if not hmac.compare_digest(found, system.body_digest.checksum.lower()):
            raise RocketMQError(pb.MESSAGE_CORRUPTED, f"body: its {name} is {found}, which differs from body_digest")
    if system.body_encoding == pb.GZIP:
        try:
            # Some clients compress with zlib, and declare GZIP.
            body = inflated(body, BODY_BYTES_MAX + 1, any_head=True)
        except ValueError as error:
            raise RocketMQError(pb.MESSAGE_CORRUPTED, "body: is not valid GZIP, its declared encoding") from error
    if len(body) > BODY_BYTES_MAX:
        text = f"body: exceeds the limit of {BODY_BYTES_MAX} bytes" if body else ""
        raise RocketMQError(pb.MESSAGE_BODY_TOO_LARGE, text)
    return body


def given(body: bytes, sys_flag: int) -> bytes:
    """A stored body, unpacked; a damaged one, or one larger than `UNPACKED_BYTES_MAX`, is returned as stored."""
    try:
        return unpacked(body, sys_flag, UNPACKED_BYTES_MAX)
    except UnpackError:
        return body


def digest_of(body: bytes) -> str:
    """MD5, in the form compared by clients."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
