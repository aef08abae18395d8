"""Certificates in files that may be replaced at any time, and channels that follow the files.

    files ──checked once a second──▶ Pems, the last valid contents ──▶ new calls take a channel made of them
                                                                       the old one ends with its last call

A connection keeps its certificates. A replacement while the old ones are still valid therefore fails no call.
"""

import asyncio
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from duetime.channels import ForwardingChannel

LOOK_S = 1.0


class PemFiles(NamedTuple):
    """Paths of PEM files; None: no file."""

    # Certificates of the trusted CAs; None: those of gRPC.
    ca: Path | None
    # The process's own certificate, with the intermediates behind it, and its key.
    cert: Path | None = None
    key: Path | None = None


class Pems(NamedTuple):
    """The contents of the files."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None


# Changes whenever a file is replaced or written; None: the file does not exist.
_Stamp = tuple[tuple[int, int, int] | None, ...]


class PemFollower:
    """The current contents of files. Safe to share between threads."""

    def __init__(
        self,
        files: PemFiles,
        *,
        changed: Callable[[Pems], None] | None = None,
        failed: Callable[[OSError], None] | None = None,
    ) -> None:
        """`changed`: called with each later valid content. `failed`: called once for each invalid content.

        Raises:
            OSError: the files can't be read, or do not match each other.
        """
        self.files = files
        self._changed = changed
        self._failed = failed
        self._lock = threading.Lock()
        self._stamp, self._pems = _read(files)
        # The stamp of invalid contents that were reported.
        self._refused: _Stamp | None = None
        self._look_at_s = time.monotonic() + LOOK_S

    def now(self) -> Pems:
        """The last valid contents: the same object until they change."""
        if time.monotonic() >= self._look_at_s:
            with self._lock:
                if time.monotonic() >= self._look_at_s:
                    self._look()
                    self._look_at_s = time.monotonic() + LOOK_S
        return self._pems

    def _look(self) -> None:
        stamp = _stamp_of(self.files)
        if stamp in (self._stamp, self._refused):
            return
        try:
            self._stamp, self._pems = _read(self.files)
        except OSError as error:
            self._refused = stamp
            if self._failed is not None:
                self._failed(error)
            return
        self._refused = None
        if self._changed is not None:
            self._changed(self._pems)


def _read(files: PemFiles) -> tuple[_Stamp, Pems]:
    """Raises: OSError (ssl.SSLError is one)."""
    stamp = _stamp_of(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files.ca is not None:
        context.load_verify_locations(files.ca)
    if files.cert is not None:
        # Without a password argument OpenSSL would ask at the terminal if the key is encrypted.
        context.load_cert_chain(files.cert, files.key, password=lambda: b"")
    pems = Pems(*(None if path is None else path.read_bytes() for path in files))
    if _stamp_of(files) != stamp:
        raise OSError("they change while they are read")
    return stamp, pems


def _stamp_of(files: PemFiles) -> _Stamp:
    return tuple(None if path is None else _stamp_of_one(path) for path in files)


def _stamp_of_one(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def credentials_of(pems: Pems) -> grpc.ChannelCredentials:
    """The channel's own and trusted certificates: TLS 1.2 or newer."""
    return grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)


class FollowingChannel(ForwardingChannel):
    """A channel whose calls start on a connection made of the current files."""

    def __init__(
        self,
        followed: PemFollower,
        target: str,
        options: Sequence[tuple[str, Any]],
        *,
        make: Callable[..., grpc.aio.Channel] = grpc.aio.secure_channel,
    ) -> None:
        """`make`: called as grpc.aio.secure_channel is, with the credentials of the current files."""
        self._followed = followed
        self._make_secure = make
        self._target = target
        self._options = options
        self._pems = followed.now()
        self._channel = self._make()
        self._calls: weakref.WeakSet[Any] = weakref.WeakSet()
        # Replaced channels with running calls; and the closing tasks of the others.
        self._replaced: set[grpc.aio.Channel] = set()
        self._ends: set[asyncio.Task[None]] = set()

    def _make(self) -> grpc.aio.Channel:
        return self._make_secure(self._target, credentials_of(self._pems), options=self._options)

    def _current(self) -> grpc.aio.Channel:
        pems = self._followed.now()
        if pems is not self._pems:
            self._replace()
            self._pems = pems
            self._channel, self._calls = self._make(), weakref.WeakSet()
        return self._channel

    def _replace(self) -> None:
        """Replaces the channel; the old one is closed once its last call has ended."""
        channel, running = self._channel, {call for call in self._calls if not call.done()}
        self._replaced.add(channel)

        def ended(call: Any) -> None:
            running.discard(call)
            if not running:
                self._end(channel)

        for call in list(running):
            call.add_done_callback(ended)
        if not running:
            self._end(channel)

    def _end(self, channel: grpc.aio.Channel) -> None:
        if channel in self._replaced:
            self._replaced.discard(channel)
            end = asyncio.get_running_loop().create_task(channel.close())
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)

    def _method(self, kind: str, arguments: Any, options: Any) -> Any:
        """A factory for calls of one method, on the current channel."""
        of, method = self._channel, getattr(self._channel, kind)(*arguments, **options)

        def call(*request: Any, **further: Any) -> Any:
            nonlocal of, method
            if (channel := self._current()) is not of:
                of, method = channel, getattr(channel, kind)(*arguments, **options)
            made = method(*request, **further)
            self._calls.add(made)
            return made

        return call

    async def close(self, grace: float | None = None) -> None:
        channels = (*self._replaced, self._channel)
        self._replaced.clear()
        await asyncio.gather(*(channel.close(grace) for channel in channels), *self._ends)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current().channel_ready()
