"""The streams between the copies of a shard: one from each member to each other one.

    Member ──send──▶ queue of a PeerLink ──Carry──▶ CopiesService ──hear──▶ Member

Messages may be dropped: if a member can't be reached, or reads too slowly. The core repeats them.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from duetime.v1 import copies_pb2, copies_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.errors import FailedPrecondition, StartupError, Unavailable
from duetime_core.rpc.calls import translate
from duetime_core.rpc.serving import make_channel

from duetime_store.copies.directories import DirectoryGiver
from duetime_store.copies.roster import Roster
from duetime_store.copies.scanning import Damage
from duetime_store.copies.writes import Sending

log = structlog.get_logger()

SERVICE_NAME = "duetime.v1.Copies"
# The reason for refusing a removed copy.
REMOVED = "COPY_REMOVED"
PIECE_BYTES = 1024 * 1024
# Messages that wait for one member; beyond it new ones are dropped. A single larger one still goes.
WAITING_BYTES_MAX = 64 * 1024 * 1024
# Bytes of one message; a group commit is smaller (`waiting_bytes_max`).
MESSAGE_BYTES_MAX = 1024 * 1024 * 1024
# Longest wait for a range of another member's log.
FETCH_S = 60.0
RETRY_MS_MIN, RETRY_MS_MAX = 50, 1_000


class RemovedCopy(StartupError):
    """The group has removed this copy: its process ends."""

    def __init__(self, number: int) -> None:
        super().__init__(f"copy {number} was removed from its group: its directory is of no more use to the group")


@dataclass(slots=True)
class Identity:
    """The place of a process in its group; `life` tells it from another process with the same number. A copy that
    rejoins changes its number, before it is a member."""

    group: int
    number: int
    # HOST:PORT for the other members.
    address: str
    life: int

    @classmethod
    def of(cls, group: int, number: int, address: str) -> "Identity":
        return cls(group, number, address, secrets.randbits(64))


async def fetch(own: Identity, member: int, address: str, credentials: Any, damage: Damage) -> bytes:
    """The bytes of a range of another member's log; empty: it does not have them, or does not answer."""
    parts: list[bytes] = []
    async with make_channel(address, credentials) as channel:
        stub = copies_pb2_grpc.CopiesStub(channel)  # type: ignore[no-untyped-call]
        request = copies_pb2.FetchRequest(group=own.group, receiver=member, position=damage.position, end=damage.end)
        try:
            parts += [piece.data async for piece in stub.Fetch(request, timeout=FETCH_S)]
        except grpc.aio.AioRpcError as error:
            log.info("range not fetched", copy=member, reason=error.details())
    return b"".join(parts)


class PeerLink:
    """The stream to one member."""

    def __init__(
        self,
        own: Identity,
        to: int,
        address: str,
        credentials: Any,
        clock: Clock,
        on_lost: Callable[[int], None],
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            on_lost: called with the member's number when the stream ends.
            is_full: whether the own disk has no room.
        """
        self._is_full = is_full
        self._own, self._to, self._address = own, to, address
        self._clock, self._on_lost = clock, on_lost
        self._channel = make_channel(address, credentials)
        self._stub = copies_pb2_grpc.CopiesStub(self._channel)  # type: ignore[no-untyped-call]
        self._waiting: deque[Sending] = deque()
        self._waiting_bytes = 0
        self._wanted = asyncio.Event()
        # The reason of the last end of the stream.
        self.trouble = ""

    def send(self, sending: Sending) -> None:
        """Queues a message, or drops it."""
        size = len(sending.message) + len(sending.payload)
        if self._waiting and self._waiting_bytes + size > WAITING_BYTES_MAX:
            return
        self._waiting.append(sending)
        self._waiting_bytes += size
        self._wanted.set()

    async def run(self) -> None:
        """Keeps a stream open, and closes the channel in the end. Raises: RemovedCopy."""
        pause_ms = RETRY_MS_MIN
        try:
            while True:
                opened_ms = self._clock.monotonic_ms()
                await self._carry()
                self._waiting.clear()
                self._waiting_bytes = 0
                self._on_lost(self._to)
                lasted = self._clock.monotonic_ms() - opened_ms > RETRY_MS_MAX
                pause_ms = RETRY_MS_MIN if lasted else min(2 * pause_ms, RETRY_MS_MAX)
                await self._clock.sleep(pause_ms)
        finally:
            await self._channel.close()

    async def _carry(self) -> None:
        """Carries messages until the stream fails."""
        try:
            async for _ in self._stub.Carry(self._requests()):
                log.info("connected to another copy", copy=self._to, address=self._address)
        except grpc.aio.AioRpcError as error:
            if translate(error, f"copy {self._to}", "UNAVAILABLE").reason == REMOVED:
                raise RemovedCopy(self._own.number) from error
            trouble = f"{error.code().name}: {error.details()}"
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION and trouble != self.trouble:
                log.error("refused by another copy", copy=self._to, address=self._address, reason=error.details())
            self.trouble = trouble

    async def _requests(self) -> AsyncIterator[copies_pb2.CarryRequest]:
        first = self._request(b"", b"")
        first.address = self._own.address
        yield first
        while True:
            while self._waiting:
                sending = self._waiting.popleft()
                self._waiting_bytes -= len(sending.message) + len(sending.payload)
                payload = memoryview(sending.payload)
                while len(payload) > PIECE_BYTES:
                    yield self._request(bytes(payload[:PIECE_BYTES]), b"")
                    payload = payload[PIECE_BYTES:]
                yield self._request(bytes(payload), sending.message)
            self._wanted.clear()
            await self._wanted.wait()

    def _request(self, payload: bytes, message: bytes) -> copies_pb2.CarryRequest:
        own = self._own
        return copies_pb2.CarryRequest(
            group=own.group,
            sender=own.number,
            receiver=self._to,
            life=own.life,
            sent_at_ms=self._clock.now_ms(),
            payload=payload,
            message=message,
            full=self._is_full(),
        )


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of another member, with the reading of its wall clock, and whether its disk is full. No message: these
    alone."""

    sender: int
    sent_at_ms: int
    message: bytes
    payload: bytes
    is_full: bool = False


class CopiesService(copies_pb2_grpc.CopiesServicer):
    """See proto/duetime/v1/copies.proto."""

    def __init__(
        self,
        own: Identity,
        roster: Callable[[], Roster | None],
        hear: Callable[[Heard], Awaitable[None]],
        meet: Callable[[int, str], None],
        read: Callable[[Damage], bytes],
        giver: DirectoryGiver,
    ) -> None:
        """
        Args:
            roster: the present members; None: the copy is not open yet.
            meet: takes number and address of a member that is not in the roster yet.
            read: the bytes of a range of the own log; empty: they are not all there.
        """
        self._own, self._roster, self._hear, self._read, self._giver = own, roster, hear, read, giver
        self._meet = meet
        # The life of the process that is connected under a number.
        self._lives: dict[int, int] = {}

    async def Carry(  # noqa: N802  named as in the contract
        self, requests: AsyncIterator[copies_pb2.CarryRequest], context: Any
    ) -> AsyncIterator[copies_pb2.CarryResponse]:
        payload, sender, life, roster = bytearray(), 0, 0, None
        try:
            async for request in requests:
                if (request.sender, request.life) != (sender, life) or roster is not self._roster():
                    self._check(request)
                    sender, life, roster = request.sender, request.life, self._roster()
                    if request.address and roster is not None and sender > roster.highest:
                        self._meet(sender, request.address)
                    self._lives[sender] = life
                    yield copies_pb2.CarryResponse()
                if request.address:
                    continue
                payload += request.payload
                if len(payload) > MESSAGE_BYTES_MAX:
                    raise FailedPrecondition(
                        f"a message has more than {MESSAGE_BYTES_MAX} bytes", reason="COPY_REFUSED"
                    )
                if request.message or not request.payload:
                    sent = request.sent_at_ms, request.message, bytes(payload), request.full
                    await self._hear(Heard(sender, *sent))
                    payload.clear()
        finally:
            if self._lives.get(sender) == life:
                self._lives.pop(sender, None)

    async def Fetch(  # noqa: N802  named as in the contract
        self, request: copies_pb2.FetchRequest, context: Any
    ) -> AsyncIterator[copies_pb2.FetchResponse]:
        self._check_receiver(request)
        position = request.position
        while position < request.end:
            end = min(position + PIECE_BYTES, request.end)
            data = self._read(Damage(position, end))
            if not data:
                return
            yield copies_pb2.FetchResponse(data=data)
            position = end

    async def DescribeDirectory(  # noqa: N802  named as in the contract
        self, request: copies_pb2.DescribeDirectoryRequest, context: Any
    ) -> copies_pb2.DescribeDirectoryResponse:
        self._check_receiver(request)
        return await self._giver.files()

    async def CheckFile(  # noqa: N802  named as in the contract
        self, request: copies_pb2.CheckFileRequest, context: Any
    ) -> copies_pb2.CheckFileResponse:
        self._check_receiver(request)
        return await self._giver.check(request)

    async def ReadFile(  # noqa: N802  named as in the contract
        self, request: copies_pb2.ReadFileRequest, context: Any
    ) -> copies_pb2.ReadFileResponse:
        self._check_receiver(request)
        return await self._giver.read(request)

    def _check_receiver(self, request: Any) -> None:
        """Raises: FailedPrecondition: the call means another copy."""
        own = self._own
        if (request.group, request.receiver) != (own.group, own.number):
            text = f"this is copy {own.number} of group {own.group}, not {request.receiver} of {request.group}"
            raise FailedPrecondition(text, reason="COPY_REFUSED")

    def _check(self, request: copies_pb2.CarryRequest) -> None:
        own, sender, roster = self._own, request.sender, self._roster()
        if roster is None:
            raise Unavailable(f"copy {own.number} is not open yet", reason="COPY_UNAVAILABLE")
        fault = ""
        if request.group != own.group:
            fault = f"copy {sender} belongs to group {request.group}, copy {own.number} to group {own.group}"
        elif request.receiver != own.number and roster.addresses.get(request.receiver) == own.address:
            text = f"copy {request.receiver} had the address of copy {own.number}, which is to replace it"
            raise Unavailable(text, reason="COPY_UNAVAILABLE")
        elif request.receiver != own.number:
            fault = f"this is copy {own.number} of the group, not copy {request.receiver}: correct `copies`"
        elif roster.is_removed(sender):
            raise FailedPrecondition(f"copy {sender} was removed from this group", reason=REMOVED)
        elif sender == own.number:
            fault = f"copy {sender} is no other member of this group: {sorted(roster.numbers)}"
        elif self._lives.get(sender, request.life) != request.life:
            fault = f"another process is connected as copy {sender}: a number belongs to one directory"
        if fault:
            raise FailedPrecondition(fault, reason="COPY_REFUSED")
