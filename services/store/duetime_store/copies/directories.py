"""The calls by which a copy takes the directory of another member (taking.py)."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
from duetime.v1 import copies_pb2, copies_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.errors import Unavailable
from duetime_core.rpc.calls import translate
from duetime_core.rpc.serving import make_channel
from duetime_format.marks import OWN

from duetime_store.copies.entries import Entry
from duetime_store.copies.roster import Roster
from duetime_store.copies.statefile import StateFile
from duetime_store.copies.taking import Check, Giver, List, Listing, Point, Read, take
from duetime_store.files.disk import Disk

# Deadline of a call; a check reads a whole segment.
CALL_S = 120.0


class DirectoryGiver:
    """Answers the calls, on threads of `executor`."""

    def __init__(self, root: Path, point: Callable[[], Point | None], executor: Executor) -> None:
        """`point`: see Copy; None: the copy is not open."""
        self._giver, self._point, self._executor = Giver(root), point, executor

    async def files(self) -> copies_pb2.DescribeDirectoryResponse:
        """Raises: Unavailable: the copy is not open."""
        files = await self._run(self._giver.files)
        point = self._point()
        if point is None:
            raise Unavailable("this copy is not open", reason="COPY_UNAVAILABLE")
        entry = point.entry
        return copies_pb2.DescribeDirectoryResponse(
            files=[copies_pb2.CopyFile(path=path, size=size) for path, size in files],
            index=entry.index,
            term=entry.term,
            end=entry.end,
            stored_at_ms=entry.stored_at_ms,
            roster=json.dumps(asdict(point.roster)).encode(),
            begin=point.begin,
            segment_bytes=point.segment_bytes,
        )

    async def check(self, request: copies_pb2.CheckFileRequest) -> copies_pb2.CheckFileResponse:
        """Raises: NotFound."""
        crc = await self._run(self._giver.check, Check(request.path, request.end))
        return copies_pb2.CheckFileResponse(crc32=crc)

    async def read(self, request: copies_pb2.ReadFileRequest) -> copies_pb2.ReadFileResponse:
        """Raises: NotFound."""
        position, data = await self._run(self._giver.read, Read(request.path, request.position, request.end))
        return copies_pb2.ReadFileResponse(position=position, data=data)

    async def _run(self, act: Callable[..., Any], *values: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, act, *values)


@dataclass(slots=True)
class Progress:
    """Bytes of a directory that are taken, and all of it."""

    taken_bytes: int = 0
    all_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Taker:
    """Takes directories into `root`; `executor`: one thread. Reads up to `bytes_per_s` of the member's disk."""

    group: int
    disk: Disk
    root: Path
    file: StateFile
    clock: Clock
    executor: Executor
    bytes_per_s: int
    progress: Progress

    async def run(self, member: int, address: str, credentials: Any) -> None:
        """Takes the directory of a member.

        Raises:
            DueTimeError: the member does not answer, or has changed bytes.
        """
        steps, progress = take(self.disk, self.root, self.file), self.progress
        progress.taken_bytes = progress.all_bytes = before = current = 0
        began_ms, read_bytes = self.clock.monotonic_ms(), 0
        answer: Any = None
        async with make_channel(address, credentials) as channel:
            calls = _MemberCalls(copies_pb2_grpc.CopiesStub(channel), self.group, member)  # type: ignore[no-untyped-call]
            while True:
                ask = await asyncio.get_running_loop().run_in_executor(self.executor, _next, steps, answer)
                match ask:
                    case None:
                        return
                    case List():
                        answer = await calls.files()
                        log = answer.point.entry.end - answer.point.begin
                        progress.all_bytes = sum(size for _, size in answer.files) + log
                    case Check():
                        before, current = before + current, ask.end
                        progress.taken_bytes = before
                        answer = await calls.check(ask)
                    case Read():
                        progress.taken_bytes = before + ask.position
                        answer = await calls.read(ask)
                        read_bytes += len(answer[1])
                        early_ms = read_bytes * 1000 / self.bytes_per_s - (self.clock.monotonic_ms() - began_ms)
                        if early_ms > 0:
                            await self.clock.sleep(early_ms)


def _next(steps: Any, answer: Any) -> Any:
    """The next question; None: there is none. A StopIteration can't pass through a future."""
    try:
        return steps.send(answer)
    except StopIteration:
        return None


class _MemberCalls:
    """Calls of one member."""

    def __init__(self, stub: Any, group: int, member: int) -> None:
        self._stub, self._group, self._member = stub, group, member

    async def files(self) -> Listing:
        found = await self._call(self._stub.DescribeDirectory, copies_pb2.DescribeDirectoryRequest)
        entry = Entry(found.index, found.term, OWN, found.end, found.end, found.stored_at_ms)
        point = Point(entry, Roster.of_json(json.loads(found.roster)), found.begin, found.segment_bytes)
        return Listing(tuple((each.path, each.size) for each in found.files), point)

    async def check(self, ask: Check) -> int | None:
        found = await self._call(self._stub.CheckFile, copies_pb2.CheckFileRequest, path=ask.path, end=ask.end)
        return found.crc32 if found.HasField("crc32") else None

    async def read(self, ask: Read) -> tuple[int, bytes]:
        request = copies_pb2.ReadFileRequest
        place = {"path": ask.path, "position": ask.position, "end": ask.end}
        found = await self._call(self._stub.ReadFile, request, **place)
        return found.position, found.data

    async def _call(self, call: Any, make: Any, **values: Any) -> Any:
        try:
            return await call(make(group=self._group, receiver=self._member, **values), timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            raise translate(error, f"copy {self._member}", "COPY_UNAVAILABLE") from error
