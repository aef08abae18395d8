"""Leases of push consumers: renewed while their client lives, given back when it says goodbye."""

import asyncio
from collections.abc import Sequence

import pytest
from duetime_core.testing import FakeClock
from duetime_gateway.queries import Extension, LeaseStatus
from duetime_gateway.rocketmq.clients import Clients
from duetime_gateway.rocketmq.handles import handle_of, parse_handle
from duetime_gateway.rocketmq.metrics import RocketMQMetrics
from duetime_gateway.rocketmq.renewing import Renewals
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from prometheus_client import CollectorRegistry

from tests.rocketmq.raw import Raw, message, now_ms


class Shard:
    """Records extensions; leases in `ended` are over."""

    def __init__(self) -> None:
        self.extended: list[tuple[set[bytes], int, bool]] = []
        self.ended: set[bytes] = set()

    async def extend(self, extension: Extension, remaining_ms: float | None) -> Sequence[int]:
        receipts, length_ms = set(extension.receipts), extension.invisible_ms
        self.extended.append((receipts, length_ms, extension.not_attempted))
        if not receipts & self.ended:
            return ()
        return [LeaseStatus.EXPIRED if one in self.ended else LeaseStatus.OK for one in extension.receipts]


class Rig:
    def __init__(self) -> None:
        self.clock, self.shard = FakeClock(), Shard()
        self.clients = Clients(self.clock)
        self.client = self.clients.called("", "push")
        metrics = RocketMQMetrics(CollectorRegistry())
        self.renewals = Renewals(self.shard, self.clients, self.clock, metrics)  # type: ignore[arg-type]

    async def pass_by(self, seconds: int, *, silent: bool = False) -> None:
        """Rounds every five seconds, with a call of the client in each."""
        for _ in range(seconds // 5):
            self.clock.move(5_000)
            if not silent:
                self.clients.called("", "push")
            await self.renewals.renew()


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_leases_are_renewed_before_they_end_and_no_sooner(rig: Rig) -> None:
    rig.renewals.add(rig.client, "billing", [b"a", b"b"])
    await rig.pass_by(35)
    assert rig.shard.extended == []
    await rig.pass_by(5)
    assert rig.shard.extended == [({b"a", b"b"}, 60_000, False)]
    rig.renewals.forget([b"a"])
    await rig.pass_by(40)
    assert rig.shard.extended[1:] == [({b"b"}, 60_000, False)]


async def test_a_silent_client_s_leases_end_by_themselves(rig: Rig) -> None:
    rig.renewals.add(rig.client, "billing", [b"a"])
    await rig.pass_by(60, silent=True)
    assert rig.shard.extended == []
    rig.clients.called("", "push")
    await rig.pass_by(60)
    assert rig.shard.extended == []


async def test_three_hours_are_the_most(rig: Rig) -> None:
    rig.renewals.add(rig.client, "billing", [b"a"])
    await rig.pass_by(4 * 3_600)
    assert 3 * 3_600 / 45 - 1 <= len(rig.shard.extended) <= 3 * 3_600 / 40


async def test_ended_lease_is_renewed_only_once(rig: Rig) -> None:
    rig.renewals.add(rig.client, "billing", [b"a", b"b"])
    rig.shard.ended.add(b"a")
    await rig.pass_by(80)
    assert [receipts for receipts, *_ in rig.shard.extended] == [{b"a", b"b"}, {b"b"}]


async def test_a_leaving_client_releases_its_leases(rig: Rig) -> None:
    other = rig.clients.called("", "other")
    rig.renewals.add(rig.client, "billing", [b"a"])
    rig.renewals.add(other, "billing", [b"b"])
    await rig.renewals.give_back(rig.client, None)
    assert rig.shard.extended == [({b"a"}, 0, True)]


def test_parsed_handle_equals_its_fields() -> None:
    receipt = bytes(range(20))
    for attempt, is_renewed in ((1, True), (70_000, False)):
        found = parse_handle(handle_of(receipt, attempt, is_renewed=is_renewed))
        assert (found.receipt, found.attempt, found.is_renewed) == (receipt, min(attempt, 65_535), is_renewed)


async def test_leases_of_a_client_that_left_come_to_others_at_once(raw: Raw) -> None:
    await raw.send_ok(message())
    (first,) = await raw.receive(auto_renew=True)
    assert first.system_properties.invisible_duration.seconds == 60
    other = Raw(raw.channel, 1, "other")
    polling = asyncio.ensure_future(other.receive(wait_ms=20_000, timeout=60))
    assert (await raw.call("NotifyClientTermination")).status.code == pb.OK
    (again,) = await asyncio.wait_for(polling, 60)
    assert again.system_properties.delivery_attempt == 1


async def test_a_push_consumer_s_nack_waits_for_the_backoff(raw: Raw) -> None:
    await raw.send_ok(message())
    (got,) = await raw.receive(auto_renew=True)
    began_ms = now_ms()
    answer = await raw.change(got.system_properties.receipt_handle, 0)
    assert answer.status.code == pb.OK
    (again,) = await raw.receive(auto_renew=True, wait_ms=60_000)
    assert now_ms() - began_ms >= 1_000
    assert again.system_properties.delivery_attempt == 2
