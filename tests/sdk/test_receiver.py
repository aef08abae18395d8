"""Receivers: leases without handlers, asynchronous and from threads."""

import asyncio
import threading

import pytest
from duetime import AsyncReceiver, InvalidArgument, Overloaded, Receiver, Unavailable
from duetime.client.message import moment
from duetime_core import errors

from tests.sdk.groups import Groups


async def test_leases_are_acknowledged_extended_failed_or_given_back(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 6)
    async with AsyncReceiver(groups.address, topic, group=group, lease="30s", backoff="1s,5s,max=3") as receiver:
        messages = await receiver.receive(max=6)
        assert [message.body for message in messages] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert await receiver.ack(messages[:2]) == []
        ends_at = messages[2].lease_ends_at
        assert await receiver.extend(messages[2], "5m") == []
        assert (messages[2].lease_ends_at - ends_at).total_seconds() == pytest.approx(270, abs=5)
        failed = await receiver.nack(messages[3], ValueError("no"), after="30s")
        assert (failed.dead, failed.deliver_at) == (False, moment(groups.nodes.now_ms() + 30_000))
        dead = await receiver.nack(messages[4], "no such order", reject=True)
        assert (dead.dead, dead.deliver_at) == (True, None)
        assert await receiver.give_back(messages[5]) == []
        (again,) = await receiver.receive()
        assert (again.body, again.attempt) == (b"5", 1)
        # Messages without a lease are the answer; a repeated ack is none.
        assert await receiver.ack([again, messages[0], messages[5]]) == [messages[5]]
    assert [request.policy.max_attempts for request in groups.nacks] == [3, 3]
    assert [request.nacks[0].error.type for request in groups.nacks] == ["ValueError", "Reject"]
    assert [request.invisible_ms for request in groups.moves] == [300_000, 0]


async def test_calls_are_repeated_until_the_timeout(groups: Groups, topic: str, group: str) -> None:
    await groups.fill(topic, 1)
    for call in ("Receive", "Ack"):
        groups.faults[call] += [errors.Unavailable("away"), errors.Unavailable("away")]
    async with AsyncReceiver(groups.address, topic, group=group) as receiver:
        assert await receiver.ack(await receiver.receive()) == []
    groups.faults["Receive"].append(errors.InvalidArgument([errors.Violation("sql", "is wrong")]))
    groups.faults["Receive"] += [errors.Overloaded("too many leases", reason="LEASES_EXHAUSTED")] * 1_000
    async with AsyncReceiver(groups.address, topic, group=group, timeout="2s") as receiver:
        with pytest.raises(InvalidArgument, match="sql: is wrong"):
            await receiver.receive()
        with pytest.raises(Overloaded, match="too many leases"):
            await receiver.receive()
    await groups.stop()
    async with AsyncReceiver(groups.address, topic, group=group, timeout="1s") as receiver:
        with pytest.raises(Unavailable):
            await receiver.receive()


async def test_nothing_is_received_when_the_wait_is_over(groups: Groups, topic: str, group: str) -> None:
    await groups.make_topic(topic, 2)
    async with AsyncReceiver(groups.address, topic, group=group) as receiver:
        assert await groups.after_waits(asyncio.create_task(receiver.receive(wait="2s"))) == []
        for options in ({"max": 0}, {"max": 1_025}, {"wait": "31s"}, {"wait": -1}):
            with pytest.raises(InvalidArgument, match=next(iter(options))):
                await receiver.receive(**options)


def test_threads_may_receive(threaded_groups: Groups, topic: str, group: str) -> None:
    bodies = threaded_groups.nodes.run(threaded_groups.fill(topic, 20))
    done: list[bytes] = []
    with Receiver(threaded_groups.address, topic, group=group) as receiver:

        def work() -> None:
            while messages := receiver.receive(max=2, wait="0s"):
                assert receiver.ack(messages) == []
                done.extend(message.body for message in messages)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(done) == sorted(bodies)
