"""Moves open half messages of a broker with transactions in RocksDB into the half topic, where a store finds them.

Each is written there once more, and an op record of the broker's form ends the first one. So no later start, reader or
broker takes it for open a second time. A kill between the two repeats nothing: the half topic has the message.
"""

from collections.abc import Mapping

import numpy as np
import structlog
from duetime_format import halves
from duetime_format.units import Ints
from duetime_shard.brokers.halves import (
    KEY,
    MOVED,
    RocksdbHalf,
    known_checks,
    moved_record,
    op_record,
    open_halves,
)
from duetime_shard.disk import LocalFiles

from duetime_store.files import configs
from duetime_store.files.directory import StoreDirectory
from duetime_store.log.intake import parse
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.staging import PutOutcome
from duetime_store.writing.store import Store

log = structlog.get_logger()

# Half messages staged in one piece.
_AT_ONCE = 256


def move_halves(store: Store, directory: StoreDirectory, table: OpenTransactions, timeout_ms: int) -> int:
    """Stages them; they are open once they are durable. Returns their number.

    Raises:
        OSError.
    """
    queue = store.queues.known(KEY[0].encode(), KEY[1])
    known = configs.read(directory.config, configs.STORE) or {}
    first = known.get(MOVED, 0)
    if queue is None or not isinstance(first, int) or queue.max_offset <= max(first, queue.min_offset):
        return 0
    offsets: Ints = np.arange(max(first, queue.min_offset), queue.max_offset)
    found = open_halves(LocalFiles(directory.root), offsets, queue.read_at(offsets), store.log.end)
    if not found:
        configs.write(directory.disk, directory.config, configs.STORE, {**known, MOVED: queue.max_offset})
        return 0
    checks = known_checks(configs.read(directory.config, configs.CONSUMER_OFFSETS))
    for at in range(0, len(found), _AT_ONCE):
        _move(store, table, found[at : at + _AT_ONCE], checks, timeout_ms)
    log.info("transactions of RocksDB moved", transactions=len(found))
    return len(found)


def _move(
    store: Store, table: OpenTransactions, found: list[RocksdbHalf], checks: Mapping[int, int], timeout_ms: int
) -> None:
    now_ms = store.clock.now_ms()
    outcome = PutOutcome([], stored_at_ms=now_ms)
    counts = [checks.get(half.record.position, 0) for half in found]
    records = (moved_record(half.record, count) for half, count in zip(found, counts, strict=True))
    store.stage_sent(parse(b"".join(records)), outcome)
    for half in found:
        store.stage_own(op_record(half.record, now_ms))
    groups = [halves.group_of(half.record.properties) for half in found]
    immune_ms = [halves.immunity_ms(half.record.properties, timeout_ms) for half in found]
    offsets = np.array(outcome.queue_offsets, np.int64)
    checks_at_ms, stored_at_ms = now_ms + np.array(immune_ms, np.int64), np.full(len(found), now_ms, np.int64)

    def settled(durable: bool) -> None:
        if durable:
            table.add(offsets, groups, checks_at_ms, stored_at_ms, np.array(counts, np.int64))

    store.staged.settles.append(settled)
