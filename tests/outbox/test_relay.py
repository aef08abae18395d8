"""The relay on SQLite and PostgreSQL against the whole cluster: moved rows, times and order, and rows that it cannot
move.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from duetime import Admin, AsyncProducer, Finder, InvalidArgument, Message, Producer
from duetime.client.message import moment
from duetime.outbox import Outbox, Relay, Rows, relay
from duetime_core.testing import LocalCluster
from duetime_format.record import LITE_TOPIC
from sqlalchemy import Connection, MetaData, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.outbox.shop import Shop, WatchedRelay, new_topic, running, soon, stored
from tests.postgresql import LocalServer, own_server

MINUTE_MS = 60_000


@pytest.fixture
def topic() -> str:
    return new_topic()


def later(shop: Shop, by_ms: int) -> Callable[[Connection], int]:
    """The database's clock, moved."""
    return lambda connection: Rows(shop.outbox).now(connection) + by_ms


def hand_over(shop: Shop, count: int = 512) -> None:
    """Leaves rows as a relay that dies before it has sent: they are claimed for another minute."""
    rows = Rows(shop.outbox)
    with shop.engine.begin() as connection:
        now = rows.now(connection)
        assert rows.claim(connection, "dead", now, now + MINUTE_MS, count)


class Forgetful(WatchedRelay):
    """Dies when it has sent."""

    async def _settle(self, claim: str, verdicts: Any) -> None:
        self.stop()


def test_rows_are_moved_once_and_deleted(shop: Shop, cluster: LocalCluster, topic: str) -> None:
    bodies = [b"%d" % n for n in range(1_200)]
    shop.order(*(Message(topic, body) for body in bodies))
    stats = shop.drain(cluster.address)
    assert (stats.sent, stats.repeated) == (1_200, 0)
    assert sorted(stored(cluster, topic)) == sorted(bodies)
    assert shop.rows() == []


def test_rows_of_a_key_keep_their_order(shop: Shop, cluster: LocalCluster, topic: str) -> None:
    for n in range(60):
        shop.order(*(Message(topic, b"%d %d" % (key, n), sharding_key=str(key)) for key in range(5)))
    shop.drain(cluster.address, batch=7)
    bodies = stored(cluster, topic)
    for key in range(5):
        assert [body for body in bodies if body.startswith(b"%d " % key)] == [b"%d %d" % (key, n) for n in range(60)]


def test_message_arrives_as_it_was_written(shop: Shop, cluster: LocalCluster, topic: str) -> None:
    message = Message(topic, b"x", delay="15m", tags="a", keys=["1", "2"], properties={"p": "q"}, flag=7)
    (message_id,) = shop.order(message)
    (row,) = shop.rows()
    shop.drain(cluster.address)
    with Finder(cluster.address) as finder:
        found = finder.get(message_id)
    assert (found.state, found.due_at) == ("pending", moment(row.due_at_ms))
    assert (found.body, found.tags, found.keys, found.flag) == (b"x", "a", ["1", "2"], 7)
    assert found.properties["p"] == "q"


def test_overdue_message_is_delivered_at_once(shop: Shop, topic: str) -> None:
    shop.order(Message(topic, b"late", delay="1ms"))
    with LocalCluster() as cluster:
        cluster.advance("1h1s")
        shop.drain(cluster.address)
        cluster.advance("1s")
        assert stored(cluster, topic, count_min=1) == [b"late"]


def test_sent_rows_are_kept_as_long_as_asked(shop: Shop, cluster: LocalCluster, topic: str) -> None:
    shop.order(Message(topic, b"a"), Message(topic, b"b"))
    assert shop.drain(cluster.address, keep="10m").sent == 2
    assert shop.status().sent == 2
    assert shop.drain(cluster.address, keep="10m", clock=later(shop, 9 * MINUTE_MS)).sent == 0
    assert shop.status().sent == 2
    shop.drain(cluster.address, keep="10m", clock=later(shop, 11 * MINUTE_MS), batch=1)
    assert shop.rows() == []


# --- refused ------------------------------------------------------------------------------------------------------


def test_message_that_is_refused_fails_alone_and_is_listed(
    shop: Shop, cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, bad, _ = shop.order(Message(topic, b"a"), Message(topic, b"b", queue=99), Message(topic, b"c"))
    stats = shop.drain(cluster.address)
    assert (stats.sent, stats.failed) == (2, 1)
    assert sorted(stored(cluster, topic)) == [b"a", b"c"]
    status = shop.status()
    assert (status.waiting, status.failed) == (0, 1)
    (faulty,) = status.faulty
    assert (faulty.message_id, faulty.topic, faulty.state) == (bad, topic, "failed")
    assert "queue" in faulty.error
    assert any(bad in record.message and record.levelno == logging.ERROR for record in caplog.records)


@pytest.mark.parametrize("old", [False, True])
def test_row_of_a_cancelled_message_fails(shop: Shop, cluster: LocalCluster, topic: str, old: bool) -> None:
    (message_id,) = shop.order(Message(topic, b"x", id=f"order-42-{topic}", delay="1h"))
    asyncio.run(Forgetful(shop.engine, cluster.address, outbox=shop.outbox).run_async())
    with Producer(cluster.address) as producer:
        assert producer.cancel(message_id)
    stats = shop.drain(cluster.address, clock=later(shop, (6 if old else 2) * MINUTE_MS))
    assert (stats.sent, stats.failed) == (0, 1)
    (faulty,) = shop.status().faulty
    assert (faulty.message_id, faulty.state) == (message_id, "failed")
    assert "cancelled" in faulty.error


@pytest.mark.parametrize("old", [False, True])
def test_rows_that_replaced_each_other_are_sent_once(shop: Shop, cluster: LocalCluster, topic: str, old: bool) -> None:
    with Producer(cluster.address) as producer:
        producer.send(topic, b"0", delay="1h", key="k", replace=True)
    shop.order(*(Message(topic, b"%d" % n, delay="1h", key="k", replace=True) for n in (1, 2, 3)))
    asyncio.run(Forgetful(shop.engine, cluster.address, outbox=shop.outbox).run_async())
    stats = shop.drain(cluster.address, clock=later(shop, (6 if old else 2) * MINUTE_MS))
    assert (stats.sent, stats.failed) == (3, 0)
    assert stats.repeated == (0 if old else 3)
    with Finder(cluster.address) as finder:
        assert [one.body for one in finder.pending(topic)] == [b"3"]


def test_operator_sends_or_drops_a_failed_row(shop: Shop, cluster: LocalCluster, topic: str) -> None:
    ids = shop.order(*(Message(topic, b"%d" % n, queue=99) for n in range(2)))
    shop.drain(cluster.address)
    rows = Rows(shop.outbox)
    with shop.engine.begin() as connection:
        assert rows.resolve(connection, [ids[0], "unknown"], resend=False) == ["unknown"]
        assert rows.resolve(connection, ids, resend=True) == [ids[0]]
        connection.execute(shop.outbox.table.update().values(options={}))
    assert shop.drain(cluster.address).sent == 1
    assert stored(cluster, topic) == [b"1"]


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("options", '{"urgency": 3}', "unexpected keyword argument 'urgency'"),
        ("options", '{"keys": 5}', "keys"),
        ("options", '[["delay", "1s"]]', "TypeError"),
        ("options", '{"retry": 5}', "AttributeError"),
        ("options", '{"keys": [', "JSONDecodeError"),
        ("options", '{"flag": "x"}', "flag"),
        ("due_at_ms", str(1 << 60), "OverflowError"),
    ],
)
def test_a_row_that_this_release_can_not_read_is_set_aside(
    shop: Shop, cluster: LocalCluster, topic: str, column: str, value: str, why: str
) -> None:
    if "Decode" in why and shop.engine.dialect.name == "postgresql":
        pytest.skip("PostgreSQL keeps no damaged JSON")
    (odd,) = shop.order(Message(topic, b"of a newer release"))
    with shop.engine.begin() as connection:
        connection.execute(text(f"UPDATE duetime_outbox SET {column} = '{value}'"))
    shop.order(*(Message(topic, b"%d" % n) for n in range(3)))
    # Also if a batch has no other row.
    stats = shop.drain(cluster.address, batch=1)
    assert (stats.sent, stats.failed) == (3, 1)
    assert sorted(stored(cluster, topic)) == [b"0", b"1", b"2"]
    (faulty,) = shop.status().faulty
    assert (faulty.message_id, faulty.state) == (odd, "failed")
    assert faulty.error.startswith("this release can't read the row: ")
    assert why in faulty.error


# --- doubt --------------------------------------------------------------------------------------------------------


def test_row_that_was_sent_long_ago_is_found_and_not_sent_again(shop: Shop, cluster: LocalCluster, topic: str) -> None:
    shop.order(Message(topic, b"now"), Message(topic, b"later", delay="1h"))
    asyncio.run(Forgetful(shop.engine, cluster.address, outbox=shop.outbox).run_async())
    assert [row.handed_at_ms is None for row in shop.rows()] == [False, False]
    stats = shop.drain(cluster.address, clock=later(shop, 6 * MINUTE_MS))
    assert (stats.sent, stats.repeated) == (2, 0)
    assert shop.rows() == []
    assert stored(cluster, topic) == [b"now"]
    with Finder(cluster.address) as finder:
        assert [message.body for message in finder.pending(topic)] == [b"later"]


def test_missing_row_is_sent_again_within_retention(shop: Shop, cluster: LocalCluster, topic: str) -> None:
    shop.order(Message(topic, b"x"))
    hand_over(shop)
    clock = later(shop, 59 * MINUTE_MS)
    assert shop.drain(cluster.address, clock=clock).sent == 1
    assert stored(cluster, topic) == [b"x"]


def test_row_that_may_have_been_sent_and_is_not_known_any_more_is_doubtful(
    shop: Shop, cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    (message_id,) = shop.order(Message(topic, b"x"))
    hand_over(shop)
    stats = shop.drain(cluster.address, clock=later(shop, 61 * MINUTE_MS))
    assert (stats.sent, stats.doubtful) == (0, 1)
    (faulty,) = shop.status().faulty
    assert (faulty.message_id, faulty.state) == (message_id, "doubtful")
    assert "first handed over at 20" in faulty.error
    assert f"topic {topic} does not exist" in faulty.error
    assert any(message_id in record.message for record in caplog.records if record.levelno == logging.ERROR)
    # It stays so until a person decides.
    assert shop.drain(cluster.address, clock=later(shop, 24 * 60 * MINUTE_MS)).sent == 0
    with shop.engine.begin() as connection:
        assert Rows(shop.outbox).resolve(connection, [message_id], resend=True) == []
    assert shop.drain(cluster.address).sent == 1
    assert stored(cluster, topic) == [b"x"]


def test_row_that_may_have_been_sent_just_now_is_sent_without_asking(
    shop: Shop, cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.order(Message(topic, b"x"))
    hand_over(shop)
    monkeypatch.setattr("duetime.client.finding.finder.AsyncFinder.get", None)
    assert shop.drain(cluster.address, clock=later(shop, 4 * MINUTE_MS)).sent == 1


# --- several relays -----------------------------------------------------------------------------------------------


async def test_two_relays_share_the_rows_and_keep_the_order_of_keys(
    shop: Shop, cluster: LocalCluster, topic: str
) -> None:
    keys, count = 8, 400
    for n in range(0, count, 20):
        shop.order(
            *(Message(topic, b"%d %d" % (k, m), sharding_key=str(k)) for m in range(n, n + 20) for k in range(keys)),
            # A relay that meets keys in the other's hands alone would rest.
            *(Message(topic, b"- %d" % m) for m in range(n * 8, n * 8 + 160)),
        )
    relays = [shop.relay(cluster.address, batch=64, poll="20ms") for _ in range(2)]
    async with running(*relays):
        await asyncio.gather(*(soon(each.resting) for each in relays))
        while shop.status().waiting:
            await soon(relays[0].resting)
    assert sum(each.stats.sent for each in relays) == 2 * keys * count
    assert all(each.stats.sent and not each.stats.repeated for each in relays)
    bodies = await asyncio.to_thread(stored, cluster, topic)
    for key in range(keys):
        of_key = [body for body in bodies if body.startswith(b"%d " % key)]
        assert of_key == [b"%d %d" % (key, n) for n in range(count)]


@pytest.mark.parametrize("field", ["sharding_key", "lite_topic", "property"])
def test_rows_in_another_relays_hands_hold_up_their_keys_alone(
    shop: Shop, cluster: LocalCluster, topic: str, field: str
) -> None:
    def of(key: str) -> dict[str, Any]:
        return {"properties": {LITE_TOPIC: key}} if field == "property" else {field: key}

    with Admin(cluster.address) as admin:
        admin.create_topic(topic, queues=4, type="any" if field == "sharding_key" else "lite")
    shop.order(Message(topic, b"a1", **of("a")))
    hand_over(shop)
    shop.order(Message(topic, b"a2", **of("a")), Message(topic, b"b", **of("b")), Message(topic, b"c"))
    assert shop.drain(cluster.address).sent == 2
    assert sorted(stored(cluster, topic)) == [b"b", b"c"]
    # The lease ends.
    assert shop.drain(cluster.address, clock=later(shop, 2 * MINUTE_MS)).sent == 2
    assert [body for body in stored(cluster, topic) if body.startswith(b"a")] == [b"a1", b"a2"]


def test_relay_that_was_late_settles_nothing_of_anothers(shop: Shop) -> None:
    shop.order(Message("orders", b"x"))
    rows = Rows(shop.outbox)
    with shop.engine.begin() as connection:
        now = rows.now(connection)
        (first,) = rows.claim(connection, "first", now, now + 1, 10).rows
    with shop.engine.begin() as connection:
        assert [row.id for row in rows.claim(connection, "second", now + 2, now + MINUTE_MS, 10).rows] == [first.id]
        rows.settle(connection, "first", {first.id: relay.RowVerdict("sent")}, 0)
        rows.settle(connection, "first", {first.id: relay.RowVerdict("failed", "late")}, 0)
    (row,) = shop.rows()
    assert (row.state, row.claim, row.attempts) == ("waiting", "second", 2)


def test_large_messages_are_claimed_a_request_at_a_time(shop: Shop) -> None:
    shop.order(*(Message("orders", bytes(1_500_000)) for _ in range(5)))
    rows = Rows(shop.outbox)
    counts = []
    for n in itertools.count():
        with shop.engine.begin() as connection:
            now = rows.now(connection)
            counts.append(len(rows.claim(connection, str(n), now, now + MINUTE_MS, 512).rows))
        if not counts[-1]:
            break
    assert counts == [2, 2, 1, 0]


# --- SQLite in memory ---------------------------------------------------------------------------------------------


def test_outbox_in_memory_is_moved_in_the_thread_of_its_table(cluster: LocalCluster, topic: str) -> None:
    engine = create_engine("sqlite://")
    shop = Shop.of(engine)
    shop.order(Message(topic, b"x"))
    moving = Relay(engine, cluster.address, outbox=shop.outbox)
    with (
        ThreadPoolExecutor(1) as other,
        pytest.raises(InvalidArgument, match="has no table duetime_outbox in this thread"),
    ):
        other.submit(moving.run, drain=True).result()
    moving.run(drain=True)
    engine.dispose()
    assert (moving.stats.sent, stored(cluster, topic)) == (1, [b"x"])


# --- waking -------------------------------------------------------------------------------------------------------


async def test_relay_polls_without_wakes(cluster: LocalCluster, topic: str, sqlite_url: str) -> None:
    engine = create_engine(sqlite_url)
    shop = Shop.of(engine)
    watched = shop.relay(cluster.address, poll="50ms")
    async with running(watched):
        await soon(watched.resting)
        shop.order(Message(topic, b"x"))
        await soon(watched.settled)
    engine.dispose()
    assert await asyncio.to_thread(stored, cluster, topic) == [b"x"]


@pytest.fixture
def never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LISTENING_POLL_S", 3_600.0)


@pytest.mark.postgres
@pytest.mark.usefixtures("never_polls")
async def test_commit_wakes_the_relay_and_a_rollback_does_not(
    cluster: LocalCluster, topic: str, postgres_url: str
) -> None:
    engine = create_engine(postgres_url)
    shop = Shop.of(engine)
    watched = shop.relay(cluster.address, poll="1h")
    async with running(watched):
        await soon(watched.resting)
        with engine.begin() as connection:
            await asyncio.to_thread(shop.outbox.send, connection, topic, b"x")
            assert not watched.settled.is_set()
        await soon(watched.settled)
        await soon(watched.resting)
        with engine.connect() as connection:
            shop.outbox.send(connection, topic, b"never")
            connection.rollback()
        # Its connection is cut, and made again.
        plain = postgres_url.replace("+psycopg", "")
        with psycopg.connect(plain, autocommit=True) as operator:
            cut = operator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
            assert len(cut.fetchall()) == 1
        await soon(watched.resting)
        shop.order(Message(topic, b"y"))
        await soon(watched.settled)
    engine.dispose()
    assert sorted(await asyncio.to_thread(stored, cluster, topic)) == [b"x", b"y"]


@pytest.mark.postgres
async def test_relay_works_on_an_asynchronous_engine(cluster: LocalCluster, topic: str, postgres_url: str) -> None:
    outbox, engine = Outbox(MetaData()), create_async_engine(postgres_url)
    async with engine.begin() as connection:
        await connection.run_sync(outbox.table.metadata.create_all)
        await outbox.send(connection, topic, b"x")
    watched = WatchedRelay(engine, cluster.address, outbox=outbox)
    await watched.run_async(drain=True)
    await engine.dispose()
    assert watched.stats.sent == 1


# --- away ---------------------------------------------------------------------------------------------------------


async def test_relay_waits_for_its_server_and_doubts_only_submitted_rows(shop: Shop, topic: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shop.order(*(Message(topic, b"%d" % n) for n in range(20)))
    watched = shop.relay(f"127.0.0.1:{port}", batch=5, timeout="500ms", lease="2s")
    async with running(watched):
        await soon(watched.settled)
        await soon(watched.settled)
        rows = shop.rows()
        assert [row.handed_at_ms is not None for row in rows] == [True] * 5 + [False] * 15
        assert {row.state for row in rows} == {"waiting"}
        assert "cannot connect to" in rows[0].error
        with await asyncio.to_thread(_started, port) as cluster:
            while shop.status().waiting:
                await soon(watched.settled)
            bodies = await asyncio.to_thread(stored, cluster, topic)
    assert sorted(bodies) == sorted(b"%d" % n for n in range(20))


async def test_unavailable_shard_delays_no_other(shop: Shop, topic: str) -> None:
    with LocalCluster(shards=2) as cluster:
        async with AsyncProducer(cluster.address) as producer:
            receipts = [await producer.send(topic, b"first", sharding_key=str(key)) for key in range(16)]
        away = {str(key) for key, receipt in enumerate(receipts) if receipt.shard == 1}
        assert 0 < len(away) < 16
        node = cluster.cluster.stores[1]
        await asyncio.to_thread(cluster.run, cluster.cluster.stop_node(node))
        for n in range(3):
            shop.order(*(Message(topic, b"%d %d" % (key, n), sharding_key=str(key)) for key in range(16)))
        watched = shop.relay(cluster.address, timeout="500ms", lease="2s")
        async with running(watched):
            while {row.order_key for row in shop.rows()} != away:
                await soon(watched.settled)
            rows = shop.rows()
            assert len(rows) == 3 * len(away)
            assert {row.state for row in rows} == {"waiting"}
            await asyncio.to_thread(cluster.run, cluster.cluster.start_store(1))
            while shop.status().waiting:
                await soon(watched.settled)
        assert watched.stats.failed == 0
        bodies = await asyncio.to_thread(stored, cluster, topic)
    for key in range(16):
        assert [body for body in bodies if body.startswith(b"%d " % key)] == [b"%d %d" % (key, n) for n in range(3)]


@pytest.mark.postgres
async def test_relay_waits_for_an_unavailable_database(cluster: LocalCluster, topic: str, own: LocalServer) -> None:
    engine = create_engine(own.url, pool_pre_ping=True)
    shop = Shop.of(engine)
    watched = shop.relay(cluster.address, poll="100ms")
    async with running(watched):
        await soon(watched.resting)
        await asyncio.to_thread(own.stop)
        await soon(watched.faulty)
        await asyncio.to_thread(own.start)
        shop.order(Message(topic, b"x"))
        await soon(watched.settled)
    engine.dispose()
    assert await asyncio.to_thread(stored, cluster, topic) == [b"x"]


@pytest.fixture
def own(postgres: str) -> Iterator[LocalServer]:
    with own_server() as server:
        yield server


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": 513}, "batch"),
        ({"lease": "39s"}, "lease"),
        ({"window": "soon"}, "window"),
        ({"keep": "-1s"}, "keep"),
        ({"poll": 1.0}, "poll"),
        ({"server": "no:where"}, "server"),
    ],
)
def test_settings_that_can_not_be_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        Relay(create_engine("sqlite://"), **({"server": "localhost:1", "keep": timedelta(0)} | options))
    assert [violation.field for violation in raised.value.violations] == [field]


def _started(port: int) -> LocalCluster:
    return LocalCluster(gateway_settings={"port": port})
