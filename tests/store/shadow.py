"""A copy that follows a life's shard: its log gets the committed bytes, and its store is read from them, step by step.

At any commit that store has to equal one that is opened from the log alone.
"""

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from duetime_core.clock import Clock
from duetime_format.lanes import LanePlace, lane_of
from duetime_format.layout import stored_at
from duetime_format.names import STATE_TOPIC
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.disk import Disk
from duetime_store.files.reserve import Reserve
from duetime_store.files.worker import FileWorker
from duetime_store.groups import snapshot
from duetime_store.lanes.alarm import ShardClock
from duetime_store.log.commitlog import CommitLog
from duetime_store.metrics import StoreMetrics
from duetime_store.parts import FileThreads, StoreBase, StoreParts, make_parts
from duetime_store.reading.turns import ScanTurns
from duetime_store.recovery.following import Follower
from duetime_store.recovery.recovery import OpenedStore, open_store
from duetime_store.settings import StoreSettings
from duetime_store.writing.committing import Alone, Committer
from duetime_store.writing.store import Store
from prometheus_client import CollectorRegistry

from tests.store.counted import cells, check_counts
from tests.store.here import Here
from tests.store.life import Life


class Shadow:
    """See the module. `saved`: checkpoints that it wrote."""

    def __init__(self, root: Path, settings: StoreSettings, clock: Clock) -> None:
        self.settings = settings.model_copy(update={"data_dir": root})
        self.clock, self.saved = clock, 0
        self.directory = StoreDirectory(root)
        self.log = CommitLog(Disk(), self.directory.commit_log, settings.segment_bytes)
        self._begin()

    def _begin(self) -> None:
        self.follower = Follower(self.directory, self.settings, self.clock, Here(), self._save)

    def parts(self, directory: StoreDirectory, opened: OpenedStore) -> StoreParts:
        registry, disk = CollectorRegistry(), directory.disk
        reserve, worker = Reserve(disk, directory.root, 0), FileWorker(directory, Here())
        threads = FileThreads(Here(), Here(), Here(), Here())  # type: ignore[arg-type]
        base = StoreBase(
            *(self.settings, self.clock, disk, StoreMetrics(registry), registry),
            *(threads, directory, reserve, worker, ScanTurns(), Alone()),
        )
        return make_parts(base, opened)

    async def _save(self, opened: OpenedStore) -> None:
        self.saved += await self.parts(self.directory, opened).checkpointer.write()

    async def follow(self, leader: Store) -> None:
        """Takes all that is committed since the last call."""
        end, size = leader.durable_end, self.log.segment_bytes
        while self.log.end < end:
            position = self.log.end
            data = leader.log.read(position, min(end - position, size - position % size))
            assert data, f"the leader has no bytes at {position}"
            self.log.write([(position, [data])])
        await self.follower.step(self.log, end)

    async def compare(self, folder: Path) -> None:
        """The store up to here equals that of a start from the log alone. Then the copy starts again."""
        opened = await self.follower.open(self.log, self.log.end)
        own = state_of(opened, self.parts(self.directory, opened))
        let_go(opened)
        self.follower.close()
        self._begin()
        shutil.copytree(self.directory.commit_log, folder / "commitlog")
        directory = StoreDirectory(folder)
        started = open_store(directory, self.settings, ShardClock(self.clock), Here())
        expected = state_of(started, self.parts(directory, started))
        let_go(started)
        started.store.log.close()
        directory.close()
        shutil.rmtree(folder)
        for part, wanted in expected.items():
            assert own[part] == wanted, part

    def close(self) -> None:
        self.follower.close()
        self.log.close()
        self.directory.close()


def let_go(opened: OpenedStore) -> None:
    """Closes the store's files but the log."""
    opened.store.lanes.close()
    opened.store.queues.shared.close()


def state_of(opened: OpenedStore, parts: StoreParts) -> dict[str, Any]:
    """The parts of a store's state that a caller can notice."""
    store, groups = opened.store, snapshot.capture(parts.groups.progress, parts.groups.gone, 0)
    queues = [queue for queue in store.queues.all() if queue.max_offset and not lane_of(queue.topic, queue.queue)]
    receiving = {place.key.group for place, _, _ in groups.places}
    open_halves = opened.transactions.snapshot().rows()
    return {
        "end": (store.published_end, store.published_at_ms, store.queues.unit_count),
        "queues": {
            (queue.topic, queue.queue): (queue.min_offset, queue.read(0, queue.max_offset).tolist()) for queue in queues
        },
        # A leader's first record, with its levels, is staged.
        "topics": {topic: count for topic, count in store.queues.counts.items() if topic != STATE_TOPIC},
        "lanes": {
            lane.number: (
                lane.queue.max_offset,
                lane.watermark,
                lane.pending_count,
                [column.tolist() for column in lane.scan(LanePlace(-1, -1), 1 << 62, 1 << 30)[:2]],
            )
            for lane in store.lanes
        },
        "counts": counted(store),
        "ids": remembered(store),
        "halves": sorted(zip(open_halves.offsets.tolist(), open_halves.checks.tolist(), strict=True)),
        "places": {
            place.key: (frontier, {offset: _hold(hold) for offset, hold in entries.items()})
            for place, frontier, entries in groups.places
        },
        "gone": (groups.gone, groups.last_lease_id),
        # A checkpoint adds those of groups that receive, for brokers.
        "offsets": sorted(one for one in parts.offsets.all() if one[0] not in receiving),
        "settings": [str(one) for one in parts.subscription_groups.list()],
        "deletions": store.queues.deletions.all(),
    }


def remembered(store: Store) -> list[tuple[int, int]]:
    """Recent ids and their positions. A start remembers older ones, too: a run of records has the time of its last."""
    ids, since_ms = store.recent.between(0, store.published_end), store.clock.now_ms() - store.recent.window_ms
    found = zip(ids.hashes.tolist(), ids.positions.tolist(), strict=True)
    return [one for one in found if int.from_bytes(store.log.read(one[1] + stored_at(0), 8), "big") > since_ms]


def counted(store: Store) -> Counter[tuple[int, str]]:
    """Pending messages by lane and topic. Their spans depend on the time of the last survey; the table is exact."""
    check_counts(store)
    found: Counter[tuple[int, str]] = Counter()
    for (lane, topic, _, _), count in cells(store).items():
        found[lane, topic] += count
    return found


def _hold(hold: snapshot.Hold) -> tuple[object, ...]:
    return hold.state, hold.lease and hold.lease.id, hold.attempt, hold.until_ms, hold.expired, hold.history


def run_life(kind: type[Life], root: Path, seed: int, steps: int) -> int:
    """A life with a copy that follows. Returns the number of its checkpoints."""

    class LeaderLife(kind):  # type: ignore[misc,valid-type]
        def new_committer(self) -> Committer:
            committer: Committer = super().new_committer()
            committer.keeps_promises = False
            return committer

        def retain(self) -> None:
            """A shard with copies keeps all segments: the copy may be behind."""

    dice = random.Random(seed)
    life = LeaderLife(root / "leader", random.Random(seed + 1), mode="delayed")
    settings = life.settings.model_copy(update={"checkpoint_ms": 0})
    shadow = Shadow(root / "copy", settings, life.clock)
    try:
        for number in range(steps):
            life.random_step()
            if dice.random() < 0.7:
                life.loop.run_until_complete(shadow.follow(life.store))
            if number % 25 == 24:
                life.loop.run_until_complete(shadow.follow(life.store))
                life.loop.run_until_complete(shadow.compare(root / "start"))
        return shadow.saved
    finally:
        shadow.close()
        life.close()
