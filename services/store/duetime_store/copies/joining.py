"""The way of a new copy into its group.

    empty directory ──▶ all founding members are there ──▶ each has its first state ──▶ elections
    empty directory, copies_join ──▶ learner in the log ──▶ takes a directory ──▶ takes the tail ──▶ voter

A group begins once all its founding members have a state on their disks. So an empty directory that finds entries
elsewhere is no new member: it has lost its votes, and is refused.
"""

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import grpc
import structlog
from duetime.v1 import members_pb2, members_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, StartupError
from duetime_core.rpc.serving import make_channel

from duetime_store.copies.administering import Phase
from duetime_store.copies.directories import Taker
from duetime_store.copies.links import Identity, RemovedCopy
from duetime_store.copies.statefile import StateFile
from duetime_store.files.directory import StoreDirectory

log = structlog.get_logger()

Group = members_pb2.DescribeMembersResponse
# Deadline of a call, and pause before the next ones.
CALL_S, PAUSE_MS = 5.0, 500


class Joining:
    """See the module."""

    def __init__(self, own: Identity, others: Mapping[int, str], credentials: Any, clock: Clock) -> None:
        """`others`: addresses of other members; those that answer name more."""
        self._own, self._others, self._credentials, self._clock = own, others, credentials, clock
        # The last thing that was logged as awaited.
        self._awaited = ""

    async def found(self) -> None:
        """Returns once all founding members are there, and the group has not begun.

        Raises:
            StartupError: it has.
        """
        await self._all(lambda group: True)

    async def founded(self) -> None:
        """Returns once all founding members have a state on their disks."""
        await self._all(lambda group: group.is_founded, may_have_begun=True)

    async def _all(self, is_ready: Any, *, may_have_begun: bool = False) -> None:
        waiting = dict(self._others)
        while waiting:
            for number, address in list(waiting.items()):
                group = await self._ask(number, address)
                if group is None:
                    continue
                if group.term and may_have_begun:
                    return
                if group.term:
                    own = self._own.number
                    raise StartupError(
                        f"group {group.group} has begun, and the directory of copy {own} is empty: it would forget its "
                        f"votes. If it is lost, replace the copy by one with a new number: `duetime store members "
                        f"replace {own} NUMBER HOST:PORT`, and --copies-join true"
                    )
                if is_ready(group):
                    del waiting[number]
            if waiting:
                self._await(f"the founding copies {sorted(waiting)}")
                await self._clock.sleep(PAUSE_MS)

    async def take(
        self, directory: StoreDirectory, file: StateFile, phase: Phase, executor: Executor, rate: int
    ) -> None:
        """Takes the directory of a member, once the group has this copy. `rate`: bytes a second, at most.

        Raises:
            StartupError: the group has removed this copy, or counts its votes.
        """
        own, is_new = self._own, not file.state.roster.numbers
        taker = Taker(own.group, directory.disk, directory.root, file, self._clock, executor, rate, phase.progress)
        while True:
            for number, address in await self._sources(is_new=is_new):
                log.info("taking the directory of another copy", copy=number, address=address)
                try:
                    await taker.run(number, address, self._credentials)
                except DueTimeError as error:
                    log.warning("directory not taken", copy=number, reason=error.text)
                else:
                    log.info("directory taken", copy=number, index=file.state.index, bytes=phase.progress.all_bytes)
                    return
            await self._clock.sleep(PAUSE_MS)

    async def _sources(self, *, is_new: bool) -> list[tuple[int, str]]:
        """Members with the directory, by preference: those that follow, by entries. None while this copy is unknown."""
        groups: dict[int, tuple[Group, str]] = {}
        waiting, asked = dict(self._others), {self._own.number}
        while waiting:
            number, address = waiting.popitem()
            asked.add(number)
            group = await self._ask(number, address)
            if group is not None and group.members:
                groups[number] = group, address
                found = {each.number: each.address for each in group.members if each.address != self._own.address}
                waiting |= {number: address for number, address in found.items() if number not in asked}
        if not groups:
            return []
        best = max((group for group, _ in groups.values()), key=lambda group: (group.term, group.committed_entry))
        own = next((each for each in best.members if each.number == self._own.number), None)
        if own is None:
            if self._own.number <= best.highest_number:
                raise RemovedCopy(self._own.number)
            self._await("`duetime store members add`: the group does not have this copy yet")
            return []
        if is_new and own.role != members_pb2.COPY_ROLE_LEARNER:
            raise StartupError(
                f"copy {own.number} votes in its group, and this directory has not its votes: replace the copy by one "
                "with a new number"
            )
        near = [(group.leader != number, group.committed_entry, number) for number, (group, _) in groups.items()]
        return [(number, groups[number][1]) for _, _, number in sorted(near, reverse=True)]

    def _await(self, text: str) -> None:
        """Logs a wait once."""
        if text != self._awaited:
            log.info("waiting", copy=self._own.number, awaited=text)
            self._awaited = text

    async def _ask(self, number: int, address: str) -> Group | None:
        """The answer of another copy; None: there is none. Raises: StartupError: it is another group's."""
        async with make_channel(address, self._credentials) as channel:
            stub = members_pb2_grpc.MembersStub(channel)  # type: ignore[no-untyped-call]
            try:
                group: Group = await stub.DescribeMembers(members_pb2.DescribeMembersRequest(), timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                log.debug("copy does not answer", copy=number, address=address, reason=error.details())
                return None
        if group.group != self._own.group:
            raise StartupError(f"{address} is a copy of group {group.group}, not of {self._own.group}")
        if group.number != number:
            log.warning("address of another copy", copy=number, address=address, found=group.number)
            return None
        return group
