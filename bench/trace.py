"""The time of a trace beside a long journal of groups, with and without the index: `python -m bench.trace`.

A store is filled with messages that are received and acknowledged one by one, each event in a record of its own as at
low rates, until the journal has its size. Two messages are special: one was done at once, the other was retried
`RETRIES` times, spread over the whole journal. Both are traced by the index, and by reading the journal in order, the
method for journals of releases before 0.2: up to 64 MiB.
"""

import argparse
import asyncio
import logging
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import structlog
from duetime.v1 import consumer_pb2, store_pb2, store_pb2_grpc
from duetime_core.clock import SystemClock
from duetime_core.rpc.serving import make_channel
from duetime_format import events, record
from duetime_format.events import PlaceKey
from duetime_format.names import GROUPS_TOPIC, retry_topic
from duetime_format.properties import encode_properties, value_of
from duetime_format.ranges import ranges
from duetime_store.finding.index import ENTRY
from duetime_store.log.intake import parse
from duetime_store.log.journal import Journal, event_records
from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings
from duetime_store.writing.indexed import IndexedJournals
from duetime_store.writing.staging import PutOutcome
from rich.console import Console
from rich.table import Table

GROUP, TOPIC = "billing", "orders"
RETRY = retry_topic(GROUP)
JOURNAL_BYTES = 1_000_000_000
RETRIES = 16
STEP = 512
TURNS, SLOW_TURNS = 20, 3
BODY = b"x" * 128


@dataclass(frozen=True, slots=True)
class At:
    """A group's offset in a queue."""

    number: int
    key: PlaceKey


PLACE, RETRIED = At(1, PlaceKey(GROUP, TOPIC, TOPIC, 0)), At(2, PlaceKey(GROUP, TOPIC, RETRY, 0))


class Filling:
    """Stages messages and events, one step of them at once."""

    def __init__(self, node: StoreNode) -> None:
        self.node = node
        self.store = node.store
        self.journal = node.store.queues.get_bytes(GROUPS_TOPIC.encode(), 0)
        self.lease = 0
        self.words = self.word_bytes = self.bytes = self.records = 0

    def put(self, topic: str, *ids: str) -> list[int]:
        """Returns the messages' offsets."""
        named = (record.with_crc_mark(encode_properties({"UNIQ_KEY": one})) for one in ids)
        records = [record.encode(record.Record(topic, 0, BODY, properties)) for properties in named]
        return self.store.put(b"".join(records)).queue_offsets

    def deliver(self, place: At, offset: int, copy: events.Letter | None = None) -> list[bytes]:
        """The two records of a message that is received, and acknowledged or settled by a copy."""
        self.lease += 1
        now_ms, one = self.store.clock.now_ms(), ranges([offset])
        fixed = place.number, self.lease, now_ms, now_ms + 30_000, RETRIES, False, False, 1, offset, offset + 1
        given = events.GiveEvent(*fixed, (), one)
        end: events.GroupEvent = events.EndEvent(place.number, self.lease, one)
        if copy is not None:
            end = events.SettleEvent(place.number, self.lease, offset, copy)
        journal = Journal()
        journal.add(given, place)
        journal.add(end, place)
        since = self.store.indexed.groups_since
        return [encoded for entry in journal.entries for encoded in event_records([entry], now_ms, since)]

    async def stage(self, records: list[bytes]) -> None:
        """Returns when they are durable."""
        before = self.journal.max_offset
        self.store.stage_sent(parse(b"".join(records)), PutOutcome([], stored_at_ms=self.store.clock.now_ms()))
        future = self.store.when_durable()
        self.node.parts.flusher.wake()
        if future is not None:
            await future
        self.measure(before, self.journal.max_offset)

    async def fill(self, journal_bytes: int, progress: Console) -> int:
        """Returns the number of messages in the journal."""
        first, retried = self.put(TOPIC, "first", "retried")
        await self.stage(self.deliver(PLACE, first))
        place, tries, count = PLACE, 0, 2
        while self.bytes < journal_bytes:
            records: list[bytes] = []
            if self.bytes >= journal_bytes * tries // (RETRIES + 1) and tries < RETRIES:
                (offset,) = self.put(RETRY, "retried")
                records += self.deliver(place, retried, (RETRY, 0, offset))
                retried, place, tries = offset, RETRIED, tries + 1
            for offset in self.put(TOPIC, *(f"m{count + number:09d}" for number in range(STEP))):
                records += self.deliver(PLACE, offset)
            count += STEP
            await self.stage(records)
            if not count // STEP % 200:
                progress.print(f"{self.bytes / 1e6:,.0f} MB of journal")
        await self.stage(self.deliver(place, retried))
        return count

    def measure(self, first: int, end: int) -> None:
        """Counts the journal's records in [first, end)."""
        while first < end:
            units = self.journal.read(first, end - first)
            self.bytes += int(units["size"].sum())
            self.records += len(units)
            first += len(units)
        position, size, _ = units[-1].item()
        properties = record.decode(self.store.read_record(position, size)).properties
        keys = value_of(properties, b"KEYS")
        self.words += len(units) * len(keys.split(b" "))
        self.word_bytes += len(units) * (len(properties) - len(record.with_crc_mark(b"")))


async def traced(stub: Any, message_id: str, turns: int) -> tuple[list[float], consumer_pb2.TraceMessageResponse]:
    """Times in ms, and the last answer."""
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        answer = await stub.TraceMessage(consumer_pb2.TraceMessageRequest(id=message_id), timeout=600)
        times.append((time.perf_counter() - began) * 1_000)
    return times, answer


async def run(root: Path, journal_bytes: int, progress: Console) -> Table:
    settings = StoreSettings.model_validate({"data_dir": root, "metrics_port": -1})
    node = StoreNode(settings, SystemClock())
    await node.start()
    channel = make_channel(f"127.0.0.1:{node.port}")
    stub: Any = store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
    try:
        await stub.PutTopic(store_pb2.PutTopicRequest(name=TOPIC, queue_count=1))
        await stub.PutTopic(store_pb2.PutTopicRequest(name=RETRY, queue_count=1))
        filling = Filling(node)
        count = await filling.fill(journal_bytes, progress)
        title = (
            f"{filling.bytes / 1e6:,.0f} MB of journal, {filling.records:,} records about {count:,} messages; words: "
            f"{filling.word_bytes / filling.records:.1f} bytes of a record of {filling.bytes / filling.records:.0f}, "
            f"{filling.words * ENTRY.size / filling.records:.1f} bytes of index"
        )
        table = Table("message", "events", "by the index, ms: p50, max", "in order, ms: p50, max", "gaps", title=title)
        for message_id in ("first", "retried", f"m{count - 1:09d}"):
            quick, answer = await traced(stub, message_id, TURNS)
            with patch.object(IndexedJournals, "since", lambda self, topic: 1 << 60):
                slow, other = await traced(stub, message_id, SLOW_TURNS)
            cells = (f"{statistics.median(times):,.1f}, {max(times):,.1f}" for times in (quick, slow))
            table.add_row(message_id, str(len(answer.events)), *cells, f"{len(answer.gaps)}, {len(other.gaps)}")
        return table
    finally:
        await channel.close()
        await node.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trace", description=__doc__)
    parser.add_argument("--journal", type=int, default=JOURNAL_BYTES, metavar="BYTES", help="size of the journal")
    parser.add_argument("--directory", default="/var/tmp", help="directory of the data; on a disk")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory(prefix="duetime-bench-", dir=arguments.directory) as root:
        table = asyncio.run(run(Path(root), arguments.journal, Console(stderr=True)))
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
