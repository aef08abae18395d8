"""Bodies on their way: what a client packed is stored unpacked, what a broker's client packed is given unpacked. Pure.

DueTime's own readers know bodies by nothing but their bytes, so a body that comes as GZIP is stored as it was before.
"""

import hashlib
import hmac

from duetime_format.bodies import NotUnpacked, inflated, unpacked
from duetime_format.limits import BODY_BYTES_MAX

from duetime_gateway.rocketmq.codes import Refused
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

# Of a body that a broker's client has compressed: whoever sent it found it small enough then.
UNPACKED_BYTES_MAX = 4 * BODY_BYTES_MAX
_HASHES = {pb.MD5: "md5", pb.SHA1: "sha1"}


def checked(body: bytes, system: pb.SystemProperties) -> bytes:
    """The body that a client sends, unpacked.

    Raises:
        Refused: it is empty, too large, not what its digest says, or not packed as it says.
    """
    if not body:
        raise Refused(pb.MESSAGE_BODY_EMPTY, f"body: is empty; it has 1 to {BODY_BYTES_MAX} bytes")
    name = _HASHES.get(system.body_digest.type)
    # CRC-32 is written in three notations, and TCP and TLS have sums of their own.
    if name is not None and system.body_digest.checksum:
        found = hashlib.new(name, body, usedforsecurity=False).hexdigest()
        if not hmac.compare_digest(found, system.body_digest.checksum.lower()):
            raise Refused(pb.MESSAGE_CORRUPTED, f"body: has the {name} {found}, and not what body_digest says")
    if system.body_encoding == pb.GZIP:
        try:
            # Some clients pack by zlib, and say GZIP.
            body = inflated(body, BODY_BYTES_MAX + 1, any_head=True)
        except ValueError as error:
            raise Refused(pb.MESSAGE_CORRUPTED, "body: is not packed as its encoding GZIP says") from error
    if len(body) > BODY_BYTES_MAX:
        text = f"body: more than {BODY_BYTES_MAX} bytes, the most" if body else ""
        raise Refused(pb.MESSAGE_BODY_TOO_LARGE, text)
    return body


def given(body: bytes, sys_flag: int) -> bytes:
    """A stored body, unpacked; one that is damaged or larger than `UNPACKED_BYTES_MAX` stays as it is."""
    try:
        return unpacked(body, sys_flag, UNPACKED_BYTES_MAX)
    except NotUnpacked:
        return body


def digest_of(body: bytes) -> str:
    """MD5, as clients compare it."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
