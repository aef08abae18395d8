"""RabbitMQ: messages expire in a delay queue, and are then dead-lettered to the queue of the reader.

    sender ── publish, confirmed ──▶ delay queue (x-message-ttl)
                                       └── dead-letter exchange ──▶ queue ── consume, acknowledge ──▶ receiver

Queues are durable, messages persistent: a confirm means that a message is synced. Dead-lettering between classic queues
is not confirmed, so a crash in between may lose a message. A message's due time is the sender's, at the start of its
body.
"""

import asyncio
import os
import select
import shutil
import socket
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from bench.peers import BODY, DELAYS_S, Missing, Peer, Program, Receiver, Sender, amqp, free_port

SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONNECTIONS = 4
PREFETCH = 4096
DUE_DIGITS = 13
READ_BYTES = 1 << 18
CALL_TIMEOUT_S = 30.0


class RabbitMQ(Peer):
    """A node made for the run, with its own port mapper."""

    name = "rabbitmq"
    title = "RabbitMQ"
    in_flight = 8

    def __init__(self) -> None:
        self._server: Program | None = None
        self._mapper: Program | None = None
        self._port = 0

    def start(self, directory: Path) -> None:
        mapper = shutil.which("epmd")
        if not SCRIPT.is_file() or mapper is None:
            raise Missing("rabbitmq-server is not installed")
        directory.mkdir()
        self._port, mapper_port = free_port(), str(free_port())
        # A daemon started by the node would outlive the run.
        self._mapper = Program([mapper, "-port", mapper_port, "-address", "127.0.0.1"], directory)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "ERL_EPMD_PORT": mapper_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "no-settings"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "no-plugins"),
        }
        self._server = Program([str(SCRIPT)], directory, env=environment)
        self._server.wait_until(self._answers)
        self.version = next(iter(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))).name.rpartition("-")[2]

    def stop(self) -> None:
        for program in (self._server, self._mapper):
            if program is not None:
                program.stop()

    async def sender(self, topic: str) -> "RabbitSender":
        sender = RabbitSender(topic)
        for _ in range(CONNECTIONS):
            sender.connections.append(await _Publishing.open(self._port))
        return sender

    def make_topic(self, name: str) -> None:
        connected = _connect(self._port)
        _call(connected, amqp.declare(name, {}))
        for delay_s in DELAYS_S:
            expired: dict[str, int | str] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
            expired["x-message-ttl"] = round(delay_s * 1000)
            _call(connected, amqp.declare(_delay_queue(name, delay_s), expired))
        connected.close()

    def receiver(self, topic: str) -> "RabbitReceiver":
        return RabbitReceiver(self._port, topic)

    def _answers(self) -> bool:
        try:
            _connect(self._port).close()
        except OSError:
            return False
        return True


class _Publishing:
    """A connection with confirms: the server numbers messages, and confirms synced ones."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._unread = amqp.Unread()
        self._sent = self._confirmed = 0
        # Confirmed out of order: one before them is not.
        self._ahead: set[int] = set()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, port: int) -> "_Publishing":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        made = cls(reader, writer)
        for words in amqp.handshake():
            await made.call(words)
        return made

    async def call(self, words: bytes) -> None:
        """Sends a frame and waits for the server's next one; before any publishing."""
        self._writer.write(words)
        while not list(self._unread.frames(await self._reader.read(READ_BYTES))):
            pass

    async def publish(self, words: bytes, count: int) -> None:
        """Returns when all of these messages are confirmed."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        self._sent += count
        confirmed = asyncio.get_running_loop().create_future()
        self._waiting.append((self._sent, confirmed))
        self._writer.write(words)
        await asyncio.wait_for(confirmed, CALL_TIMEOUT_S)

    async def _read(self) -> None:
        try:
            while read := await self._reader.read(READ_BYTES):
                for kind, payload in self._unread.frames(read):
                    if kind == amqp.METHOD and amqp.which(payload) == amqp.ACK:
                        self._note(*amqp.acked(payload))
                while self._waiting and self._waiting[0][0] <= self._confirmed:
                    self._waiting.pop(0)[1].set_result(None)
        except amqp.Refused as error:
            for _, waiting in self._waiting:
                waiting.set_exception(error)

    def _note(self, tag: int, all_before: bool) -> None:
        if all_before:
            self._confirmed = max(self._confirmed, tag)
        else:
            self._ahead.add(tag)
        while self._confirmed + 1 in self._ahead:
            self._confirmed += 1
            self._ahead.remove(self._confirmed)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()
        await self._writer.wait_closed()


class RabbitSender(Sender):
    """Distributes batches over the connections in turn."""

    def __init__(self, topic: str) -> None:
        self.connections: list[_Publishing] = []
        self._heads = {delay_s: amqp.publish_head(_delay_queue(topic, delay_s), len(BODY)) for delay_s in DELAYS_S}
        self._turn = 0

    async def send(self, count: int, delay_s: float) -> None:
        self._turn += 1
        connection = self.connections[self._turn % len(self.connections)]
        due_at = b"%0*d" % (DUE_DIGITS, time.time_ns() // 1_000_000 + round(delay_s * 1000))
        head = self._heads[delay_s]
        bodies = [due_at + BODY[DUE_DIGITS:]] * count
        await connection.publish(b"".join([head + body + amqp.END for body in bodies]), count)

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()


class RabbitReceiver(Receiver):
    """One consumer; the messages of one read are acknowledged at once."""

    def __init__(self, port: int, topic: str) -> None:
        self._port, self._topic = port, topic

    async def open(self) -> None:
        self._socket = _connect(self._port)
        self._unread = amqp.Unread()
        self._tag = 0
        self._consuming = False

    async def receive(self, wait_s: float) -> list[Any]:
        # Nothing else runs in this process, so it may block.
        end = time.monotonic() + wait_s
        if not self._consuming:
            # Not before: a held receiver gets nothing.
            self._socket.sendall(amqp.qos(PREFETCH) + amqp.consume(self._topic))
            self._consuming = True
        while select.select([self._socket], [], [], max(end - time.monotonic(), 0.0))[0]:
            if messages := self._parse(self._socket.recv(READ_BYTES)):
                self._socket.sendall(amqp.ack(messages[-1][0]))
                return messages
        return []

    def _parse(self, read: bytes) -> list[tuple[int, bytes]]:
        """(delivery tag, body): a Deliver, a header and a body each, with bodies smaller than a frame."""
        found = []
        for kind, payload in self._unread.frames(read):
            if kind == amqp.BODY:
                found.append((self._tag, payload))
            elif kind == amqp.METHOD and amqp.which(payload) == amqp.DELIVER:
                self._tag = amqp.delivery_tag(payload)
        return found

    def read(self, messages: list[Any]) -> list[Hashable]:
        return [(tag, len(body))[0] for tag, body in messages]

    def late_ms(self, messages: list[Any], wall_ms: float) -> list[float]:
        return [wall_ms - int(body[:DUE_DIGITS]) for _, body in messages]

    async def close(self) -> None:
        self._socket.close()


def _delay_queue(topic: str, delay_s: float) -> str:
    return f"{topic}-after-{round(delay_s * 1000)}"


def _connect(port: int) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", port), CALL_TIMEOUT_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for words in amqp.handshake():
        _call(connected, words)
    return connected


def _call(connected: socket.socket, words: bytes) -> None:
    """Sends a frame and waits for the server's next one."""
    connected.sendall(words)
    unread = amqp.Unread()
    while not list(unread.frames(_some(connected))):
        pass


def _some(connected: socket.socket) -> bytes:
    read = connected.recv(READ_BYTES)
    if not read:
        raise ConnectionError("RabbitMQ closed the connection")
    return read
