"""The place of a store process in the group of its shard: opened files, the server for the other members, and streams
to them."""

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor

import structlog
from duetime.v1 import copies_pb2_grpc, members_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.errors import StartupError
from duetime_core.rpc.probes import NodeCondition
from duetime_core.rpc.serving import Server
from prometheus_client import CollectorRegistry

from duetime_store.copies import administering
from duetime_store.copies.administering import MembersService, Phase
from duetime_store.copies.clock import GroupClock
from duetime_store.copies.committer import Copies
from duetime_store.copies.copy import BehindCopy, Copy, DamagedLog, repaired
from duetime_store.copies.directories import DirectoryGiver
from duetime_store.copies.joining import GroupBegun, Joining
from duetime_store.copies.links import SERVICE_NAME, CopiesService, Heard, Identity, PeerLink, fetch
from duetime_store.copies.member import Member
from duetime_store.copies.metrics import CopyCollector
from duetime_store.copies.peers import Peers
from duetime_store.copies.room import DiskRoom
from duetime_store.copies.roster import Roster
from duetime_store.copies.scanning import Damage
from duetime_store.copies.statefile import RaftState, StateFile, has_state
from duetime_store.copies.taking import begin
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.reserve import Reserve
from duetime_store.log.commitlog import CommitLog
from duetime_store.settings import FOUNDING_COUNTS, StoreSettings

log = structlog.get_logger()

# Heartbeats in an election's shortest timeout.
TICKS = 10
# Pause before the other members are asked again for damaged bytes.
REPAIR_RETRY_MS = 1_000
# Calls of the other members' streams and probes.
CALLS_MAX = 64


class CopyFiles:
    """The log and `duetimeRaft` of a copy."""

    def __init__(self, directory: StoreDirectory, settings: StoreSettings) -> None:
        """Opens the state, if there is one; blocking.

        Raises:
            StartupError: the directory is another copy's, or has a log without entries.
        """
        self.directory, self._settings = directory, settings
        self.log: CommitLog | None = None
        self.state: StateFile | None = None
        if has_state(directory.root):
            self._open_state(Roster(()))
        elif any(directory.commit_log.glob("*")):
            text = "has the log of a shard with one copy: `duetime store replicate` makes it the first of a group"
            raise StartupError(f"{directory.root} {text}")

    def _open_state(self, roster: Roster, number: int = 0, *, is_taking: bool = False) -> None:
        settings, directory = self._settings, self.directory
        place = settings.copies_group, number or settings.copy_number
        configured = settings.copy_number if number else 0
        new = RaftState(*place, roster, is_taking=is_taking, configured=configured)
        self.state = StateFile(directory.disk, directory.root, new)

    def create(self, number: int = 0) -> None:
        """Makes an empty directory a founding member's, or one that is to be filled, durably. Blocking. `number`: under
        which it rejoins its group; 0: it does not.

        Raises:
            StartupError: neither three nor five copies are to found a group.
        """
        settings = self._settings
        if number or settings.copies_join:
            self._open_state(Roster(()), number, is_taking=True)
        elif len(settings.members) not in FOUNDING_COUNTS:
            raise StartupError(f"three or five copies found a group, not {len(settings.members)}")
        else:
            self._open_state(Roster.founding(settings.members))

    def open(self) -> Copy | Damage:
        """The copy, or the range of its log that has to be repaired first; blocking. Raises: StartupError."""
        directory, state = self.directory, self.state
        assert state is not None
        log = self.log = CommitLog(directory.disk, directory.commit_log, self._settings.segment_bytes)
        if log.min_position > state.state.position:
            raise StartupError(f"the log in {directory.root} has lost its beginning: replace this copy")
        # The end of the last leader's checkpoint may be behind the log now.
        directory.mark_serving()
        return self._copy()

    def _copy(self) -> Copy | Damage:
        assert self.log is not None
        assert self.state is not None
        try:
            return Copy(self.log, self.state, timeout_ticks=(TICKS, 2 * TICKS))
        except DamagedLog as error:
            return error.damage

    def repair(self, damage: Damage, data: bytes) -> Copy | Damage | None:
        """As `open`, with the bytes of another member in a damaged range; blocking. None: they do not fit."""
        assert self.log is not None
        assert self.state is not None
        return self._copy() if repaired(self.log, self.state, damage, data) else None


class Membership:
    """See the module."""

    def __init__(self, settings: StoreSettings, clock: Clock, registry: CollectorRegistry) -> None:
        self._settings, self._clock = settings, clock
        members = settings.members
        self._own = Identity.of(settings.copies_group, settings.copy_number, members[settings.copy_number])
        # The shard's time.
        self.clock = GroupClock(clock, members)
        self._credentials = settings.credentials()
        self._server = Server([SERVICE_NAME, administering.SERVICE_NAME], CALLS_MAX, credentials=self._credentials)
        self._registry = registry
        self._files: CopyFiles | None = None
        self._opened: Copy | Damage | None = None
        self._phase = Phase()
        self._room: DiskRoom | None = None
        # Reads files for members that take them, beside the thread that writes the log.
        self._reader = ThreadPoolExecutor(1, "copies")

    def start(self, directory: StoreDirectory, reserve: Reserve) -> None:
        """Opens the files; blocking. Raises: StartupError."""
        self._room = DiskRoom(directory, reserve, self._settings.disk_used_max)
        files = self._files = CopyFiles(directory, self._settings)
        if files.state is not None:
            self._use(files.state.state)
            if not files.state.state.is_taking:
                self._opened = files.open()

    async def join(self, executor: Executor) -> None:
        """Hears the other members, once this copy is one of them, and damage is repaired. `executor`: one thread, which
        writes the log.

        Raises:
            StartupError: the port for the other members cannot be opened; the group does not take this copy.
        """
        await self._listen()
        await self._enter(executor)
        while isinstance(self._opened, Damage):
            await self._repair(self._opened, executor)
        copy = self._opened
        assert copy is not None
        if not copy.last.index and not copy.node.status()["term"]:
            await self._joining.founded()
        peers = Peers(self._own.number, self._link, self._settings.members)
        assert self._room is not None
        member = self._phase.member = Member(copy, peers, self._clock, self.clock, executor, self._room)
        self._registry.register(CopyCollector(member, self.clock, self._settings.shard))
        log.info("copy opened", copy=self._own.number, entries=copy.last.index, position=copy.last.end)

    async def _listen(self) -> None:
        """Opens the port for the other members and for operators."""
        phase, own, settings = self._phase, self._own, self._settings
        giver = DirectoryGiver(settings.data_dir, lambda: phase.member.point if phase.member else None, self._reader)
        service = CopiesService(
            own,
            lambda: phase.member.roster if phase.member else None,
            self._hear,
            self._meet,
            self._read,
            giver,
        )
        copies_pb2_grpc.add_CopiesServicer_to_server(service, self._server.grpc)  # type: ignore[no-untyped-call]
        operators = MembersService(own, phase, self.clock)
        members_pb2_grpc.add_MembersServicer_to_server(operators, self._server.grpc)  # type: ignore[no-untyped-call]
        port = int(own.address.rpartition(":")[2])
        await self._server.start(settings.host, port, probe_port=settings.probe_port)
        await self._server.report(serving=False)

    async def _enter(self, executor: Executor) -> None:
        """Makes an empty directory a member's, and completes an incomplete one."""
        assert self._files is not None
        files, settings, run = self._files, self._settings, asyncio.get_running_loop().run_in_executor
        if files.state is None:
            await run(executor, files.create, 0 if settings.copies_join else await self._found())
        assert files.state is not None
        self._use(files.state.state)
        if files.state.state.is_taking:
            rate = settings.copies_take_bytes_per_s
            await self._joining.take(files.directory, files.state, self._phase, executor, rate)
        if self._opened is None:
            self._opened = await run(executor, files.open)

    async def _found(self) -> int:
        """Returns once the group can be founded; or once it has this copy under a new number, and returns that."""
        try:
            await self._joining.found()
        except GroupBegun:
            if not self._settings.copies_rejoin:
                raise
            return await self._joining.rejoin()
        return 0

    def _use(self, state: RaftState) -> None:
        """The state counts before the settings."""
        self._phase.state, self._own.number = state, state.id

    @property
    def _joining(self) -> Joining:
        return Joining(self._own, self._others, self._credentials, self._clock)

    @property
    def _others(self) -> dict[int, str]:
        """Known addresses of other members: those of the settings count before those of the log."""
        known = self._phase.state.roster.addresses if self._phase.state else {}
        addresses = {**known, **self._settings.members}
        # A lost member, which this copy replaces, may have had its address.
        return {number: address for number, address in addresses.items() if address != self._own.address}

    async def _hear(self, heard: Heard) -> None:
        await self.member.hear(heard)

    def _meet(self, number: int, address: str) -> None:
        self.member.meet(number, address)

    def _read(self, damage: Damage) -> bytes:
        return self._phase.member.read(damage) if self._phase.member else b""

    async def _repair(self, damage: Damage, executor: Executor) -> None:
        """Asks the other members for a damaged range. Until one has it, this copy neither votes nor acknowledges."""
        assert self._files is not None
        files, run = self._files, asyncio.get_running_loop().run_in_executor
        log.error("damaged range of the log: asking the other copies", position=damage.position, end=damage.end)
        for number, (_, address) in (await self._joining.answering()).items():
            data = await fetch(self._own, number, address, self._credentials, damage)
            if data and (opened := await run(executor, files.repair, damage, data)) is not None:
                log.warning("damaged range of the log repaired", copy=number, bytes=len(data))
                self._opened = opened
                return
        await self._clock.sleep(REPAIR_RETRY_MS)

    @property
    def member(self) -> Member:
        assert self._phase.member is not None
        return self._phase.member

    @property
    def log(self) -> CommitLog:
        """The log that the copy writes."""
        assert self._files is not None
        assert self._files.log is not None
        return self._files.log

    @property
    def committer(self) -> Copies:
        """The committer of the store that this copy's leader opens."""
        return Copies(self.member)

    async def hand_over(self) -> None:
        """Gives up leadership, if this copy has it."""
        if self._phase.member is not None:
            await self._phase.member.hand_over()

    @property
    def health(self) -> NodeCondition:
        """Ready while the group has a leader that this copy knows: the next copy may be stopped."""
        return self._server.health

    async def run(self) -> None:
        """Runs the member.

        Raises:
            NotLeader: another copy leads now.
            StartupError: this copy was removed, or has to take a directory.
        """
        tick_ms = self._settings.copies_election_ms / TICKS
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.member.run(tick_ms))
                group.create_task(self._report(tick_ms))
        except* BehindCopy as behind:
            assert self._files is not None
            assert self._files.state is not None
            error: BaseException = behind
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            assert isinstance(error, BehindCopy)
            run, state = asyncio.get_running_loop().run_in_executor, self._files.state
            await run(self.member.executor, begin, state, error.index)
            text = "the leader no longer has the entries that this copy lacks: it takes a directory after a restart"
            raise StartupError(text) from None

    async def _report(self, tick_ms: float) -> None:
        while True:
            follows = self.member.status["leader"] != 0
            if follows != self._server.health.ready:
                await self._server.report(serving=follows)
            await self._clock.sleep(tick_ms)

    def _link(self, number: int, address: str) -> PeerLink:
        known = self._own, number, address, self._credentials, self._clock, self._lost
        return PeerLink(*known, lambda: self._room is not None and self._room.is_full)

    def _lost(self, number: int) -> None:
        self.member.lost(number)

    async def close(self) -> None:
        """Ends the server and closes the files; the member does not run any more."""
        await self._server.stop(0)
        self._reader.shutdown()
        if self._files is not None and self._files.state is not None:
            self._files.state.close()
