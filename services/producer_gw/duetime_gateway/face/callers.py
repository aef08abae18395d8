"""The caller of a call, and its deadline."""

from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import grpc
from duetime_core.access.principal import current
from duetime_format import record

from duetime_gateway.access import permit
from duetime_gateway.sending.drafts import Caller

Context = grpc.aio.ServicerContext[Any, Any]

_NO_HOST = record.host_bytes("127.0.0.1", 0)


def caller(context: Context) -> Caller:
    """The caller of a call that sends."""
    peer = context.peer()
    return Caller(peer, host_of_peer(peer), remaining_ms(context), permit.current(), current().name)


def remaining_ms(context: Context) -> float | None:
    """Time until the caller's deadline; None: no deadline."""
    remaining = context.time_remaining()
    return None if remaining is None else remaining * 1000.0


@lru_cache(4_096)
def host_of_peer(peer: str) -> bytes:
    """Host bytes of a gRPC peer, `ipv4:1.2.3.4:5` or `ipv6:[::1]:5`; 127.0.0.1:0 for one without an address."""
    kind, _, rest = peer.partition(":")
    address, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6"):
        return _NO_HOST
    try:
        return record.host_bytes(address.strip("[]"), int(port))
    except ValueError:
        return _NO_HOST
