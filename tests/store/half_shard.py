"""A shard with half messages, opened without a process around it: its writer's steps are called by hand."""

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, cast

import numpy as np
from duetime.v1 import store_pb2, transactions_pb2
from duetime_store.metrics import StoreMetrics
from duetime_store.reading.turns import ScanTurns
from duetime_store.recovery.recovery import OpenedStore
from duetime_store.transactions import tablefile
from duetime_store.transactions.ending import Result, TransactionResolver
from duetime_store.transactions.preparing import PreparedHalves, TransactionPreparer
from duetime_store.transactions.results import SendResultMaker
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store
from duetime_store.writing.watch import DiskWatch
from prometheus_client import CollectorRegistry

from tests.store.conftest import Shard
from tests.store.transacting import end_of, half, staged_ends


def idle_flusher(store: Store) -> Flusher:
    """A flusher that is not run: tests flush by hand."""
    watch, executor, metrics = cast("DiskWatch", None), cast("Executor", None), StoreMetrics(CollectorRegistry())
    return Flusher(store, watch, executor, store.clock, metrics, sync=True, interval_ms=500)


class HalfShard(Shard):
    """See the module. Messages are named by their ids; their halves are remembered."""

    halves: dict[str, store_pb2.Half]

    def open(self) -> OpenedStore:
        opened = super().open()
        self.table = opened.transactions
        flusher = idle_flusher(self.store)
        timeout_ms = self.settings.transaction_timeout_ms
        self.preparing = TransactionPreparer(self.store, self.table, flusher, timeout_ms=timeout_ms)
        self.ending = TransactionResolver(
            self.store, self.table, SendResultMaker(self.store, shard=0), flusher, ScanTurns()
        )
        return opened

    def prepare(self, *ids: str, **more: Any) -> PreparedHalves:
        """Durable on return."""
        prepared = self.preparing.stage(b"".join([half(one, **more) for one in ids]))
        self.flush()
        self.halves = getattr(self, "halves", {})
        for one, offset, position in zip(ids, prepared.outcome.queue_offsets, prepared.positions, strict=True):
            self.halves[one] = store_pb2.Half(offset=offset, position=position)
        return prepared

    def stage(self, decisions: dict[str, int], *, given_up: bool = False) -> list[Result]:
        ends = [end_of(self.halves[one], one, decision) for one, decision in decisions.items()]
        return staged_ends(self.ending, "g", ends, given_up=given_up)

    def end(self, decisions: dict[str, int], *, given_up: bool = False) -> list[Result]:
        """Durable on return."""
        results = self.stage(decisions, given_up=given_up)
        self.flush()
        return results

    def states(self, ids: Sequence[str]) -> list[tuple[int, bool]]:
        """Answers of ends that leave the transactions open."""
        results = self.stage(dict.fromkeys(ids, transactions_pb2.DECISION_UNKNOWN))
        return [(one.state, one.duplicate) for one in results]

    def checkpoint(self) -> None:
        """With the table of transactions."""
        self.store.halves.write()
        data = tablefile.encode(self.table.snapshot(), self.store.published_end)
        tablefile.write(self.directory.disk, self.root, data)
        super().checkpoint()

    @property
    def open_offsets(self) -> list[int]:
        return self.table.page(-1, "", 1_000_000).offsets.tolist()

    def tags(self, ids: Sequence[str]) -> list[int]:
        """The tagsCodes in units, as a file has them."""
        queue = self.store.halves.queue
        assert queue is not None
        found: list[int] = queue.read_at(np.array([self.halves[one].offset for one in ids]))["tags"].tolist()
        return found
