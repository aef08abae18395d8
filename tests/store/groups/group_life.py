"""The lives of a shard (tests/store/life.py) whose messages a group receives.

After each crash, every message that was given out is in one of these states:

    acknowledged, and answered so      done: it is never redelivered
    settled, and answered so           done, and its copy is stored once
    else                               outstanding, or not given out yet; or done because an unanswered Ack or copy
                                       reached the log

A message in none of these states, and not ahead of the group, was skipped.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from duetime_core.errors import DiskFull, Overloaded, ReadOnly
from duetime_format import receipts, record
from duetime_format.events import PlaceKey
from duetime_format.names import GROUPS_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record
from duetime_store.groups import loading, snapshot
from duetime_store.groups.fetch import Fetcher, FetchRequest, LeasedBatch
from duetime_store.groups.groups import OK, GroupRegistry, OpenMessage
from duetime_store.groups.lines import WaiterLines
from duetime_store.groups.offsets import CommittedOffsets
from duetime_store.groups.persistence import GroupKeeper
from duetime_store.metrics import StoreMetrics
from duetime_store.reading.filters import Filter
from duetime_store.recovery.checkpointer import CheckpointKeeper
from duetime_store.writing.settling import settle_records
from prometheus_client import CollectorRegistry

from tests.store.conftest import reader_of, unhurried
from tests.store.life import Life, Message

GROUP, TOPIC, RETRY = "g", "orders", "%RETRY%g"
KEY = PlaceKey(GROUP, TOPIC, TOPIC, 0)
SHARD = 1
WANTED = Filter.parse("")


class GroupLife(Life):
    """See the module. Messages of queue 0 of TOPIC are given out; a copy is named after the message and its queue."""

    def __init__(self, root: Path, dice: random.Random, *, mode: str = "sync") -> None:
        # Offsets by their known state; `tried` may be done, `done` is.
        self.tried: set[int] = set()
        self.done: set[int] = set()
        # Offset by the id of the copy that may exist, and ids of copies that must exist.
        self.copies: dict[str, int] = {}
        self.settled: set[str] = set()
        self.given: list[tuple[LeasedBatch, list[bytes]]] = []
        self.waiting: list[tuple[Any, set[int], set[str]]] = []
        self.faults = 0
        super().__init__(root, dice, mode=mode)

    def make_keepers(self) -> list[CheckpointKeeper]:
        self.waiting.clear()
        self.given.clear()
        assert self.directory is not None
        offsets = self.offsets = CommittedOffsets(self.worker, self.store, self.opened.offsets)
        path = self.root / snapshot.FILE
        state = loading.load(path, self.store, offsets)
        self.faults = state.faults
        store = self.store
        state.progress.bound(leases_max=10_000, groups_max=9, places_max=9)
        self.groups = GroupRegistry(
            *(store.queues, store.gate, store.clock, store.journal),
            state.progress,
            state.gone,
            WaiterLines(),
            shard=SHARD,
        )
        reader = reader_of(self.store, StoreMetrics(CollectorRegistry()))
        self.fetcher = Fetcher(self.store.queues, self.store.clock, reader, self.groups)
        return [GroupKeeper(self.store, self.groups, offsets, self.flusher, self.worker)]

    # --- steps ------------------------------------------------------------------------------------------------------

    def receive(self, count: int, invisible_ms: int) -> None:
        self.run(self._receive(count, invisible_ms))

    async def _receive(self, count: int, invisible_ms: int) -> None:
        asked = FetchRequest(
            GROUP,
            TOPIC,
            (0,),
            (),
            count,
            1 << 20,
            invisible_ms,
            0,
            WANTED,
            1_000,
            ordered=False,
            start_at_ms=0,
            member="",
            caller="host",
        )
        try:
            self.store.gate.check_write()
            place = self.groups.progress.places.get(KEY) or self.groups.new_place(KEY, 0)
            if self.store.queues.known(TOPIC.encode(), 0) is None:
                return
            fetched = self.fetcher.fetch(asked, [place], [], unhurried(), fresh_first=False, peek=False)
        except (ReadOnly, Overloaded):
            return
        for one in fetched.given:
            assert not self.done & set(one.offsets), "what is done comes back"
            self.given.append((one, receipts.pack(SHARD, one.lease.id, one.offsets)))

    def ack(self, share: float) -> None:
        self.run(self._ack(share))

    async def _ack(self, share: float) -> None:
        """Of the last leases."""
        names = [name for _, own in self.given[-3:] for name in own if self.dice.random() < share]
        try:
            statuses = self.groups.ack(GROUP, names)
        except ReadOnly:
            return
        ended = {receipts.parse(name).offset for name, status in zip(names, statuses, strict=True) if status == OK}
        self.tried |= ended
        self._wait(self.store.when_events_durable(), ended, set())

    def settle(self, count: int) -> None:
        self.run(self._settle_some(count))

    async def _settle_some(self, count: int) -> None:
        """Copies of messages of the last lease, each with the end of its lease."""
        records, found = [], []
        for name in self.given[-1][1] if self.given else ():
            one = self.groups.open_one(GROUP, name)
            if isinstance(one, OpenMessage) and len(found) < count:
                found.append(one)
                self._count += 1
                message_id = f"m{self._count}"
                self.messages[message_id] = Message(RETRY, 0, 0)
                properties = record.with_crc_mark(encode_properties({"UNIQ_KEY": message_id}))
                records.append(record.encode(Record(RETRY, 0, message_id.encode() * 300, properties)))
                self.copies[message_id] = one.offset
        if not found:
            return
        ids = list(self.copies)[-len(found) :]

        def settle(index: int, topic: str, queue: int, offset: int) -> Any:
            return self.groups.settle(found[index], (topic, queue, offset))

        try:
            settle_records(self.store, b"".join(records), (), settle)
        except (DiskFull, ReadOnly):
            for message_id in ids:
                del self.copies[message_id]
                self._refuse([message_id])
            return
        self._wait(self.store.when_durable(), {one.offset for one in found}, set(ids))

    def _wait(self, durable: Any, ended: set[int], ids: set[str]) -> None:
        if durable is None:
            self.done |= ended
            return
        self.waiting.append((durable, ended, ids))
        self._settle()

    def _settle(self) -> None:
        super()._settle()
        waiting = []
        for durable, ended, ids in self.waiting:
            if not durable.done():
                waiting.append((durable, ended, ids))
            elif durable.exception() is None:
                self.done |= ended
                self.settled |= ids
            elif isinstance(durable.exception(), DiskFull):
                self._refuse(ids)
        self.waiting = waiting

    def flush(self, meanwhile: int = 0) -> None:
        if self.store.journal.entries and not self.store.gate.failed:
            self.store.stage_events()
        super().flush(meanwhile)

    def random_step(self) -> None:
        dice, at = self.dice, self.dice.random()
        if at < 0.15:
            self.step(self.receive, dice.randint(1, 20), dice.choice([1_000, 60_000]))
        elif at < 0.30:
            self.step(self.ack, dice.choice([0.3, 0.9]))
        elif at < 0.45:
            self.step(self.settle, dice.randint(1, 8))
        elif at < 0.60:
            self.step(self.flush)
        else:
            super().random_step()

    # --- checks ----------------------------------------------------------------------------------------------------

    def found(self) -> Iterator[tuple[str, int, int, Record | None]]:
        """But for the journal."""
        return (one for one in super().found() if one[0] != GROUPS_TOPIC)

    def check(self) -> None:
        super().check()
        self.check_group()

    def check_group(self) -> None:
        """Compares the group with the model, and updates the model."""
        place = self.groups.progress.places.get(KEY)
        queue = self.store.queues.known(TOPIC.encode(), 0)
        if place is None or queue is None:
            assert not self.done
            return
        there = self._copies_there()
        assert self.settled <= there, "a copy that was answered is gone"
        copied = {self.copies[message_id] for message_id in there}
        outstanding = set(place.entries)
        assert place.frontier <= queue.max_offset
        assert not self.done & outstanding, f"{self.done & outstanding} were done and come back"
        assert all(offset < place.frontier for offset in self.done)
        gone = set(range(place.frontier)) - outstanding - self.tried - copied
        damaged = {offset for offset in gone if self._is_torn(offset)}
        assert not gone - damaged, f"{gone - damaged} were given to nobody and count as done"
        # A found copy stays for good.
        self.settled |= there
        self.done |= set(range(place.frontier)) - outstanding

    def _copies_there(self) -> set[str]:
        found = []
        for topic, _, _, one in self.found():
            if topic == RETRY and one is not None:
                found.append(decode_properties(one.properties)["UNIQ_KEY"])
        assert len(set(found)) == len(found)
        return set(found)

    def _is_torn(self, offset: int) -> bool:
        return all(one is None for topic, queue, at, one in self.found() if (topic, queue, at) == (TOPIC, 0, offset))
