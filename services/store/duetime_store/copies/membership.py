"""The place of a store process in the group of its shard: opened files, the server for the other members, and streams
to them."""

import asyncio
from concurrent.futures import Executor

import structlog
from duetime.v1 import copies_pb2_grpc, members_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.errors import StartupError
from duetime_core.rpc.probes import NodeCondition
from duetime_core.rpc.serving import Server
from prometheus_client import CollectorRegistry

from duetime_store.copies import administering
from duetime_store.copies.administering import MembersService
from duetime_store.copies.clock import GroupClock
from duetime_store.copies.committer import Copies
from duetime_store.copies.copy import Copy, DamagedLog, repaired
from duetime_store.copies.links import SERVICE_NAME, CopiesService, Identity, PeerLink, fetch
from duetime_store.copies.member import Member
from duetime_store.copies.metrics import CopyCollector
from duetime_store.copies.peers import Peers
from duetime_store.copies.room import DiskRoom
from duetime_store.copies.roster import Roster
from duetime_store.copies.scanning import Damage
from duetime_store.copies.statefile import FILE, RaftState, StateFile
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.reserve import Reserve
from duetime_store.log.commitlog import CommitLog
from duetime_store.settings import StoreSettings

log = structlog.get_logger()

# Heartbeats in an election's shortest timeout.
TICKS = 10
# Pause before the other members are asked again for damaged bytes.
REPAIR_RETRY_MS = 1_000
# Calls of the other members' streams and probes.
CALLS_MAX = 64


class CopyFiles:
    """The log and `duetimeRaft` of a copy. A new directory becomes a copy."""

    def __init__(self, directory: StoreDirectory, settings: StoreSettings) -> None:
        """Opens them, durably; blocking.

        Raises:
            StartupError: the directory is another copy's, or has a log without entries.
        """
        state = RaftState(settings.copies_group, settings.copy_number, Roster.founding(settings.members))
        self.log = CommitLog(directory.disk, directory.commit_log, settings.segment_bytes)
        if self.log.max_position and not (directory.root / FILE).exists():
            text = "has the log of a shard with one copy, which cannot become a group yet: use an empty one"
            raise StartupError(f"{directory.root} {text}")
        self.state = StateFile(directory.disk, directory.root, state)
        if self.log.min_position > self.state.state.position:
            raise StartupError(f"the log in {directory.root} has lost its beginning: replace this copy")
        # The end of the last leader's checkpoint may be behind the log now.
        directory.mark_serving()

    def open(self) -> Copy | Damage:
        """The copy, or the range of its log that has to be repaired first; blocking. Raises: StartupError."""
        try:
            return Copy(self.log, self.state, timeout_ticks=(TICKS, 2 * TICKS))
        except DamagedLog as error:
            return error.damage

    def repair(self, damage: Damage, data: bytes) -> Copy | Damage | None:
        """As `open`, with the bytes of another member in a damaged range; blocking. None: they do not fit."""
        return self.open() if repaired(self.log, self.state, damage, data) else None


class Membership:
    """See the module."""

    def __init__(self, settings: StoreSettings, clock: Clock, registry: CollectorRegistry) -> None:
        self._settings, self._clock = settings, clock
        members = settings.members
        self._own = Identity.of(settings.copies_group, settings.copy_number)
        # The shard's time.
        self.clock = GroupClock(clock, members)
        self._credentials = settings.credentials()
        self._server = Server([SERVICE_NAME, administering.SERVICE_NAME], CALLS_MAX, credentials=self._credentials)
        self._registry = registry
        self._files: CopyFiles | None = None
        self._opened: Copy | Damage | None = None
        self._member: Member | None = None
        self._room: DiskRoom | None = None

    def start(self, directory: StoreDirectory, reserve: Reserve) -> None:
        """Opens the files; blocking. Raises: StartupError."""
        self._room = DiskRoom(directory, reserve, self._settings.disk_used_max)
        self._files = CopyFiles(directory, self._settings)
        self._opened = self._files.open()

    async def join(self, executor: Executor) -> None:
        """Hears the other members, once damage is repaired. `executor`: one thread, which writes the log.

        Raises:
            StartupError: the port for the other members cannot be opened.
        """
        while isinstance(self._opened, Damage):
            await self._repair(self._opened, executor)
        copy, settings = self._opened, self._settings
        assert copy is not None
        peers = Peers(self._own.number, self._link, settings.members)
        assert self._room is not None
        member = self._member = Member(copy, peers, self._clock, self.clock, executor, self._room)
        self._registry.register(CopyCollector(self._member, self.clock, settings.shard))
        service = CopiesService(self._own, lambda: member.roster, member.hear, copy.read)
        copies_pb2_grpc.add_CopiesServicer_to_server(service, self._server.grpc)  # type: ignore[no-untyped-call]
        operators = MembersService(self._own, member, self.clock)
        members_pb2_grpc.add_MembersServicer_to_server(operators, self._server.grpc)  # type: ignore[no-untyped-call]
        port = int(settings.members[self._own.number].rpartition(":")[2])
        await self._server.start(settings.host, port, probe_port=settings.probe_port)
        await self._server.report(serving=False)
        log.info("copy opened", copy=self._own.number, entries=copy.last.index, position=copy.last.end)

    async def _repair(self, damage: Damage, executor: Executor) -> None:
        """Asks the other members for a damaged range. Until one has it, this copy neither votes nor acknowledges."""
        assert self._files is not None
        files, run = self._files, asyncio.get_running_loop().run_in_executor
        log.error("damaged range of the log: asking the other copies", position=damage.position, end=damage.end)
        roster = files.state.state.roster
        for number, address in {**roster.addresses, **self._settings.members}.items():
            if number == self._own.number:
                continue
            data = await fetch(self._own, number, address, self._credentials, damage)
            if data and (opened := await run(executor, files.repair, damage, data)) is not None:
                log.warning("damaged range of the log repaired", copy=number, bytes=len(data))
                self._opened = opened
                return
        await self._clock.sleep(REPAIR_RETRY_MS)

    @property
    def member(self) -> Member:
        assert self._member is not None
        return self._member

    @property
    def log(self) -> CommitLog:
        """The log that the copy writes."""
        assert self._files is not None
        return self._files.log

    @property
    def committer(self) -> Copies:
        """The committer of the store that this copy's leader opens."""
        return Copies(self.member)

    async def hand_over(self) -> None:
        """Gives up leadership, if this copy has it."""
        if self._member is not None:
            await self._member.hand_over()

    @property
    def health(self) -> NodeCondition:
        """Ready while the group has a leader that this copy knows: the next copy may be stopped."""
        return self._server.health

    async def run(self) -> None:
        """Runs the member. Raises: NotLeader: another copy leads now."""
        tick_ms = self._settings.copies_election_ms / TICKS
        async with asyncio.TaskGroup() as group:
            group.create_task(self.member.run(tick_ms))
            group.create_task(self._report(tick_ms))

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
        if self._files is not None:
            self._files.state.close()
