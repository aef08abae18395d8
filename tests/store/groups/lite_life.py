"""The lives of a group (group_life.py) that receives lite topics of the topic.

Beside the promises there, which hold in each lite topic: its messages are given in order, one lease at a time, and
after each crash the index has all of them.
"""

from duetime_core.errors import Overloaded, ReadOnly
from duetime_format import receipts, record
from duetime_format.events import PlaceKey
from duetime_format.names import lite_key
from duetime_format.properties import decode_properties
from duetime_store.groups.fetch import FetchRequest, LeasedBatch
from duetime_store.groups.holds import GroupPlace
from duetime_store.groups.lines import WaiterLines
from duetime_store.groups.lites import LiteFetcher, LitePlaces
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.lites import Lites
from duetime_store.reading.lites import LiteFiller
from duetime_store.reading.turns import ScanTurns
from duetime_store.recovery.checkpointer import CheckpointKeeper
from prometheus_client import CollectorRegistry

from tests.store.conftest import reader_of, sent, unhurried
from tests.store.groups.group_life import GROUP, SHARD, TOPIC, WANTED, GroupLife
from tests.store.life_lanes import TIMERS
from tests.store.life_sends import Message

NAMES = ("a", "b", "c")
KEYS = {name: lite_key(TOPIC, name) for name in NAMES}
# No lite topic is forgotten.
KEEP_MS = 1 << 50


class LiteLife(GroupLife):
    """See the module."""

    def make_keepers(self) -> list[CheckpointKeeper]:
        keepers = super().make_keepers()
        metrics = StoreMetrics(CollectorRegistry())
        reader = reader_of(self.store, metrics)
        self.lites = Lites(len(NAMES), metrics)
        queues, clock = self.store.queues, self.store.clock
        places = LitePlaces(self.groups.progress, WaiterLines())
        self.filler = LiteFiller(queues, clock, reader, self.lites, ScanTurns(), places, keep_ms=KEEP_MS)
        self.lite_fetcher = LiteFetcher(queues, clock, reader, self.groups, self.lites, self.filler, {})
        return keepers

    def _sent(self, message_id: str, message: Message, body: bytes) -> bytes:
        if message.topic != TOPIC or message.level == TIMERS:
            return super()._sent(message_id, message, body)
        lite = {record.LITE_TOPIC: NAMES[int(message_id[1:]) % len(NAMES)]}
        return sent(message_id, topic=TOPIC, queue=message.queue, level=message.level, body=body, **lite)

    async def _receive(self, count: int, invisible_ms: int) -> None:
        keys = tuple(self.dice.sample([*KEYS.values()], 2))
        asked = FetchRequest(
            *(GROUP, TOPIC, (0,), (), count, 1 << 20, invisible_ms, 0, WANTED, 1_000),
            ordered=True,
            start_at_ms=0,
            member="",
            caller="host",
            lites=keys,
        )
        if self.store.queues.known(TOPIC.encode(), 0) is None:
            return
        try:
            self.store.gate.check_write()
            self.filler.watch(TOPIC)
            self.groups.expire()
            before = {key: _state(place) for key in keys if (place := self._place(key)) is not None}
            given = self.lite_fetcher.fetch_lites(asked, keys, unhurried(), peek=False).given
        except (ReadOnly, Overloaded):
            return
        for one in given:
            self._check_given(one, *before.get(one.lease.place.key.topic, (False, set(), 0)))
            self.given.append((one, receipts.pack(SHARD, one.lease.id, one.offsets)))

    def _check_given(self, one: LeasedBatch, is_blocked: bool, returned: set[int], frontier: int) -> None:
        offsets = one.offsets
        assert not is_blocked, "a lite topic has two leases"
        assert not self.done & set(offsets), "what is done comes back"
        assert offsets == sorted(offsets)
        assert set(offsets) <= returned if returned else min(offsets) >= frontier, "the order is lost"
        at = 0
        for size in one.sizes:
            properties = decode_properties(record.decode(one.records[at : at + size]).properties)
            assert KEYS[properties[record.LITE_TOPIC]] == one.lease.place.key.topic
            at += size

    def _place(self, key: str) -> GroupPlace | None:
        return self.groups.progress.places.get(PlaceKey(GROUP, key, TOPIC, 0))

    # --- checks ----------------------------------------------------------------------------------------------------

    def check_group(self) -> None:
        queue = self.store.queues.known(TOPIC.encode(), 0)
        if queue is None:
            assert not self.done
            return
        self.filler.watch(TOPIC)
        there = self._copies_there()
        assert self.settled <= there, "a copy that was answered is gone"
        copied = {self.copies[message_id] for message_id in there}
        ended = set[int]()
        for name, own in self._written().items():
            lite, place = self.lites.get(KEYS[name]), self._place(KEYS[name])
            assert own == ([] if lite is None else lite.after(0, 0, len(own) + 1)), "the index lacks messages"
            done = self.done & set(own)
            if place is None:
                assert not done, f"{done} of {name} were done and come back"
                continue
            outstanding, read = set(place.entries), {offset for offset in own if offset < place.frontier}
            assert place.frontier <= queue.max_offset
            assert not done & outstanding, f"{done & outstanding} of {name} were done and come back"
            assert done <= read, f"{done - read} of {name} were done and come back"
            skipped = read - outstanding - self.tried - copied
            assert not skipped, f"{skipped} of {name} were given to nobody and count as done"
            ended |= read - outstanding
        self.settled |= there
        self.done |= ended

    def _written(self) -> dict[str, list[int]]:
        """The offsets of each lite topic's intact messages in the queue."""
        found: dict[str, list[int]] = {name: [] for name in NAMES}
        for topic, queue, offset, one in self.found():
            if (topic, queue) == (TOPIC, 0) and one is not None:
                name = decode_properties(one.properties).get(record.LITE_TOPIC)
                if name is not None:
                    found[name].append(offset)
        return found


def _state(place: GroupPlace) -> tuple[bool, set[int], int]:
    """Whether it has a lease, its outstanding offsets, and its frontier."""
    return place.is_blocked, set(place.entries), place.frontier
