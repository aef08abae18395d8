"""Quotas: buckets and shares by themselves, a gateway that keeps them, and two that share them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from duetime import AsyncProducer
from duetime.client.connection import pause
from duetime.client.errors import from_fault, from_status
from duetime.client.sending import delivery
from duetime.client.sending.outcomes import errors_of
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2, quotas_pb2, schedules_pb2
from duetime_core.clock import turn
from duetime_core.errors import InvalidArgument, QuotaExceeded, Unavailable
from duetime_core.metadata import Database, upgrade
from duetime_core.testing.clock import FakeClock
from duetime_gateway.metrics import QuotaMetrics
from duetime_gateway.quotas.book import QuotaBook
from duetime_gateway.quotas.bucket import TokenBucket
from duetime_gateway.quotas.keeper import QuotaKeeper
from duetime_gateway.quotas.limits import HOST, TOPIC, USER, Limits, QuotaOwner
from duetime_gateway.quotas.meters import Use
from duetime_gateway.quotas.pending import PendingCounts
from duetime_gateway.quotas.quotas import Quotas
from duetime_gateway.quotas.shares import share_of
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.shards.shards import Shards
from prometheus_client import CollectorRegistry

from tests.gateway.conftest import Gateway, error_of, message, real_store, request
from tests.gateway.people import People, Showing, shown

ALICE, BOB = QuotaOwner(USER, "alice"), QuotaOwner(USER, "bob")
PEER = "ipv4:127.0.0.1:5000"


def nothing() -> dict[str, tuple[int, int, int, int]]:
    return {}


def made(clock: FakeClock, **limits: Limits) -> Quotas:
    quotas = Quotas(clock)
    quotas.set({QuotaOwner(USER, name): one for name, one in limits.items()})
    return quotas


# --- buckets and shares ---------------------------------------------------------------------------------------------


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    bucket = TokenBucket(100, 50, 0.0)
    assert bucket.wait_ms(50, 0.0) == 0
    bucket.take(50)
    assert bucket.wait_ms(10, 0.0) == 100
    assert bucket.wait_ms(10, 99.0) == 1
    assert bucket.wait_ms(10, 100.0) == 0


def test_a_burst_fits_a_gateway_that_has_half_of_it_and_is_paid_for_later() -> None:
    bucket = TokenBucket(100, 100, 0.0)
    bucket.share(50.0, 0.0)
    assert bucket.wait_ms(100, 0.0) == 0
    bucket.take(100)
    assert bucket.wait_ms(1, 0.0) == 1_020


@pytest.mark.parametrize(
    "demands", [[0, 0], [100, 0], [1_000, 1_000], [1_000, 10, 30], [5, 5, 5, 5], [90, 0, 0], [40, 50]]
)
def test_shares_are_the_limit_together_and_follow_demand(demands: list[float]) -> None:
    shares = [share_of(100, one, demands[:n] + demands[n + 1 :]) for n, one in enumerate(demands)]
    assert sum(shares) == pytest.approx(100)
    assert all(share >= 10 / len(demands) for share in shares)
    assert sorted(shares) == [share for _, share in sorted(zip(demands, shares, strict=True))]
    if demands == [100, 0]:
        assert shares[0] == pytest.approx(95)


# --- one gateway's decisions ----------------------------------------------------------------------------------------


def test_one_user_that_floods_is_refused_and_another_is_not() -> None:
    clock = FakeClock()
    quotas = made(clock, alice=Limits(messages_per_s=100, burst_messages=100), bob=Limits(messages_per_s=100))
    sent, refused = Counter[str](), Counter[str]()
    for _ in range(100):
        for user, count in (("alice", 50), ("bob", 1)):
            try:
                quotas.send(user, PEER, count, 100, nothing)
                sent[user] += count
            except QuotaExceeded:
                refused[user] += 1
        clock.move(100)
    assert sent["bob"] == 100
    assert set(refused) == {"alice"}
    # Ten seconds and the burst.
    assert 1_000 <= sent["alice"] <= 1_100


def test_request_fits_after_the_time_in_its_refusal() -> None:
    clock = FakeClock()
    quotas = made(clock, alice=Limits(bytes_per_s=1_000, burst_bytes=1_000))
    quotas.send("alice", PEER, 1, 1_000, nothing)
    with pytest.raises(QuotaExceeded) as refused:
        quotas.send("alice", PEER, 1, 700, nothing)
    assert refused.value.retry_after_ms == 700
    clock.move(700)
    quotas.send("alice", PEER, 1, 700, nothing)


def test_a_request_above_the_burst_is_refused_as_never_fitting() -> None:
    quotas = made(FakeClock(), alice=Limits(messages_per_s=10, burst_messages=20))
    with pytest.raises(InvalidArgument) as refused:
        quotas.send("alice", PEER, 21, 1, nothing)
    assert refused.value.reason == "QUOTA_BURST_EXCEEDED"
    assert not refused.value.retriable
    assert "split the request" in refused.value.text


def test_a_topic_is_limited_for_all_senders() -> None:
    quotas = Quotas(FakeClock())
    quotas.set({QuotaOwner(TOPIC, "orders"): Limits(messages_per_s=10, burst_messages=10)})
    quotas.send("", PEER, 10, 100, lambda: {"orders": (10, 50, 0, 0), "others": (1, 1, 0, 0)})
    with pytest.raises(QuotaExceeded):
        quotas.send("", PEER, 1, 100, lambda: {"orders": (1, 5, 0, 0)})
    quotas.send("", PEER, 1, 100, lambda: {"others": (1, 5, 0, 0)})


def test_everybody_has_a_quota_of_their_own_and_hosts_only_where_so_set() -> None:
    limits = Limits(messages_per_s=10, burst_messages=10)
    quotas = made(FakeClock(), **{"*": limits})
    quotas.send("alice", PEER, 10, 1, nothing)
    quotas.send("bob", PEER, 10, 1, nothing)
    with pytest.raises(QuotaExceeded):
        quotas.send("alice", PEER, 1, 1, nothing)
    for _ in range(20):
        quotas.send("", PEER, 10, 1, nothing)
    quotas.set({QuotaOwner(USER, "*"): Limits(messages_per_s=10, burst_messages=10, per_host=True)})
    quotas.send("", PEER, 10, 1, nothing)
    with pytest.raises(QuotaExceeded):
        quotas.send("", "ipv4:127.0.0.1:6000", 1, 1, nothing)
    assert QuotaOwner(HOST, "ipv4:127.0.0.1") in quotas.meters


def test_streams_are_counted_with_those_of_other_gateways_and_freed_at_their_end() -> None:
    quotas = made(FakeClock(), alice=Limits(streams=2))
    quotas.share({"other": {ALICE: Use(streams=1)}})
    with quotas.stream("alice", PEER), pytest.raises(QuotaExceeded), quotas.stream("alice", PEER):
        pass
    with quotas.stream("alice", PEER):
        pass
    quotas.share({})
    with quotas.stream("alice", PEER), quotas.stream("alice", PEER):
        pass


def test_users_that_rest_are_forgotten() -> None:
    clock = FakeClock()
    quotas = made(clock, **{"*": Limits(messages_per_s=10)})
    quotas.send("alice", PEER, 1, 1, nothing)
    for _ in range(20):
        clock.move(1_000)
        quotas.roll()
    assert ALICE not in quotas.meters


# --- over gRPC ------------------------------------------------------------------------------------------------------


class Site(Gateway):
    """A gateway that authenticates callers, and the caller alice; an admin sets quotas."""

    def __init__(self, root: Path, stores: dict[int, int], people: People) -> None:
        super().__init__(root, stores, auth="required")
        self.people = people

    async def __aenter__(self) -> "Site":
        await super().__aenter__()
        self.token = str(await self.people.add("alice", "send topic *", "receive topic *", "send group *"))
        self.admin = gateway_pb2_grpc.GatewayStub(Showing(self.channel, await self.people.add("admin", "admin")))
        self.anybody = self.stub
        self.stub = gateway_pb2_grpc.GatewayStub(Showing(self.channel, self.token))
        return self


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with (
        People(f"sqlite:///{tmp_path / 'meta.db'}") as people,
        real_store(tmp_path) as store,
        Site(tmp_path, {0: store.port}, people) as site,
    ):
        yield site


async def limit(site: Site, **limits: Any) -> quotas_pb2.Quota:
    of = quotas_pb2.QuotaOf(topic=limits.pop("topic")) if "topic" in limits else quotas_pb2.QuotaOf(user="alice")
    return await site.admin.SetQuota(quotas_pb2.SetQuotaRequest(quota=quotas_pb2.Quota(of=of, **limits)), timeout=60)


async def test_a_refusal_has_a_retry_time_and_nothing_is_stored(site: Site) -> None:
    await site.send(message())
    await limit(site, messages_per_s=1, burst_messages=2)
    await site.send(message(), message())
    status = await error_of(site.stub.Send(request(message(), message()), timeout=60))
    assert status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    error = from_status(status, "server")
    assert error.reason == "QUOTA_EXCEEDED"
    assert error.retriable
    assert 1.0 < error.retry_after_s <= 2.0
    labels = {"kind": "user", "name": "alice", "limit": "messages_per_s"}
    assert site.node.registry.get_sample_value("duetime_gateway_quota_refused_total", labels) == 1


async def test_a_stream_survives_a_refused_request(site: Site) -> None:
    await limit(site, messages_per_s=1, burst_messages=2)
    stream = site.stub.SendStream()
    for count in (2, 2, 3):
        await stream.write(request(*[message()] * count))
    stored, refused, never = [await stream.read() for _ in range(3)]
    assert len(stored.results) == 2
    assert not stored.HasField("fault")
    assert refused.fault.reason == "QUOTA_EXCEEDED"
    assert 1_000 < refused.fault.retry_after_ms <= 2_000
    assert never.fault.reason == "QUOTA_BURST_EXCEEDED"
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


async def test_sender_without_a_right_uses_no_quota(site: Site) -> None:
    await site.send(message())
    await limit(site, topic="orders", messages_per_s=1, burst_messages=2)
    other = shown(await site.people.add("other", "send topic others"))
    sent = request(message(topic="others"), *[message()] * 20)
    results = (await site.anybody.Send(sent, metadata=other, timeout=60)).results
    assert [one.fault.reason for one in results] == ["", *["RIGHT_MISSING"] * 20]
    await site.send(message(), message())


async def test_connections_and_long_polls_are_counted_until_they_end(site: Site) -> None:
    await site.send(message(queue=0))
    await limit(site, connections=1, streams=1)
    meter = site.node.parts.quotas.quotas.meters[ALICE]
    poll = asyncio.ensure_future(site.pull(offset=1, wait_ms=20_000))
    async with asyncio.timeout(60):
        while not meter.streams:
            await turn()
    assert (await error_of(site.pull(offset=1, wait_ms=1))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    # A connection of its own.
    options = (("grpc.use_local_subchannel_pool", 1),)
    other = grpc.aio.insecure_channel(f"127.0.0.1:{site.node.port}", options=options)
    call = other.unary_unary("/duetime.v1.Gateway/ListTopics")
    assert "1 connections; its quota is 1" in (
        (await error_of(call(b"", metadata=shown(site.token), timeout=60))).details() or ""
    )
    await site.send(message(queue=0))
    await poll
    assert meter.streams == 0
    await other.close()


async def test_pending_messages_of_a_topic_are_limited(site: Site) -> None:
    await site.send(message())
    await limit(site, topic="orders", pending_count=3)
    await site.send(message(delay_level=5), message(delay_level=5))
    status = await error_of(site.stub.Send(request(*[message(delay_level=5)] * 2), timeout=60))
    assert "pending messages" in (status.details() or "")
    await site.send(message(), message())
    await site.node.parts.quotas.keeper.exchange()
    pending = site.node.parts.quotas.quotas.meters[QuotaOwner(TOPIC, "orders")].pending
    assert pending is not None
    assert (pending.count, pending.since) == (2, 0)
    await site.send(message(delay_level=5))


async def test_schedules_of_a_topic_are_pending_messages(site: Site) -> None:
    await site.send(message())
    await limit(site, topic="orders", pending_count=2)

    def put(name: str) -> Any:
        schedule = schedules_pb2.Schedule(name=name, message=message_pb2.Message(topic="orders", body=b"x"))
        schedule.every.every_ms = 60_000
        return site.stub.PutSchedule(schedules_pb2.PutScheduleRequest(schedule=schedule), timeout=60)

    await put("first")
    await put("second")
    status = await error_of(put("third"))
    assert status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "pending messages" in (status.details() or "")


async def test_quotas_that_can_not_be_are_refused_and_others_are_listed(site: Site) -> None:
    status = await error_of(limit(site, burst_messages=1, pending_count=1, per_host=True))
    assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
    for field in ("burst_messages", "pending_count", "per_host"):
        assert field in (status.details() or "")
    await limit(site, messages_per_s=5)
    await limit(site, topic="orders", bytes_per_s=7)
    listed = await site.admin.ListQuotas(quotas_pb2.ListQuotasRequest(), timeout=60)
    assert [one.quota.of.WhichOneof("of") for one in listed.quotas] == ["user", "topic"]
    assert listed.gateway_count == 1
    await site.admin.RemoveQuota(quotas_pb2.RemoveQuotaRequest(of=quotas_pb2.QuotaOf(user="alice")), timeout=60)
    of = quotas_pb2.ListQuotasRequest(of=quotas_pb2.QuotaOf(user="alice"))
    assert not (await site.admin.ListQuotas(of, timeout=60)).quotas


class Sharing:
    """A gateway's part in quotas, without the rest of it."""

    def __init__(self, database: Database, name: str, clock: FakeClock) -> None:
        self.quotas = Quotas(clock)
        registry = CollectorRegistry()
        counts = PendingCounts(self.quotas, cast("QueueLocator", None), cast("Shards", None))
        self.keeper = QuotaKeeper(self.quotas, QuotaBook(database, name), counts, clock, QuotaMetrics(registry))
        self.sent = 0

    def send(self, count: int) -> None:
        try:
            self.quotas.send("alice", PEER, count, 1, nothing)
            self.sent += count
        except QuotaExceeded:
            pass


@pytest.fixture
async def sharing(tmp_path: Path) -> AsyncIterator[tuple[FakeClock, Sharing, Sharing]]:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    await asyncio.to_thread(upgrade, url)
    database, clock = Database(url), FakeClock()
    await database.start()
    yield clock, Sharing(database, "first", clock), Sharing(database, "second", clock)
    await database.stop()


async def test_two_gateways_share_a_quota_within_the_stated_error(sharing: tuple[FakeClock, Sharing, Sharing]) -> None:
    clock, first, second = sharing
    await first.keeper.set(ALICE, Limits(messages_per_s=1_000, burst_messages=100))
    for seconds, busy in ((6, (first,)), (6, (first, second)), (6, (second,))):
        before = first.sent + second.sent
        for _ in range(seconds):
            await first.keeper.exchange()
            await second.keeper.exchange()
            for _ in range(100):
                clock.move(10)
                for one in busy:
                    one.send(10)
        # A tenth less at most, and less or more while shares move, for two seconds at most; the burst.
        assert 0.9 * 1_000 * (seconds - 2) - 100 <= first.sent + second.sent - before <= 1_000 * (seconds + 2) + 100
    # Steady: both have asked for all of it for some seconds.
    assert second.sent > 1_500


async def test_a_gateway_that_dies_or_ends_gives_its_share_back(sharing: tuple[FakeClock, Sharing, Sharing]) -> None:
    clock, first, second = sharing
    await first.keeper.set(ALICE, Limits(messages_per_s=1_000))

    async def own_rate(*alive: Sharing, seconds: int) -> float:
        for _ in range(seconds):
            clock.move(1_000)
            for one in alive:
                one.send(2_000)
                await one.keeper.exchange()
        bucket = first.quotas.meters[ALICE].messages
        assert bucket is not None
        return bucket.own_rate

    assert await own_rate(first, second, seconds=3) == pytest.approx(500)
    assert await own_rate(first, seconds=2) == pytest.approx(500)
    assert await own_rate(first, seconds=2) == pytest.approx(1_000)
    assert await own_rate(first, second, seconds=3) == pytest.approx(500)
    await second.keeper.leave()
    assert await own_rate(first, seconds=1) == pytest.approx(1_000)


async def test_a_producer_waits_for_the_given_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def paused(length_s: float) -> None:
        pauses.append(length_s)
        await pause(length_s)

    monkeypatch.setattr(delivery, "pause", paused)
    await limit(site, messages_per_s=20, burst_messages=20)
    producer = AsyncProducer(f"127.0.0.1:{site.node.port}", token=site.token, timeout="10s")
    try:
        assert not errors_of(await producer.send_many("orders", bodies=[b"body"] * 20, errors="return"))
        assert not errors_of(await producer.send_many("orders", bodies=[b"body"] * 10, errors="return"))
    finally:
        await producer.close()
    # The second one lacks almost all of its ten messages: half a second.
    assert pauses
    assert 0.2 < pauses[0] < 0.6


async def test_quotas_stay_during_a_database_outage(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await limit(site, messages_per_s=5)
    parts = site.node.parts

    async def away(*_: Any) -> None:
        raise Unavailable("away")

    monkeypatch.setattr(parts.database, "run", away)
    await parts.quotas.keeper.exchange()
    assert parts.quotas.quotas.active
    assert ALICE in parts.quotas.quotas.meters
    assert site.metric("duetime_gateway_quota_exchanges_total", outcome="failed") == 1


def test_a_fault_has_the_time_too() -> None:
    assert from_fault(message_pb2.Fault(code=8, retriable=True, retry_after_ms=1_500), "id").retry_after_s == 1.5
    assert gateway_pb2.SendResponse().HasField("fault") is False
