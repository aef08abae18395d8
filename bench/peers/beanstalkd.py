"""beanstalkd: jobs with a delay, put and reserved by its own protocol, pipelined.

    sender ── put, a batch at a time, 4 connections ──▶ tube ──▶ reserve and delete, always some under way ── receiver

Its log is synced at each write (-f 0). Delays are whole seconds from a job's arrival; a job's due time is the
sender's, written at the start of its body.
"""

import asyncio
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from bench.peers import BODY, Missing, Peer, Program, Receiver, Sender

CONNECTIONS = 4
# Concurrent reserve commands: the server answers as many before the receiver must ask again.
RESERVES = 128
TTR_S = 600
DUE_DIGITS = 13
CRLF = b"\r\n"


class Beanstalkd(Peer):
    """A server made for the run, reached by a Unix socket: over TCP its small answers wait for acknowledgements."""

    name = "beanstalkd"
    title = "beanstalkd"
    in_flight = CONNECTIONS

    def __init__(self) -> None:
        self._server: Program | None = None
        self._path = ""

    def start(self, directory: Path) -> None:
        program = shutil.which("beanstalkd")
        if program is None:
            raise Missing("beanstalkd is not installed")
        directory.mkdir()
        self._path = str(directory / "socket")
        command = [program, "-l", f"unix:{self._path}", "-b", str(directory), "-f", "0"]
        self._server = Program(command, directory)
        self._server.wait_until(self._answers)
        said = subprocess.run([program, "-v"], capture_output=True, text=True, check=True)
        self.version = said.stdout.strip().removeprefix("beanstalkd ")

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    async def sender(self, topic: str) -> "BeanstalkdSender":
        connections = [await asyncio.open_unix_connection(self._path) for _ in range(CONNECTIONS)]
        for reader, writer in connections:
            writer.write(b"use " + topic.encode() + CRLF)
            await reader.readuntil(CRLF)
        return BeanstalkdSender(connections)

    def receiver(self, topic: str) -> "BeanstalkdReceiver":
        return BeanstalkdReceiver(self._path, topic)

    def _answers(self) -> bool:
        try:
            _connect(self._path).close()
        except OSError:
            return False
        return True


class BeanstalkdSender(Sender):
    """Writes all puts of a batch at once, then reads all answers."""

    def __init__(self, connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        self._connections = connections
        self._idle: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.LifoQueue()
        for connection in connections:
            self._idle.put_nowait(connection)

    async def send(self, count: int, delay_s: float) -> None:
        reader, writer = connection = await self._idle.get()
        try:
            due_at = b"%0*d" % (DUE_DIGITS, time.time_ns() // 1_000_000 + round(delay_s * 1000))
            put = b"put 0 %d %d %d\r\n" % (round(delay_s), TTR_S, len(BODY))
            bodies = [due_at + BODY[DUE_DIGITS:]] * count
            writer.write(b"".join([put + body + CRLF for body in bodies]))
            answered = b""
            while answered.count(CRLF) < count:
                answered += await reader.read(1 << 16)
            if answered.count(b"INSERTED ") != count:
                raise RuntimeError(f"beanstalkd rejected a job: {answered[-200:]!r}")
        finally:
            self._idle.put_nowait(connection)

    async def close(self) -> None:
        for _, writer in self._connections:
            writer.close()
            await writer.wait_closed()


class BeanstalkdReceiver(Receiver):
    """One connection; each job that arrives triggers its deletion and the next reserve."""

    def __init__(self, path: str, topic: str) -> None:
        self._path, self._topic = path, topic

    async def open(self) -> None:
        self._socket = _connect(self._path)
        self._socket.sendall(f"watch {self._topic}\r\nignore default\r\n".encode())
        self._unread = b""
        self._asked = False

    async def receive(self, wait_s: float) -> list[Any]:
        # Nothing else runs in this process, so it may block.
        end = time.monotonic() + wait_s
        if not self._asked:
            # Not before: a held receiver reserves nothing.
            self._socket.sendall(b"reserve\r\n" * RESERVES)
            self._asked = True
        while select.select([self._socket], [], [], max(end - time.monotonic(), 0.0))[0]:
            self._unread += self._socket.recv(1 << 18)
            if messages := self._parse():
                self._socket.sendall(b"".join([b"delete %b\r\nreserve\r\n" % job for job, _ in messages]))
                return messages
        return []

    def _parse(self) -> list[tuple[bytes, bytes]]:
        """(id, body) of the complete jobs; other answers are dropped."""
        found, unread, at = [], self._unread, 0
        while (end := unread.find(CRLF, at)) >= 0:
            line = unread[at:end]
            if not line.startswith(b"RESERVED"):
                at = end + 2
                continue
            _, job, size = line.split()
            body_at = end + 2
            body_end = body_at + int(size)
            if len(unread) < body_end + 2:
                break
            found.append((job, unread[body_at:body_end]))
            at = body_end + 2
        self._unread = unread[at:]
        return found

    def read(self, messages: list[Any]) -> list[Hashable]:
        return [(job, len(body))[0] for job, body in messages]

    def late_ms(self, messages: list[Any], wall_ms: float) -> list[float]:
        return [wall_ms - int(body[:DUE_DIGITS]) for _, body in messages]

    async def close(self) -> None:
        self._socket.close()


def _connect(path: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.connect(path)
    except OSError:
        connected.close()
        raise
    return connected
