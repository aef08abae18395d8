"""Channels to other nodes: made here, so that they are secured in one place, and it is known here where a node is."""

import ipaddress
from collections.abc import Sequence
from typing import Any, TypeVar

import grpc
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

from duetime_core.callers import ClusterSecret
from duetime_core.within.channel import Channel
from duetime_core.within.places import place_of

MESSAGE_OPTIONS = (
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
)
CHANNEL_OPTIONS = (
    *MESSAGE_OPTIONS,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # The longest time of one attempt, despite its name: a peer whose machine is busy is slow to shake hands.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
NO_SECRET = ClusterSecret()
AnyChannel = TypeVar("AnyChannel", grpc.Channel, grpc.aio.Channel)


def make_channel(address: str, secret: ClusterSecret = NO_SECRET) -> grpc.aio.Channel:
    """A channel to another node of the cluster, whose calls show the secret; to one within this process, without a
    socket."""
    place = place_of(address)
    if place is not None:
        return _showing(Channel(place), secret)
    return _showing(grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS), secret)


def make_blocking_channel(
    address: str, options: Sequence[tuple[str, Any]] = CHANNEL_OPTIONS, secret: ClusterSecret = NO_SECRET
) -> grpc.Channel:
    """As `make_channel`, for synchronous code and threads."""
    return _showing(grpc.insecure_channel(address, options=options), secret)


def _showing(channel: AnyChannel, secret: ClusterSecret) -> AnyChannel:
    """The channel, with the secret as metadata of its calls. An interceptor would make a task for each call."""
    if secret:
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            setattr(channel, kind, _method_maker(getattr(channel, kind), secret.metadata))
    return channel


def _method_maker(make: Any, shown: tuple[tuple[str, str], ...]) -> Any:
    def make_method(*arguments: Any, **options: Any) -> Any:
        method = make(*arguments, **options)

        def call(request: Any, *, metadata: Sequence[tuple[str, Any]] | None = None, **further: Any) -> Any:
            return method(request, metadata=(*shown, *metadata) if metadata else shown, **further)

        return call

    return make_method


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a port of `host`; a name other than localhost may be anywhere."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
