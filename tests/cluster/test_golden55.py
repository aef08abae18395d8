"""A cluster that starts on a directory of RocketMQ 5.5.1: each message of its manifest is there once, at its time."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from duetime_core.testing import Cluster
from duetime_core.testing.clock import FakeClock
from duetime_format import record
from duetime_format.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from duetime_format.properties import decode_properties
from duetime_format.record import Record

from tests.format import golden55
from tests.format.golden55 import NEVER, PENDING, READABLE

# All timers of the directories are due by then: a broker takes none later than three days ahead.
LONGEST_MS = 3 * 86_400_000
# The kit moves its clock on by some seconds where a service pauses on it.
LATE_MS_MAX = 600_000
Stored = dict[tuple[str, str], list[Record]]


def stored(store: Any) -> Stored:
    """Records of users' topics, retries and dead letters, by topic and id."""
    found: Stored = {}
    for queue in store.queues.all():
        if is_system_topic(queue.topic) and not queue.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        for position, size, _ in queue.last(1 << 20)[1].tolist():
            one = record.decode(store.read_record(position, size))
            found.setdefault((queue.topic, decode_properties(one.properties)["UNIQ_KEY"]), []).append(one)
    return found


def due_at_ms(found: Record) -> int:
    """Of a record that the store has restored."""
    entry = decode_properties(found.properties)[record.LANE_ENTRY]
    return int(entry.split(":")[2])


def assert_pending(found: Iterable[Record], due_ms: int, ended_at_ms: int) -> None:
    (one,) = found
    # The line's time was taken beside the send. A level counts from the broker's clock, a retry from its failure.
    assert -10 <= due_at_ms(one) - due_ms <= (60_000 if one.topic.startswith(RETRY_PREFIX) else 1_000)
    assert 0 <= one.stored_at_ms - max(due_at_ms(one), ended_at_ms) <= LATE_MS_MAX


async def delivered(root: Path, name: str) -> tuple[Stored, Stored]:
    """The messages at a start at the time of the broker's end, and three days later."""
    at_ms = golden55.ended_at_ms(name)
    kept = {"retention_ms": 2 * LONGEST_MS}
    async with Cluster(root, clock=FakeClock(at_ms), store_settings=kept) as cluster:
        store = cluster.stores[0].store
        await cluster.settle()
        first = stored(store)
        await cluster.advance(f"{LONGEST_MS}ms")
        assert sum(lane.pending_count for lane in store.lanes) == 0
        return first, stored(store)


def assert_as_the_manifest_says(name: str, first: Stored, last: Stored) -> None:
    wanted = golden55.states(name)
    for key, (state, due_ms) in wanted.items():
        assert len(first.get(key, ())) == (state == READABLE), (key, state)
        assert len(last.get(key, ())) == (state != NEVER), (key, state)
        if state == PENDING:
            assert_pending(last[key], due_ms, golden55.ended_at_ms(name))
    assert set(last) == {key for key, (state, _) in wanted.items() if state != NEVER}
    for line in golden55.lines(name, "seen"):
        (one,) = last[line["topic"], line["id"]]
        place = one.queue, one.queue_offset, one.stored_at_ms
        assert place == (line["queue"], line["offset"], line["storedAt"]), line


@pytest.mark.parametrize("name", golden55.chosen("b-timer-rocksdb", *golden55.NAMES))
async def test_each_message_is_there_once_at_its_time(name: str, tmp_path: Path) -> None:
    golden55.unpack(name, tmp_path).rename(tmp_path / "store-0")
    assert_as_the_manifest_says(name, *await delivered(tmp_path, name))
