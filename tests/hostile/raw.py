"""A client that speaks HTTP/2 by hand, and badly: it stops in the middle, and reads nothing, as long as it likes."""

import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
WINDOW = 65_535
FRAME_BYTES = 16_384


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + data


def _header(name: str, value: str) -> bytes:
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def call(method: str, stream: int) -> bytes:
    """The beginning of a call such as `/duetime.v1.Gateway/Send`."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "a",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return frame(HEADERS, END_HEADERS, stream, b"".join(_header(*field) for field in fields.items()))


def request(method: str, stream: int, message: bytes) -> bytes:
    """A whole call with a small message."""
    return call(method, stream) + frame(DATA, END_STREAM, stream, b"\0" + struct.pack(">I", len(message)) + message)


class Raw:
    """One connection. `greet` it, or say nothing at all."""

    def __init__(self, address: str, source: str = "127.0.0.1") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))
        self._unread = b""
        # Bytes that it may send: on the connection, and on its one stream.
        self._window = [WINDOW, WINDOW]

    def greet(self) -> None:
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def upload(self, size: int, announced: int, method: str, seconds: float, before: bytes = b"") -> int:
        """Begins a call with a message of `announced` bytes, after the bytes of others, and sends `size` of them as
        fast as it may; how many got through within the time."""
        self.send(call(method, 1))
        prefix, sent = before + b"\0" + struct.pack(">I", announced), 0
        until = time.monotonic() + seconds
        while sent < size and time.monotonic() < until:
            room = min(FRAME_BYTES, size - sent, *self._window)
            if room <= len(prefix):
                if not self.take(until - time.monotonic()):
                    break
                continue
            self.send(frame(DATA, 0, 1, prefix + b"x" * (room - len(prefix))))
            prefix = b""
            sent += room
            self._window = [left - room for left in self._window]
        return sent

    def take(self, seconds: float) -> bool:
        """Reads the server's frames, and applies its windows and settings; False: it has ended the connection or the
        call, or sends nothing.
        """
        self.socket.settimeout(max(seconds, 0.001))
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return False
        self._unread += data
        going_on = bool(data)
        while len(self._unread) >= 9:
            size = int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < 9 + size:
                break
            kind, flags, stream = self._unread[3], self._unread[4], int.from_bytes(self._unread[5:9], "big")
            going_on &= self._heed(kind, flags, stream, self._unread[9 : 9 + size])
            self._unread = self._unread[9 + size :]
        return going_on

    def _heed(self, kind: int, flags: int, stream: int, data: bytes) -> bool:
        if kind == WINDOW_UPDATE:
            self._window[1 if stream else 0] += int.from_bytes(data, "big")
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(data), 6):
                key, value = struct.unpack_from(">HI", data, at)
                if key == 4:
                    self._window[1] += value - WINDOW
            self.send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, data))
        # The call itself may only end.
        return kind in (WINDOW_UPDATE, SETTINGS, PING)

    def ended(self, seconds: float) -> bool:
        """Whether the server ends the connection within the time; its output is discarded."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(1 << 16):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True
        return False

    def close(self) -> None:
        with suppress(OSError):
            self.socket.close()


def many(address: str, count: int, use: Callable[[Raw], None]) -> list[Raw]:
    """A number of connections, greeted and used one after the other."""
    found = []
    for _ in range(count):
        one = Raw(address)
        one.greet()
        use(one)
        found.append(one)
    return found
