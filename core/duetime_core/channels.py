"""Channels to other processes: made here, so that what secures them will be said here, and nowhere else."""

import ipaddress
from collections.abc import Sequence
from typing import Any

import grpc

from duetime_core.limits import GRPC_MESSAGE_BYTES_MAX

MESSAGE_OPTIONS = (
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
)
CHANNEL_OPTIONS = (
    *MESSAGE_OPTIONS,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # What one attempt may take, for all its name: a peer whose machine is busy is slow to shake hands.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def make_channel(address: str) -> grpc.aio.Channel:
    """A channel to another process of the cluster."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def make_blocking_channel(address: str, options: Sequence[tuple[str, Any]] = CHANNEL_OPTIONS) -> grpc.Channel:
    """As `make_channel`, for plain code and threads."""
    return grpc.insecure_channel(address, options=options)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there; a name other than localhost may be anywhere."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
