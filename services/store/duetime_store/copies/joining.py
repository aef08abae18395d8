"""The way of a new copy into its group.

    empty directory ──▶ all founding members are there ──▶ each has its first state ──▶ elections
    empty directory, copies_join ──▶ learner in the log ──▶ takes a directory ──▶ takes the tail ──▶ voter
    empty directory, copies_rejoin, the group has begun ──▶ new number ──▶ learner in the log ──▶ as above

A group begins once all its founding members have a state on their disks. So an empty directory that finds entries
elsewhere is no new member: it has lost its votes. It is refused, or gets a new number and replaces the member with its
address. Each empty directory gets a number of its own: a process recognizes its number by its `life`, and writes it
before it takes anything.
"""

from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import grpc
import structlog
from duetime.v1 import members_pb2, members_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, NotFound, StartupError
from duetime_core.rpc.calls import translate
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


class GroupBegun(StartupError):
    """The group of an empty directory has begun."""

    def __init__(self, group: int, number: int) -> None:
        super().__init__(
            f"group {group} has begun, and the directory of copy {number} is empty: it would forget its votes. If the "
            "directory is lost, start the copy with --copies-rejoin true, or replace it by one with a new number: "
            f"`duetime store members replace {number} NUMBER HOST:PORT`, and --copies-join true"
        )


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
            GroupBegun: it has.
        """
        await self._all(lambda group: True)

    async def founded(self) -> None:
        """Returns once all founding members have a state on their disks."""
        await self._all(lambda group: group.is_founded, may_have_begun=True)

    async def _all(self, is_ready: Any, *, may_have_begun: bool = False) -> None:
        waiting = dict(self._others)
        while waiting:
            for number, address in list(waiting.items()):
                group = await self._ask(address)
                if group is None:
                    continue
                if group.term and may_have_begun:
                    return
                if group.term:
                    raise GroupBegun(group.group, self._own.number)
                if group.number != number:
                    log.warning("address of another copy", copy=number, address=address, found=group.number)
                elif is_ready(group):
                    del waiting[number]
            if waiting:
                self._await(f"the founding copies {sorted(waiting)}")
                await self._clock.sleep(PAUSE_MS)

    async def rejoin(self) -> int:
        """Returns a new number, once the group has this copy as a learner under it.

        Raises:
            StartupError: no member has the address.
        """
        own = self._own
        request = members_pb2.RejoinMemberRequest(group=own.group, address=own.address, life=own.life)
        log.warning("the directory is lost: this copy rejoins under a new number", copy=own.number)
        while True:
            found = await self.answering()
            leaders = [(group.term, address) for number, (group, address) in found.items() if group.leader == number]
            awaited = "a leader of the group"
            if leaders:
                _, address = max(leaders)
                try:
                    answer = await self._call(address, lambda stub: stub.RejoinMember(request, timeout=CALL_S))
                except NotFound as error:
                    raise StartupError(f"the group does not take this copy: {error.text}") from error
                except DueTimeError as error:
                    awaited = error.text
                else:
                    if answer.number:
                        return int(answer.number)
                    awaited = "a change of members"
            self._await(awaited)
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
        groups = {number: found for number, found in (await self.answering()).items() if found[0].members}
        groups.pop(self._own.number, None)
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

    async def answering(self) -> dict[int, tuple[Group, str]]:
        """The other copies that answer, and their addresses, by their numbers; the settings may have former ones."""
        groups: dict[int, tuple[Group, str]] = {}
        waiting, asked = set(self._others.values()), {self._own.address}
        while waiting:
            address = waiting.pop()
            asked.add(address)
            group = await self._ask(address)
            if group is not None:
                groups[group.number] = group, address
                waiting |= {each.address for each in group.members} - asked
        return groups

    def _await(self, text: str) -> None:
        """Logs a wait once."""
        if text != self._awaited:
            log.info("waiting", copy=self._own.number, awaited=text)
            self._awaited = text

    async def _ask(self, address: str) -> Group | None:
        """The answer of another copy; None: there is none. Raises: StartupError: it is another group's."""
        request = members_pb2.DescribeMembersRequest()
        try:
            group: Group = await self._call(address, lambda stub: stub.DescribeMembers(request, timeout=CALL_S))
        except DueTimeError as error:
            log.debug("copy does not answer", address=address, reason=error.text)
            return None
        if group.group != self._own.group:
            raise StartupError(f"{address} is a copy of group {group.group}, not of {self._own.group}")
        return group

    async def _call(self, address: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Raises: DueTimeError."""
        async with make_channel(address, self._credentials) as channel:
            try:
                return await call(members_pb2_grpc.MembersStub(channel))  # type: ignore[no-untyped-call]
            except grpc.aio.AioRpcError as error:
                raise translate(error, f"the copy at {address}", "COPY_UNAVAILABLE") from error
