"""Pauses of groups and topics: config/duetimePauses.json. A paused group, or topic of a group, receives nothing.

    {"pauses": [{"group": "billing", "topic": "orders", "sinceMs": 1700000000000, "untilMs": 1700003600000}, ...]}

`topic` empty: all topics of the group. `group` empty: all groups, in one topic. `untilMs` 0: until it is resumed. A
change is one of the journal (duetime_store.log.journal): it counts once its record is durable, and the file follows at
checkpoints. A fetch checks the pause in its own step, so a group receives nothing once its pause is answered.
Leases from before stay valid: they can be acknowledged, renewed and returned.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import structlog
from duetime.v1 import consumer_pb2
from duetime_core.errors import InvalidArgument, Overloaded, Violation, refuse
from duetime_format.changes import PAUSES, StateChange
from duetime_format.errors import within
from duetime_format.levels import DELAY_MS_MAX

from duetime_store.files import configs
from duetime_store.files.worker import FileWorker
from duetime_store.groups.offsets import check_group
from duetime_store.lanes.alarm import ClockAlarm
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

log = structlog.get_logger()

FILE = "duetimePauses.json"
GROUP_PAUSES_MAX, SHARD_PAUSES_MAX = 100, 10_000


class PausesExhausted(Overloaded):
    """The group or the shard has its maximum of pauses."""

    reason = "PAUSES_EXHAUSTED"
    retriable = False


class PausedWaiter(Protocol):
    """A waiter, or a line of them, whose group or topic may be deleted."""

    is_over: bool


class Pause(NamedTuple):
    """Its times, in Unix ms; `until_ms` 0: until it is resumed."""

    since_ms: int
    until_ms: int

    def lasts(self, now_ms: int) -> bool:
        return not self.until_ms or now_ms < self.until_ms


PauseRequest = consumer_pb2.PauseGroupRequest | consumer_pb2.ResumeGroupRequest
# Keys: group and topic; an empty topic means the whole group, an empty group means all groups.
Pauses = Mapping[tuple[str, str], Pause]


class GroupPauses:
    """The pauses as of the log's published end. Belongs to the event loop's thread; `worker` writes."""

    def __init__(
        self, worker: FileWorker, store: Store, flusher: Flusher, alarm: ClockAlarm, replayed: Iterable[StateChange]
    ) -> None:
        """`replayed`: changes of the log that the file lacks."""
        self._worker = worker
        self._store = store
        self._flusher = flusher
        self._clock = store.clock
        self._alarm = alarm
        loaded = configs.load(worker.directory.config, FILE)
        if loaded.fault:
            log.error("file of pauses is damaged: groups may receive", file=FILE, why=loaded.fault)
        self._pauses: Pauses = _parsed(loaded.value)
        # Journaled and not published yet; None: the pause ends.
        self._ahead: dict[tuple[str, str], Pause | None] = {}
        self._waiters: set[asyncio.Future[None]] = set()
        # Changes so far, and those in the file.
        self._edition = self._written = 0
        for change in replayed:
            self._learn(change)
        store.journal.learners[PAUSES] = self._learn

    # --- receivers --------------------------------------------------------------------------------------------------

    def holds(self, group: str, topic: str) -> bool:
        """Whether the group may not receive the topic now."""
        return bool(self._pauses) and bool(self._lasting(group, topic))

    async def over(self, group: str, topic: str, give_up_ms: float, waiter: PausedWaiter) -> bool:
        """Waits while the group may not receive the topic. False: until `give_up_ms` of the monotonic clock it may not,
        or the waiter is over."""
        while self._pauses and (lasting := self._lasting(group, topic)):
            left_ms = give_up_ms - self._clock.monotonic_ms()
            if left_ms <= 0 or waiter.is_over:
                return False
            changed = asyncio.get_running_loop().create_future()
            self._waiters.add(changed)
            if all(pause.until_ms for pause in lasting):
                self._alarm.set(max(pause.until_ms for pause in lasting), changed)
            try:
                await self._clock.wait_for(changed, left_ms)
            finally:
                self._waiters.discard(changed)
                changed.cancel()
        return True

    def _lasting(self, group: str, topic: str) -> list[Pause]:
        now_ms, get = self._clock.now_ms(), self._pauses.get
        found = [pause for key in ((group, ""), (group, topic), ("", topic)) if (pause := get(key)) is not None]
        return [pause for pause in found if pause.lasts(now_ms)]

    # --- operators --------------------------------------------------------------------------------------------------

    def of(self, group: str, topics: Container[str] = ()) -> list[consumer_pb2.GroupPause]:
        """The pauses of a group, and those of these topics for all groups, by topic. Without a group: of all topics for
        all groups."""
        return [
            consumer_pb2.GroupPause(topic=topic, since_ms=pause.since_ms, until_ms=pause.until_ms, all_groups=not name)
            for (name, topic), pause in sorted(self.all().items(), key=lambda one: (one[0][1], one[0][0]))
            if name == group or (not name and topic in topics)
        ]

    def all(self) -> Pauses:
        """All that last. Other threads call it too."""
        now_ms = self._clock.now_ms()
        return {key: pause for key, pause in self._pauses.items() if pause.lasts(now_ms)}

    async def pause(self, request: consumer_pb2.PauseGroupRequest) -> consumer_pb2.GroupPauses:
        """Effective and durable on return; replaces an earlier pause of the same topic, or of the whole group. Without
        a name: of the topic for all groups.

        Raises:
            InvalidArgument: a field is wrong, or the end is not in the future.
            PausesExhausted: there are too many.
            ReadOnly, DiskFull: it is not durable.
        """
        _check_names(request)
        now_ms, until_ms = self._clock.now_ms(), request.until_ms
        end = request.WhichOneof("end")
        if end == "for_ms":
            refuse(within("for_ms", request.for_ms, 1, DELAY_MS_MAX))
            until_ms = now_ms + request.for_ms
        elif end is not None and not now_ms < until_ms <= now_ms + DELAY_MS_MAX:
            late = "is not in the future" if until_ms <= now_ms else "is more than ten years ahead"
            raise InvalidArgument([Violation("until_ms", f"{until_ms} {late}: now is {now_ms} at this shard")])
        key = request.name, request.topic
        known = self.all()
        since_ms = known[key].since_ms if key in known else now_ms
        await self._change({key: Pause(since_ms, until_ms)})
        log.info("group is paused", group=request.name, topic=request.topic, until_ms=until_ms)
        return self._answer(request)

    async def resume(self, request: consumer_pb2.ResumeGroupRequest) -> consumer_pb2.GroupPauses:
        """As `pause`. Without a topic all pauses of the group end."""
        _check_names(request)
        known = {**self._pauses, **self._ahead}
        ended = [key for key in known if key[0] == request.name and request.topic in ("", key[1])]
        if ended:
            await self._change(dict.fromkeys(ended))
            log.info("group is resumed", group=request.name, topic=request.topic)
        return self._answer(request)

    def _answer(self, request: PauseRequest) -> consumer_pb2.GroupPauses:
        found = self.of(request.name)
        return consumer_pb2.GroupPauses(pauses=[one for one in found if request.name or one.topic == request.topic])

    def learn(self, group: str, named: consumer_pb2.GroupPause | None) -> None:
        """Applies the pause of a group in all topics that a gateway names: this shard may have joined after it began.
        It need not be durable: the first receive after a start names it again."""
        changed = {key: pause for key, pause in self._pauses.items() if key != (group, "")}
        if named is not None:
            changed[group, ""] = Pause(named.since_ms, named.until_ms)
        if changed != self._pauses:
            self._pauses = changed
            self._edition += 1
            self._wake()

    async def forget(self, group: str) -> None:
        """Ends the pauses of a deleted group."""
        await self.resume(consumer_pb2.ResumeGroupRequest(name=group))
        self._wake()

    async def forget_topic(self, topic: str) -> None:
        """Ends the pauses of a deleted topic, and waits for it. Raises: DiskFull, ReadOnly."""
        self._wake()
        ended = [key for key in {**self._pauses, **self._ahead} if key[1] == topic]
        if ended:
            await self._change(dict.fromkeys(ended))

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _change(self, changes: Mapping[tuple[str, str], Pause | None]) -> None:
        """Makes changes durable; None: the pause ends."""
        self._store.gate.check_write()
        known = {key: pause for key, pause in {**self.all(), **self._ahead}.items() if pause is not None}
        for key, pause in changes.items():
            if pause is not None:
                _check_new(known, key)
        for key, pause in changes.items():
            self._ahead[key] = pause
            group, topic = key
            self._store.journal.change(StateChange(PAUSES, f"{topic}@{group}", pause and list(pause)))
        await self._flusher.events_durable()

    def _learn(self, change: StateChange) -> None:
        """Applies a published change."""
        topic, _, group = change.key.rpartition("@")
        key, pause = (group, topic), None if change.value is None else Pause(*change.value)
        changed = {**self.all(), key: pause}
        self._pauses = {known: lasting for known, lasting in changed.items() if lasting is not None}
        if key in self._ahead and self._ahead[key] == pause:
            del self._ahead[key]
        self._edition += 1
        self._wake()

    def capture(self) -> Callable[[], Awaitable[None]] | None:
        """See duetime_store.recovery.checkpointer.CheckpointKeeper."""
        edition, pauses = self._edition, self._pauses
        if edition == self._written:
            return None

        async def write() -> None:
            await self._worker.run(self._write, pauses)
            self._written = edition

        return write

    def _write(self, pauses: Pauses) -> None:
        """On the worker's thread."""
        directory = self._worker.directory
        rows = [
            {"group": group, "topic": topic, "sinceMs": pause.since_ms, "untilMs": pause.until_ms}
            for (group, topic), pause in sorted(pauses.items())
        ]
        configs.write(directory.disk, directory.config, FILE, {"pauses": rows})


def _check_names(request: PauseRequest) -> None:
    """Raises: InvalidArgument."""
    if request.name or not request.topic:
        check_group(request.name)


def _check_new(known: Pauses, key: tuple[str, str]) -> None:
    """Raises: PausesExhausted."""
    of_group = sum(group == key[0] for group, _ in known) if key[0] else 0
    for count, limit, owner in ((of_group, GROUP_PAUSES_MAX, key[0]), (len(known), SHARD_PAUSES_MAX, "the shard")):
        if key not in known and count >= limit:
            raise PausesExhausted(f"{owner} has {count} pauses; the limit is {limit}: resume some, or pause all topics")


def _parsed(content: Mapping[str, Any] | None) -> Pauses:
    """The pauses of the file's content; rows that are not of the form are left out."""
    rows = (content or {}).get("pauses")
    found: dict[tuple[str, str], Pause] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            texts, times = (row.get("group"), row.get("topic")), (row.get("sinceMs"), row.get("untilMs"))
            match (*texts, *times):
                case (str(group), str(topic), int(since_ms), int(until_ms)):
                    found[group, topic] = Pause(since_ms, until_ms)
    return found
