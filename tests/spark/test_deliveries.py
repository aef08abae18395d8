"""Deliveries from the journal of groups: against the messages seen by receivers of a whole cluster, and
event by event.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.testing import Cluster
from duetime_format import receipts
from duetime_format.errors import DamagedBytes
from duetime_format.events import LAPSED, PlaceKey
from duetime_format.names import GROUPS_TOPIC
from duetime_spark.decoding.deliveries import ENDS, SCHEMA, Deliveries, Spans, rows_of
from duetime_store.groups.holds import GroupPlace, Lease
from duetime_store.groups.journal import GroupJournal
from duetime_store.log.journal import Journal, bodies
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from tests.retry.cluster_group import Group, Leased, started

DDL = (
    "shard INT, group STRING, topic STRING, queue_topic STRING, queue INT, offset BIGINT, lease BIGINT, attempt INT, "
    "received_at_ms BIGINT, ended_at_ms BIGINT, end STRING"
)
DEAD_TOPIC = "%DLQ%billing"
OK = consumer_pb2.RECEIPT_STATUS_OK

# --- a cluster ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async for one in started(Cluster(tmp_path, gateway_settings={"queue_count_default": 2})):
        yield one


def journal_of(group: Group) -> list[tuple[bytes, int]]:
    return [(found.body, found.stored_at_ms) for found in group.stored(GROUPS_TOPIC)]


def max_offset_of(group: Group) -> Callable[[str, int], int]:
    ends = {(one.topic, one.queue): one.max_offset for one in group.cluster.stores[0].store.queues.all()}
    return lambda topic, queue: ends.get((topic, queue), 0)


def table(records: list[tuple[bytes, int]], now_ms: int, **options: Any) -> list[dict[str, Any]]:
    max_offset = options.pop("max_offset", None)
    found = list(rows_of(Deliveries(**options), records, now_ms, max_offset))
    for batch in found:
        batch.validate(full=True)
    return pa.Table.from_batches(found, SCHEMA).to_pylist()


class Seen:
    """Messages seen by receivers, and the expected table: by lease and offset, attempt, received, end and its time."""

    def __init__(self, group: Group, dice: random.Random) -> None:
        self.group, self.dice = group, dice
        self.rows: dict[tuple[int, int], list[Any]] = {}
        self.leased: list[Leased] = []
        self.until: dict[tuple[int, int], int] = {}
        self.dead = 0

    def key(self, one: Leased) -> tuple[int, int]:
        parsed = receipts.parse(one.receipt)
        assert parsed is not None
        return parsed[1:]

    def end(self, one: Leased, end: str) -> None:
        row = self.rows[self.key(one)]
        assert row[2] == "open"
        row[2:] = end, self.group.now_ms
        self.leased.remove(one)

    async def receive(self, **options: Any) -> None:
        request = consumer_pb2.ReceiveRequest(group=self.group.name, topic="orders", max_attempts=3, **options)
        for one in (await self.group.stub.Receive(request, timeout=60)).messages:
            self.rows[self.key(one)] = [one.attempt, self.group.now_ms, "open", None]
            self.until[self.key(one)] = one.lease_ends_at_ms
            self.leased.append(one)

    def some(self) -> list[Leased]:
        count = min(len(self.leased), self.dice.randrange(1, 6))
        return self.dice.sample(self.leased, count)

    async def ack(self) -> None:
        found = self.some()
        if not found:
            return
        request = consumer_pb2.AckRequest(group=self.group.name, receipts=[one.receipt for one in found])
        answer = await self.group.stub.Ack(request, timeout=60)
        statuses = list(answer.statuses) or [OK] * len(found)
        for one, status in zip(found, statuses, strict=True):
            if status == OK:
                self.end(one, "acked")

    async def nack(self) -> None:
        found = self.some()
        if not found:
            return
        for one, result in zip(found, await self.group.nack(*found, reject=self.dice.random() < 0.3), strict=True):
            if result.status == OK:
                self.end(one, "dead" if result.dead else "failed")
                self.dead += result.dead

    async def change(self) -> None:
        found, uncounted = self.some(), self.dice.random() < 0.5
        invisible_ms = self.dice.choice([0, 0, 60_000])
        if not found:
            return
        request = consumer_pb2.ChangeInvisibleRequest(
            group=self.group.name,
            receipts=[one.receipt for one in found],
            invisible_ms=invisible_ms,
            not_attempted=uncounted and not invisible_ms,
        )
        answer = await self.group.stub.ChangeInvisible(request, timeout=60)
        statuses = list(answer.statuses) or [OK] * len(found)
        for one, status in zip(found, statuses, strict=True):
            if status == OK and invisible_ms:
                self.until[self.key(one)] = self.group.now_ms + invisible_ms
            elif status == OK:
                self.end(one, "returned" if uncounted else "expired")
                self.exhausts(one)

    def exhausts(self, one: Leased) -> None:
        """A last delivery that counts leads to a dead letter."""
        row = self.rows[self.key(one)]
        if row[2] == "expired" and row[0] >= 3:
            row[2] = "dead"
            self.dead += 1

    def pass_time(self) -> None:
        for one in list(self.leased):
            until_ms = self.until[self.key(one)]
            if until_ms <= self.group.now_ms:
                self.end(one, "expired")
                self.rows[self.key(one)][3] = until_ms
                self.exhausts(one)


@pytest.mark.parametrize("seed", range(3))
async def test_rows_agree_with_receivers(group: Group, seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    await group.create("levels")
    seen = Seen(group, dice)
    await group.send(*(f"id{n}" for n in range(60)))
    for _ in range(60):
        step = dice.choice(["receive", "receive", "ack", "nack", "change", "advance"])
        if step == "receive":
            await seen.receive(max_count=dice.choice([1, 5, 20]), invisible_ms=dice.choice([10_000, 30_000]))
        elif step == "advance":
            await group.cluster.advance(f"{dice.choice([1, 4_000, 15_000])}ms")
            seen.pass_time()
        else:
            await getattr(seen, step)()
    # Retries of these are on their way; the retry service makes dead letters of the exhausted.
    await group.until_stored(seen.dead, DEAD_TOPIC)
    rows = table(journal_of(group), group.now_ms, max_offset=max_offset_of(group), shard=7)
    found = {(row["lease"], row["offset"]): row for row in rows}
    assert len(found) == len(rows)
    told = {key: [row["attempt"], row["received_at_ms"], row["end"], row["ended_at_ms"]] for key, row in found.items()}
    assert told == seen.rows
    assert {row["shard"] for row in rows} == {7}
    assert {(row["group"], row["topic"]) for row in rows} == {("billing", "orders")}
    assert {row["queue_topic"] for row in rows} <= {"orders", "%RETRY%billing"}
    assert {row[2] for row in seen.rows.values()} >= {"acked", "failed", "dead", "expired"}


async def answers(group: Group) -> None:
    """A gateway and a retry service find a shard again in their own time."""
    async with asyncio.timeout(60):
        for call in (
            lambda: group.stub.Pull(gateway_pb2.PullRequest(topic="orders", queue=0), timeout=60),
            lambda: group.stub.Nack(
                consumer_pb2.NackRequest(group=group.name, nacks=[consumer_pb2.Nack(receipt=b"none")]), timeout=60
            ),
        ):
            while True:
                try:
                    answer = await call()
                    if not any(one.HasField("fault") for one in getattr(answer, "results", ())):
                        break
                except grpc.aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        raise
                group.cluster.clock.move(100)


async def test_ordered_leases_and_a_store_that_starts_again(group: Group) -> None:
    await group.create(ordered=True)
    await group.send(*(f"id{n}" for n in range(4)), sharding_key="a")
    first_ms = group.now_ms
    first = await group.receive(4, ordered=True, invisible_ms=30_000)
    request = consumer_pb2.AckRequest(group=group.name, receipts=[first[0].receipt])
    await group.stub.Ack(request, timeout=60)
    await group.cluster.advance("31s")
    node = group.cluster.stores[0]
    await group.cluster.stop_node(node)
    await group.cluster.start_store(0)
    await answers(group)
    second_ms = group.now_ms
    second = await group.receive(3, ordered=True, invisible_ms=30_000)
    assert [one.attempt for one in second] == [2, 1, 1]
    await group.nack(second[0])
    rows = table(journal_of(group), group.now_ms)
    told = [(row["offset"], row["attempt"], row["received_at_ms"], row["end"]) for row in rows]
    assert sorted(told, key=lambda row: (row[2], row[0])) == [
        (0, 1, first_ms, "acked"),
        (1, 1, first_ms, "expired"),
        (2, 1, first_ms, "returned"),
        (3, 1, first_ms, "returned"),
        (1, 2, second_ms, "failed"),
        (2, 1, second_ms, "returned"),
        (3, 1, second_ms, "returned"),
    ]


# --- event by event -----------------------------------------------------------------------------------------------

KEY = PlaceKey("g", "orders", "orders", 3)


class Told:
    """A journal by hand: one place, each call a record; records are stored at 1000, 1001, ..."""

    def __init__(self) -> None:
        self.place = GroupPlace(KEY, 9, 0)
        self.records: list[tuple[bytes, int]] = []

    def lease(self, number: int, received_at_ms: int, **flags: bool) -> Lease:
        options = {"ordered": False, "is_taken": False, **flags}
        return Lease(number, self.place, received_at_ms, 16, **options)

    def add(self, *calls: Callable[[GroupJournal], None]) -> None:
        journal = Journal()
        for call in calls:
            call(GroupJournal(journal))
        self.records += [(body, 1_000 + len(self.records)) for body, _ in bodies(journal.entries)]

    def give(self, lease: Lease, offsets: list[int], attempt: int = 1, expired: Any = (), until_ms: int = 500) -> None:
        self.add(lambda journal: journal.give(lease, offsets, until_ms, attempt, 0, 9, expired))

    def rows(self, now_ms: int = 100, **options: Any) -> list[tuple[int, int, int, int, int | None, str]]:
        names = ("offset", "lease", "attempt", "received_at_ms", "ended_at_ms", "end")
        return [tuple(row[name] for name in names) for row in table(self.records, now_ms, **options)]


def test_settle_without_its_copy_is_void() -> None:
    """The log ends between it and its copy; and the start after that says so."""
    told = Told()
    told.give(told.lease(77, 50), [4, 5])
    told.add(lambda journal: journal.settle(told.place, 77, 4, ("%RETRY%g", 0, 12)))
    assert told.rows() == [(4, 77, 1, 50, 1_001, "failed"), (5, 77, 1, 50, None, "open")]
    assert told.rows(max_offset=lambda topic, queue: 13)[0][5] == "failed"
    assert told.rows(max_offset=lambda topic, queue: 12) == [(5, 77, 1, 50, None, "open"), (4, 77, 1, 50, None, "open")]
    told.give(told.lease(77, 50), [4], until_ms=600)
    told.add(lambda journal: journal.end(told.place, 77, [4]))
    assert told.rows() == [(4, 77, 1, 50, 1_003, "acked"), (5, 77, 1, 50, None, "open")]


def test_settles_are_rows_before_the_journal_ends() -> None:
    told, deliveries = Told(), Deliveries()
    told.give(told.lease(77, 50), [4])
    told.add(lambda journal: journal.settle(told.place, 77, 4, ("%DLQ%g", 0, 12)))
    for _ in range(70):
        told.add(lambda journal: journal.scan(told.place, 1, 2))
    counts = []
    for body, stored_at_ms in told.records:
        deliveries.feed(body, stored_at_ms)
        counts.append(deliveries.rows)
    assert counts[10] == 0
    assert counts[-1] == 1


def test_last_delivery_that_expired_is_dead_when_its_letter_is_there() -> None:
    told = Told()
    told.give(told.lease(77, 50), [4, 5, 6], attempt=3)
    told.give(told.lease(78, 60, is_taken=True), [4, 5, 6], 3, ((10, 20), (50, 55)))
    told.add(lambda journal: journal.settle(told.place, 78, 4, ("%DLQ%g", 0, 12)))
    # Its record can't be read; the other one is taken once more.
    told.add(lambda journal: journal.end(told.place, 78, [5]))
    told.add(lambda journal: journal.back(told.place, 78, [6], 70, counted=False))
    told.give(told.lease(79, 80, is_taken=True), [6], 3, ((10, 20), (50, 55)))
    assert told.rows() == [(5, 77, 3, 50, 55, "expired"), (4, 77, 3, 50, 55, "dead"), (6, 77, 3, 50, 55, "expired")]
    told.add(lambda journal: journal.settle(told.place, 79, 6, ("%DLQ%g", 0, 13)))
    assert told.rows()[2] == (6, 77, 3, 50, 55, "dead")


def test_message_that_lapses_is_no_delivery_and_its_last_one_expired() -> None:
    told = Told()
    told.give(told.lease(77, 50), [4, 5])
    told.add(lambda journal: journal.end(told.place, LAPSED, [4, 9]))
    assert told.rows(now_ms=400) == [
        (4, 77, 1, 50, 500, "expired"),
        *((offset, 0, 0, None, 1_001, "lapsed") for offset in (4, 9)),
        (5, 77, 1, 50, None, "open"),
    ]
    told.add(lambda journal: journal.reset(told.place, 0))
    assert [row[::5] for row in told.rows()] == [(4, "expired"), (4, "lapsed"), (9, "lapsed"), (5, "returned")]


def test_last_delivery_of_a_message_that_lapses_under_a_retry_services_lease_expired() -> None:
    told = Told()
    told.give(told.lease(77, 50, ordered=True), [4, 5], attempt=3)
    told.give(told.lease(78, 60, is_taken=True), [4], 3, ((50, 55),))
    told.add(lambda journal: journal.end(told.place, LAPSED, [4]))
    told.add(lambda journal: journal.reset(told.place, 0))
    assert told.rows() == [
        (5, 77, 3, 50, 55, "returned"),
        (4, 77, 3, 50, 55, "expired"),
        (4, 0, 0, None, 1_002, "lapsed"),
    ]


def test_ordered_lease_ends_when_its_messages_lapse() -> None:
    told = Told()
    told.give(told.lease(77, 50, ordered=True), [1, 2, 3])
    told.add(lambda journal: journal.end(told.place, LAPSED, [1, 2]))
    told.give(told.lease(78, 600), [3])
    assert told.rows()[:3] == [
        (1, 77, 1, 50, 500, "expired"),
        (2, 77, 1, 50, 500, "returned"),
        (3, 77, 1, 50, 500, "returned"),
    ]
    assert [row[::5] for row in told.rows()[3:]] == [(1, "lapsed"), (2, "lapsed"), (3, "open")]


def test_leases_open_at_the_end_of_the_journal() -> None:
    told = Told()
    told.give(told.lease(77, 50), [1, 2, 3])
    told.add(lambda journal: journal.change(told.place, 77, [2], 900))
    assert {row[0]: row[4:] for row in told.rows(now_ms=499)} == dict.fromkeys((1, 2, 3), (None, "open"))
    told_later = {row[0]: row[4:] for row in told.rows(now_ms=500)}
    assert told_later == {1: (500, "expired"), 2: (None, "open"), 3: (500, "expired")}
    assert {row[0]: row[4:] for row in told.rows(now_ms=900)}[2] == (900, "expired")


def test_ordered_lease_that_is_over_when_the_journal_ends() -> None:
    told = Told()
    told.give(told.lease(77, 50, ordered=True), [1, 2, 3])
    told.add(lambda journal: journal.change(told.place, 77, [1], 900))
    assert [row[::5] for row in told.rows(now_ms=500)] == [(2, "expired"), (3, "returned"), (1, "open")]


@pytest.mark.parametrize("deletes", [True, False])
def test_leases_end_with_their_group_and_with_a_reset(deletes: bool) -> None:
    told = Told()
    told.give(told.lease(77, 50), [1, 2])
    told.add(lambda journal: journal.delete("g") if deletes else journal.reset(told.place, 0))
    told.give(told.lease(78, 60), [1])
    assert told.rows() == [
        (1, 77, 1, 50, 1_001, "returned"),
        (2, 77, 1, 50, 1_001, "returned"),
        (1, 78, 1, 60, None, "open"),
    ]


def test_ends_without_a_beginning_are_counted() -> None:
    told, deliveries = Told(), Deliveries()
    told.add(lambda journal: journal.end(told.place, 77, [1, 2]))
    told.add(lambda journal: journal.end(told.place, 0, [3]))
    told.add(lambda journal: journal.settle(told.place, 77, 4, ("%RETRY%g", 0, 1)))
    assert list(rows_of(deliveries, told.records, 0)) == []
    assert deliveries.unknown == 3


@pytest.mark.parametrize("cut", [1, 10, 30, 60])
def test_damaged_records_are_reported_and_the_rest_is_read(cut: int) -> None:
    told, faults = Told(), []
    told.give(told.lease(77, 50), [1])
    told.records.insert(0, (told.records[0][0][:-cut], 0))
    rows = list(rows_of(Deliveries(), told.records, 0, damaged=lambda index, words: faults.append((index, words))))
    assert [index for index, _ in faults] == [0]
    assert sum(batch.num_rows for batch in rows) == 1


def test_events_that_no_store_writes_are_damage() -> None:
    told = Told()
    told.give(told.lease(77, 50), [1])
    body = bytearray(told.records[0][0])
    body[-4:] = b"\xff\xff\xff\xff"
    with pytest.raises(DamagedBytes, match="an event of 4294967295 messages"):
        Deliveries().feed(bytes(body), 0)
    body[-12:] = (1 << 63).to_bytes(8, "big") + b"\0\0\0\1"
    with pytest.raises(DamagedBytes, match="from offset -"):
        Deliveries().feed(bytes(body), 0)
    with pytest.raises(DamagedBytes, match="version 9"):
        Deliveries().feed(b"\x09\0\0", 0)


def test_batches_bound_their_rows() -> None:
    told = Told()
    for number in range(10):
        told.give(told.lease(number + 1, 50), list(range(number * 100, number * 100 + 100)))
    deliveries = Deliveries(rows_max=250, columns=["offset", "end"])
    found = list(rows_of(deliveries, told.records, 1_000))
    assert [batch.num_rows for batch in found] == [200] * 5
    assert pa.Table.from_batches(found).column("offset").to_pylist() == list(range(1_000))


@given(
    spans=st.lists(st.integers(0, 60), max_size=20),
    cuts=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=10),
)
def test_spans_are_sets_of_offsets(spans: list[int], cuts: list[tuple[int, int]]) -> None:
    expected = set(spans)
    kept = Spans([(one, one + 1) for one in sorted(expected)])
    for first, count in cuts:
        found = {one for span in kept.take(first, first + count) for one in range(*span)}
        assert found == expected & set(range(first, first + count))
        expected -= found
        assert {one for span in kept for one in range(*span)} == expected
        assert bool(kept) == bool(expected)


def test_types_equal_sparks(spark: SparkSession) -> None:
    expected = to_arrow_schema(spark.createDataFrame([], DDL).schema)
    assert expected == SCHEMA
    told = Told()
    told.give(told.lease(77, 50), [1])
    (batch,) = rows_of(Deliveries(), told.records, 100)
    assert batch.schema == expected
    (row,) = spark.createDataFrame(pa.Table.from_batches([batch])).collect()
    assert tuple(row) == (0, "g", "orders", "orders", 3, 1, 77, 1, 50, None, "open")
    assert set(ENDS) >= {row["end"]}
