"""Limits by key: few messages with a sharding key at a time, others pass, through expiry, retries and restarts."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import consumer_pb2, store_pb2
from duetime_store.groups import keys
from duetime_store.groups.keys import KeyGate

from tests.store.conftest import sent
from tests.store.groups.running import GROUP, INVISIBLE_MS, OK, TOPIC, Consuming, copy, names, told
from tests.store.groups.test_pauses import delete_topic
from tests.store.groups.test_permits import rate_of

LONG_MS = 600_000


class Keyed(Consuming):
    """Message ids begin with their key; those with `-` have none."""

    per_key = 1
    set_at_ms = 1

    async def send(self, *ids: str, queue: int = 0, **options: Any) -> None:
        for one in ids:
            key = {} if one[0] == "-" else {"__SHARDINGKEY": one[0]}
            await self.put(sent(one, queue=queue, **key, **options))

    def limits(self) -> consumer_pb2.GroupLimits:
        found = consumer_pb2.GroupLimits(set_at_ms=self.set_at_ms)
        if self.per_key:
            found.limits.add(per_key=self.per_key)
        return found

    async def get(self, **options: Any) -> list[consumer_pb2.LeasedMessage]:
        return await self.receive(**{"limits": self.limits(), "invisible_ms": LONG_MS, **options})

    async def limit(self, per_key: int) -> None:
        self.per_key, self.set_at_ms = per_key, self.set_at_ms + 1
        await self.stub.PutGroup(consumer_pb2.Group(name=GROUP, limits=self.limits()), timeout=60)

    @property
    def gate(self) -> KeyGate:
        return self.node.parts.receiver.gates.keys._gates[GROUP, TOPIC]

    @property
    def parked(self) -> float:
        return self.node.registry.get_sample_value("duetime_store_group_parked_messages", {"group": GROUP}) or 0

    async def all_of(self, **options: Any) -> list[consumer_pb2.LeasedMessage]:
        """All messages that can be received now: a slow machine ends a receive after some."""
        found: list[consumer_pb2.LeasedMessage] = []
        while some := await self.get(**options):
            found += some
        return found


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with Keyed(tmp_path / "store") as running:
        yield running


async def test_messages_of_a_busy_key_wait_and_others_pass(store: Keyed) -> None:
    await store.send("a1", "a2", "b1", "-1", "a3", "b2", "-2")
    a1, *others = await store.all_of()
    assert (names([a1]), names(others)) == (["a1"], ["b1", "-1", "-2"])
    assert (await store.get(), await store.ready(limits=store.limits()), store.parked) == ([], False, 3)
    queue = (await store.describe()).queues[0]
    assert (queue.topic, queue.lag, queue.in_flight, queue.waiting) == (TOPIC, 7, 4, 3)
    assert await store.ack(a1) == [OK]
    assert await store.ready(limits=store.limits())
    (a2,) = await store.all_of()
    assert names([a2]) == ["a2"]
    await store.ack(a2)
    assert names(await store.all_of()) == ["a3"]
    assert store.parked == 1
    assert len(await store.receive(group="audit")) == 7


async def test_key_may_have_several_messages(store: Keyed) -> None:
    store.per_key = 2
    await store.send("a1", "a2", "a3", "a4")
    found = await store.all_of()
    assert names(found) == ["a1", "a2"]
    await store.ack(*found)
    assert names(await store.all_of()) == ["a3", "a4"]


async def test_waiting_receive_wakes_when_its_key_is_free(store: Keyed) -> None:
    await store.send("a1", "a2")
    (first,) = await store.all_of()
    waiting = asyncio.create_task(store.get(wait_ms=30_000))
    async with asyncio.timeout(60):
        while not store.node.parts.groups._lines._lines[GROUP, TOPIC].waiters:
            await store.describe()
    assert not waiting.done()
    await store.ack(first)
    assert names(await asyncio.wait_for(waiting, 60)) == ["a2"]


@pytest.mark.parametrize("how", ["expiry", "return"])
async def test_returned_message_comes_before_later_ones_of_its_key(store: Keyed, how: str) -> None:
    await store.send("a1", "a2", "a3")
    (first,) = await store.all_of(invisible_ms=INVISIBLE_MS)
    if how == "expiry":
        await store.clock.advance(INVISIBLE_MS)
    else:
        await store.change(first)
    (again,) = await store.all_of()
    assert told([again]) == [("a1", 2)]
    await store.ack(again)
    assert names(await store.all_of()) == ["a2"]


async def test_failed_message_frees_its_key_and_its_copy_needs_a_slot(store: Keyed) -> None:
    await store.send("a1", "a2", "a3")
    (first,) = await store.all_of()
    settle = store_pb2.Settle(record=0, receipt=first.receipt, group=GROUP)
    assert not any((await store.put_settling(copy("a1", key="a"), settles=[settle])).statuses)
    found = []
    while some := await store.all_of():
        (one,) = some
        found += names([one])
        await store.ack(one)
    assert (found[0], sorted(found)) == ("a2", ["a1", "a2", "a3"])


async def test_exhausted_message_frees_its_key(store: Keyed) -> None:
    await store.send("a1", "a2")
    await store.all_of(invisible_ms=INVISIBLE_MS, max_attempts=1)
    await store.clock.advance(INVISIBLE_MS)
    assert names(await store.all_of()) == ["a2"]
    assert len(await store.take()) == 1


@pytest.mark.parametrize("how", ["again", "kill"])
async def test_limit_holds_through_a_restart(store: Keyed, how: str) -> None:
    await store.send("a1", "a2", "b1", "a3", "b2")
    a1, b1 = await store.all_of()
    await store.ack(b1)
    await (store.again() if how == "again" else store.kill())
    assert names(await store.all_of()) == ["b2"]
    assert store.parked == 2
    assert await store.ack(a1) == [OK]
    (a2,) = await store.all_of()
    assert names([a2]) == ["a2"]
    await store.ack(a2)
    assert names(await store.all_of()) == ["a3"]


async def test_changed_limit_applies_to_messages_that_wait(store: Keyed) -> None:
    await store.send("a1", "a2", "a3", "a4")
    await store.all_of()
    await store.limit(2)
    assert names(await store.all_of()) == ["a2"]
    await store.limit(0)
    assert names(await store.all_of()) == ["a3", "a4"]
    assert store.parked == 0
    await store.send("a5", "a6")
    await store.limit(1)
    # The leased ones count.
    assert await store.all_of() == []
    assert store.parked == 2


async def test_parked_messages_are_bounded(store: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "PARKED_MAX", 3)
    await store.send("a1", "a2", "a3", "a4", "a5", "a6", "b1")
    leased = await store.all_of(max_count=1)
    assert (names(leased), store.parked, await store.ready(limits=store.limits())) == (["a1"], 3, False)
    seen: list[str] = []
    while leased:
        seen += names(leased)
        await store.ack(*leased)
        leased = await store.all_of(max_count=1)
    assert [one for one in seen if one[0] == "a"] == ["a1", "a2", "a3", "a4", "a5", "a6"]
    assert "b1" in seen


async def test_reset_and_deletion_forget_slots(store: Keyed) -> None:
    await store.send("a1", "a2", "a3")
    await store.all_of()
    await store.reset(earliest=True)
    assert (store.parked, store.gate._slots, store.gate._counts) == (0, {}, {})
    assert names(await store.all_of()) == ["a1"]
    await store.reset(latest=True)
    assert (store.parked, store.gate._slots, store.gate._waiting) == (0, {}, {})
    await store.send("a4")
    assert names(await store.all_of()) == ["a4"]
    await delete_topic(store)
    assert not store.node.parts.receiver.gates.keys._gates


async def test_ordered_groups_have_their_own_locks(store: Keyed) -> None:
    await store.send("a1", "a2", "b1")
    assert names(await store.get(ordered=True)) == ["a1", "a2", "b1"]
    assert store.parked == 0


async def test_rate_and_keys_hold_together(store: Keyed) -> None:
    limits = store.limits()
    limits.limits[0].rate.CopyFrom(rate_of("10/s"))
    await store.send("a1", "a2", "b1", "c1")
    assert await store.receive(limits=limits) == []
    await store.clock.advance(200)
    found = [*await store.receive(limits=limits), *await store.receive(limits=limits)]
    assert names(found) == ["a1", "b1"]
    await store.clock.advance(100)
    assert names(await store.receive(limits=limits)) == ["c1"]


@pytest.mark.parametrize("seed", range(6))
async def test_any_history_keeps_the_limit_and_the_order(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    async with Keyed(tmp_path / "store", queues=2) as store:
        store.per_key = limit = dice.choice((1, 1, 2))
        count, leased, done = 0, dict[str, consumer_pb2.LeasedMessage](), list[str]()
        for _ in range(120):
            name = dice.choice(list(leased)) if leased else ""
            match dice.randrange(8):
                case 0 | 1:
                    key, count = dice.choice("abcd-"), count + 1
                    await store.send(f"{key}{count:03}", queue="abcd-".index(key) % 2)
                case 2 | 3:
                    for one in await store.get(max_count=dice.randrange(1, 5)):
                        assert one.message.id not in leased
                        leased[one.message.id] = one
                case 4 | 5 if leased:
                    assert await store.ack(leased.pop(name)) == [OK]
                    done.append(name)
                case 6 if leased:
                    await store.change(leased.pop(name), not_attempted=True)
                case 7 if not dice.randrange(4):
                    await dice.choice((store.again, store.kill))()
            busy = Counter(name[0] for name in leased if name[0] != "-")
            assert max(busy.values(), default=0) <= limit
        while len(done) < count:
            leased |= {one.message.id: one for one in await store.get()}
            assert leased
            for name, one in leased.items():
                assert await store.ack(one) == [OK]
                done.append(name)
            leased.clear()
        assert len(set(done)) == len(done)
        if limit == 1:
            for key in "abcd":
                assert [one for one in done if one[0] == key] == sorted(one for one in done if one[0] == key)
        await store.get()
        assert (store.parked, store.gate._slots, store.gate._counts, store.gate._waiting) == (0, {}, {}, {})
