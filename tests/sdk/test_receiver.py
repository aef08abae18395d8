"""Receivers: leases without handlers, asynchronous and from threads."""

import threading

import pytest
from duetime import AsyncReceiver, InvalidArgument, Overloaded, Receiver, Unavailable
from duetime_core import errors

from tests.sdk.fake_groups import NOW_MS, FakeGroups


async def test_what_is_received_is_acknowledged_extended_failed_or_given_back(groups: FakeGroups) -> None:
    groups.fill("orders", 6)
    async with AsyncReceiver(groups.address, "orders", group="billing", lease="30s", backoff="1s,5s,max=3") as receiver:
        messages = await receiver.receive(max=6)
        assert [message.body for message in messages] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert await receiver.ack(messages[:2]) == []
        ends_at = messages[2].lease_ends_at
        assert await receiver.extend(messages[2], "5m") == []
        assert (messages[2].lease_ends_at - ends_at).total_seconds() == pytest.approx(270, abs=5)
        failed = await receiver.nack(messages[3], ValueError("no"), after="30s")
        assert failed.deliver_at is not None
        assert (failed.dead, round(failed.deliver_at.timestamp() * 1000)) == (False, NOW_MS + 30_000)
        dead = await receiver.nack(messages[4], "no such order", reject=True)
        assert (dead.dead, dead.deliver_at) == (True, None)
        assert await receiver.give_back(messages[5]) == []
        (again,) = await receiver.receive()
        assert (again.body, again.attempt) == (b"5", 1)
        # What has no lease any more is the answer.
        assert await receiver.ack([again, *messages[:2]]) == messages[:2]
    assert [request.policy.max_attempts for request in groups.nacks] == [3, 3]
    assert [request.nacks[0].error.type for request in groups.nacks] == ["ValueError", "Reject"]
    assert [request.invisible_ms for request in groups.moves] == [300_000, 0]


async def test_calls_are_repeated_until_the_timeout(groups: FakeGroups) -> None:
    groups.fill("orders", 1)
    for call in ("Receive", "Ack"):
        groups.faults[call] += [errors.Unavailable("away"), errors.Unavailable("away")]
    async with AsyncReceiver(groups.address, "orders", group="billing") as receiver:
        assert await receiver.ack(await receiver.receive()) == []
    groups.faults["Receive"].append(errors.InvalidArgument([errors.Violation("sql", "is wrong")]))
    groups.faults["Receive"] += [errors.Overloaded("too many leases", reason="LEASES_EXHAUSTED")] * 1_000
    async with AsyncReceiver(groups.address, "orders", group="billing", timeout=2) as receiver:
        with pytest.raises(InvalidArgument, match="sql: is wrong"):
            await receiver.receive()
        with pytest.raises(Overloaded, match="too many leases"):
            await receiver.receive()
    await groups.stop()
    async with AsyncReceiver(groups.address, "orders", group="billing", timeout=1) as receiver:
        with pytest.raises(Unavailable):
            await receiver.receive()


async def test_nothing_is_received_when_the_wait_is_over(groups: FakeGroups) -> None:
    groups.make_topic("orders")
    async with AsyncReceiver(groups.address, "orders", group="billing") as receiver:
        assert await receiver.receive(wait="10ms") == []
        for options in ({"max": 0}, {"max": 1_025}, {"wait": "31s"}, {"wait": -1}):
            with pytest.raises(InvalidArgument, match=next(iter(options))):
                await receiver.receive(**options)  # type: ignore[arg-type]


def test_threads_may_receive(threaded_gateway: FakeGroups) -> None:
    bodies = threaded_gateway.fill("orders", 20)
    done: list[bytes] = []
    with Receiver(threaded_gateway.address, "orders", group="billing") as receiver:

        def work() -> None:
            while messages := receiver.receive(max=2, wait="50ms"):
                assert receiver.ack(messages) == []
                done.extend(message.body for message in messages)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(done) == sorted(bodies)
