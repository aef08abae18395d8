"""This process's connections as seen by the kernel: the progress of each, and a way to end one.

gRPC exposes no sockets, but calls name their peer, and the process finds its sockets in /proc/self/fd. Without such a
directory, connections are unknown and none is ended.
"""

import errno
import os
import resource
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_FDS = "/proc/self/fd"
# Part of struct tcp_info: bytes_acked and bytes_received, two 64-bit numbers at its 120th byte.
_INFO_BYTES = 136
_BYTES = struct.Struct("=120xQQ")
_MAPPED = "::ffff:"


@dataclass(slots=True)
class SocketProgress:
    """Bytes of a connection since its start: acknowledged by the peer, and received from it."""

    acked: int
    received: int


class Sockets:
    """The TCP sockets of this process, by gRPC's name of their peer: `ipv4:127.0.0.1:5000`."""

    def __init__(self) -> None:
        self._fds: dict[str, int] = {}

    def knows(self, peer: str) -> bool:
        """Whether the last scan found it."""
        return peer in self._fds

    def scan(self) -> None:
        """Finds all sockets of the process; takes some 5 us per descriptor."""
        self._fds.clear()
        for fd in open_files():
            peer = _with(fd, _peer_of)
            if peer:
                self._fds[peer] = fd

    def peers_of(self, port: int) -> list[str]:
        """The peers connected to a port of this process at the last scan, oldest descriptors first."""
        return [peer for peer, fd in sorted(self._fds.items(), key=_fd) if _with(fd, _port_of) == port]

    def progress(self, peer: str) -> SocketProgress | None:
        """None: the connection is gone, or was not found by a scan yet."""
        return self._use(peer, _progress)

    def cut(self, peer: str) -> None:
        """Ends a connection both ways; gRPC then ends its calls and closes it."""
        self._use(peer, _shut_down)

    def _use(self, peer: str, use: Callable[[socket.socket], T]) -> T | None:
        fd = self._fds.get(peer)
        if fd is None:
            return None
        # The descriptor may belong to another connection by now.
        found = _with(fd, lambda own: use(own) if _peer_of(own) == peer else None)
        if found is None:
            del self._fds[peer]
        return found


def open_files() -> Iterable[int]:
    """The descriptors of this process; all possible ones, if none is left for listing them."""
    try:
        return map(int, os.listdir(_FDS))
    except OSError as error:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return range(most if error.errno == errno.EMFILE else 0)


def _with(fd: int, use: Callable[[socket.socket], T]) -> T | None:
    """The result of `use` on a descriptor, which its owner keeps; None: not a connected socket."""
    try:
        # The family with the larger addresses; each address names its own family.
        own = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fd)
    except OSError:
        return None
    try:
        return use(own)
    except OSError:
        return None
    finally:
        own.detach()


def _fd(item: tuple[str, int]) -> int:
    return item[1]


def _port_of(own: socket.socket) -> int:
    return int(own.getsockname()[1])


def _peer_of(own: socket.socket) -> str:
    """gRPC's name of the peer; empty: no internet address."""
    name = own.getpeername()
    if not isinstance(name, tuple):
        return ""
    host, port = name[:2]
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    if host.startswith(_MAPPED) and "." in host:
        return f"ipv4:{host.removeprefix(_MAPPED)}:{port}"
    return f"ipv6:%5B{host}%5D:{port}"


def _progress(own: socket.socket) -> SocketProgress:
    return SocketProgress(*_BYTES.unpack_from(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)))


def _shut_down(own: socket.socket) -> bool:
    own.shutdown(socket.SHUT_RDWR)
    return True
