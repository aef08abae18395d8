"""Creates all channels to other nodes: one place for their security, and for calls within the process."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
from duetime.tls import FollowingChannel, credentials_of
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

from duetime_core.access.callers import ClusterSecret
from duetime_core.access.credentials import NO_CREDENTIALS, ClusterCredentials
from duetime_core.rpc.failover import CopiesChannel
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
    # Despite its name, the longest time of one attempt: a peer on a busy machine is slow to complete a handshake.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A proxy of the environment is for external addresses; nodes of a cluster reach each other directly.
    ("grpc.enable_http_proxy", 0),
)
# Between the addresses of a shard's copies: only the one that leads listens.
COPIES_MARK = "|"
COPIES_OPTIONS = (
    *(
        option
        for option in CHANNEL_OPTIONS
        if option[0] not in ("grpc.keepalive_time_ms", "grpc.max_reconnect_backoff_ms")
    ),
    # A takeover waits for the next attempt at the new leader.
    ("grpc.max_reconnect_backoff_ms", 250),
    # The address behind a name may change with a restart.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # A leader that hangs or is cut off ends no connection: pings find it, within two seconds.
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 1_000),
    ("grpc.http2.ping_timeout_ms", 1_000),
    ("grpc.http2.max_pings_without_data", 0),
)
AnyChannel = TypeVar("AnyChannel", grpc.Channel, grpc.aio.Channel)


def make_channel(address: str, credentials: ClusterCredentials = NO_CREDENTIALS) -> grpc.aio.Channel:
    """A channel to another node of the cluster. It sends this process's certificate, as current when a call starts, or
    the secret; a node within this process is reached without a socket. Of several addresses (`HOST:PORT|HOST:PORT`),
    it calls the one that accepted the latest connection (duetime_core.rpc.failover).
    """
    place = place_of(address)
    if place is not None:
        return _showing(Channel(place), credentials.secret)
    if credentials.certificates is not None:
        followed = credentials.certificates.followed
        if COPIES_MARK in address:
            return FollowingChannel(followed, address, COPIES_OPTIONS, make=_secure_copies)
        return FollowingChannel(followed, address, CHANNEL_OPTIONS)
    if COPIES_MARK in address:
        return _showing(_copies(address, grpc.aio.insecure_channel, options=COPIES_OPTIONS), credentials.secret)
    return _showing(grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS), credentials.secret)


def _copies(addresses: str, make: Callable[..., grpc.aio.Channel], **options: Any) -> grpc.aio.Channel:
    return CopiesChannel(addresses.split(COPIES_MARK), lambda address: make(address, **options))


def _secure_copies(
    addresses: str, credentials: grpc.ChannelCredentials, *, options: Sequence[tuple[str, Any]]
) -> grpc.aio.Channel:
    return _copies(addresses, grpc.aio.secure_channel, credentials=credentials, options=options)


def make_blocking_channel(
    address: str, options: Sequence[tuple[str, Any]] = CHANNEL_OPTIONS, credentials: ClusterCredentials = NO_CREDENTIALS
) -> grpc.Channel:
    """As `make_channel`, for synchronous code and threads, with the current certificate."""
    if credentials.certificates is not None:
        return grpc.secure_channel(address, credentials_of(credentials.certificates.now()), options=options)
    return _showing(grpc.insecure_channel(address, options=options), credentials.secret)


def _showing(channel: AnyChannel, secret: ClusterSecret) -> AnyChannel:
    """The channel, with the secret as metadata of its calls. An interceptor would create a task for each call."""
    if secret:
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            setattr(channel, kind, _method_maker(getattr(channel, kind), secret.metadata))
    return channel


def _method_maker(make: Any, shown: tuple[tuple[str, str], ...]) -> Any:
    def make_method(*arguments: Any, **options: Any) -> Any:
        method = make(*arguments, **options)

        def call(*request: Any, metadata: Sequence[tuple[str, Any]] | None = None, **further: Any) -> Any:
            return method(*request, metadata=(*shown, *metadata) if metadata else shown, **further)

        return call

    return make_method
