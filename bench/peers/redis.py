"""A delayed queue made by hand in Redis: a sorted set by due time, and a script that takes due members.

    sender ── ZADD, a batch each, pipelined ──▶ sorted set (score: due time; member: id and body)
       │                                           │ a script: range by score, remove, and the next due time
       └── PUBLISH of an earlier due time ───▶ receiver: sleeps until the next due time

The append-only file is synced before each answer. Redis keeps everything in memory, and the file grows until rewritten.
"""

import select
import shutil
import time
from collections.abc import Hashable
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any

from bench.peers import BODY, Missing, Peer, Program, Promises, Receiver, Sender

SETTINGS = {
    "appendfsync": "always",
    "appendonly": "yes",
    "port": "0",
    "save": "",
}
CONNECTIONS = 8
TAKEN_MAX = 1024
KEY, CHANNEL = "delayed", "due"
LOOK_MS_MAX = 1000.0
ID = Struct(">Q")
# Returns members and scores in turns, and the score of the first remaining member.
TAKE = """
local taken = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2], 'WITHSCORES')
if #taken > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #taken / 2 - 1) end
return {taken, redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or false}
"""


class Redis(Peer):
    """A server made for the run, reached by a Unix socket."""

    name = "redis"
    title = "Redis queue"
    in_flight = CONNECTIONS

    def __init__(self) -> None:
        self._server: Program | None = None
        self._socket = ""

    def start(self, directory: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise Missing("redis-server is not installed")
        try:
            import redis
        except ImportError as error:
            raise Missing("the client is not installed: pip install redis[hiredis]") from error
        directory.mkdir()
        self._socket = str(directory / "socket")
        options = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
        self._server = Program([program, "--dir", str(directory), "--unixsocket", self._socket, *options], directory)
        client = redis.Redis(unix_socket_path=self._socket)

        def answers() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        self._server.wait_until(answers)
        self.version = str(client.info("server")["redis_version"])
        client.close()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    async def sender(self, topic: str) -> "RedisSender":
        import redis.asyncio

        kind = redis.asyncio.UnixDomainSocketConnection
        # A caller without an idle connection waits for one.
        pool = redis.asyncio.BlockingConnectionPool(CONNECTIONS, None, kind, path=self._socket)
        client = redis.asyncio.Redis.from_pool(pool)
        await client.ping()
        return RedisSender(client)

    def receiver(self, topic: str) -> "RedisReceiver":
        return RedisReceiver(self._socket)


class RedisSender(Sender):
    """A ZADD of a whole batch, on a connection of its own."""

    # Members of a set are unique: each message needs an id that is unique in the run.
    _ids = count()

    def __init__(self, client: Any) -> None:
        self._client = client
        self._promises = Promises()

    async def send(self, count: int, delay_s: float) -> None:
        now_ms = time.time_ns() // 1_000_000
        due_at_ms = now_ms + round(delay_s * 1000)
        words: list[bytes | int] = []
        for body, number in zip([BODY] * count, self._ids, strict=False):
            words += (due_at_ms, ID.pack(number) + body)
        await self._client.execute_command("ZADD", KEY, *words)
        if self._promises.must_tell(due_at_ms, now_ms):
            await self._client.publish(CHANNEL, due_at_ms)

    async def close(self) -> None:
        await self._client.aclose()


class RedisReceiver(Receiver):
    """One connection for the script and one that listens."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def open(self) -> None:
        import redis

        self._client = redis.Redis(unix_socket_path=self._socket)
        self._take_script = self._client.register_script(TAKE)
        self._notices = self._client.pubsub(ignore_subscribe_messages=True)
        self._notices.subscribe(CHANNEL)
        self._next_ms = 0.0

    async def receive(self, wait_s: float) -> list[Any]:
        # Nothing else runs in this process, so it may block; asyncio's epoll has a resolution of milliseconds.
        end = time.time() + wait_s
        while True:
            now = time.time()
            if self._next_ms <= now * 1000:
                if messages := self._take(int(now * 1000)):
                    return messages
            elif now >= end:
                return []
            else:
                wait_ms = min(self._next_ms / 1000, end) - now
                if select.select([self._notices.connection._sock], [], [], wait_ms)[0]:
                    while notice := self._notices.get_message():
                        self._next_ms = min(self._next_ms, float(notice["data"]))

    def _take(self, now_ms: int) -> list[Any]:
        taken, next_ms = self._take_script(keys=[KEY], args=[now_ms, TAKEN_MAX])
        self._next_ms = min(time.time() * 1000 + LOOK_MS_MAX, float(next_ms or "inf"))
        members = taken[::2]
        return list(zip(members, map(float, taken[1::2]), strict=True))

    def read(self, messages: list[Any]) -> list[Hashable]:
        return [(member[:8], len(member[8:]))[0] for member, _ in messages]

    def late_ms(self, messages: list[Any], wall_ms: float) -> list[float]:
        return [wall_ms - due_at_ms for _, due_at_ms in messages]

    async def close(self) -> None:
        self._notices.close()
        self._client.close()
