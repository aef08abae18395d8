"""A cluster that the release has stopped resumes under this version."""

import hashlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncDeadLetters, AsyncPuller, AsyncReceiver
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster, FakeClock
from duetime_format.lanes import is_timer_lane

from tests.upgrade.conftest import cluster_on
from tests.upgrade.reading import read_topic, receive_all
from tests.upgrade.scene import answers

Manifest = dict[str, Any]
Stub = gateway_pb2_grpc.GatewayStub


# Files that the store rebuilds from its log.
DERIVED = ("checkpoint", "duetimeGroups", "consumequeue", "index")


@pytest.fixture(params=["all files", "log and config alone"])
async def cluster(
    request: pytest.FixtureRequest, unpack: Callable[[str], Path], manifest: Manifest
) -> AsyncIterator[Cluster]:
    """This version's, at the moment at which the release's was stopped."""
    directory = unpack("clean")
    if request.param == "log and config alone":
        for name in DERIVED:
            path = directory / "store-0" / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    async with cluster_on(directory, FakeClock(manifest["saved_at_ms"])) as cluster:
        yield cluster


@pytest.fixture
async def stub(cluster: Cluster) -> AsyncIterator[Stub]:
    async with make_channel(cluster.address) as channel:
        yield Stub(channel)  # type: ignore[no-untyped-call]


def ids(manifest: Manifest, topic: str, *, pending: bool = False, group: str = "", state: str = "") -> set[str]:
    """Of the messages that are there: pending or in their topic, and in a state for a group (empty: in none)."""
    return {
        name
        for name, message in manifest["messages"].items()
        if message["topic"] == topic
        and not message["left"]
        and bool(message["due_at_ms"]) == pending
        and (not group or message["groups"].get(group, "") == state)
    }


def test_manifest_has_one_of_everything(manifest: Manifest) -> None:
    assert len(ids(manifest, "orders", pending=True)) > 18
    assert len({lane["level"] for lane in manifest["answers"]["lanes"] if lane["pending_count"]}) == 18
    assert manifest["moved"]
    assert set(manifest["moved"]) < ids(manifest, "orders", pending=True)
    states = {state for message in manifest["messages"].values() for state in message["groups"].values()}
    assert states == {"leased", "retried", "acked", "dead", "redriven", "discarded"}
    pending = len(ids(manifest, "orders", pending=True)) + len(
        ids(manifest, "orders", group="billing", state="retried")
    )
    assert manifest["inspect"]["pendingTotal"] == pending


async def test_topics_groups_lanes_and_dead_letters_are_the_same(stub: Stub, manifest: Manifest) -> None:
    found = await answers(stub)
    # The lane of messages for any time, which the release did not know.
    (timers,) = [lane for lane in found["lanes"] if is_timer_lane(lane["level"])]
    assert (timers["pending_count"], timers["max_offset"]) == (0, 0)
    found["lanes"].remove(timers)
    # The release did not count retries that wait.
    waiting = {
        name: (int(one.pop("waiting_retries", 0)), int(one.pop("next_retry_at_ms", 0)))
        for name, one in found["described_groups"].items()
    }
    assert {name: some for name, some in waiting.items() if some[0]} == {"billing": (4, 1_700_000_880_000)}
    assert found == manifest["answers"]


async def test_pending_messages_come_once_and_at_their_time(cluster: Cluster, stub: Stub, manifest: Manifest) -> None:
    before = await read_topic(stub, "orders")
    assert sorted(message.id for message in before) == sorted(ids(manifest, "orders"))
    await cluster.advance("2h")
    after = await read_topic(stub, "orders")
    waited = ids(manifest, "orders", pending=True)
    assert sorted(message.id for message in after) == sorted(ids(manifest, "orders") | waited)
    for message in after:
        noted = manifest["messages"][message.id]
        assert hashlib.sha256(message.body).hexdigest()[:16] == noted["body"]
        if message.id in waited:
            assert message.stored_at_ms >= message.due_at_ms == noted["due_at_ms"]


async def test_group_gets_unacknowledged_messages(cluster: Cluster, manifest: Manifest) -> None:
    state = {name: ids(manifest, "orders", group="billing", state=name) for name in ("", "leased", "retried")}
    async with AsyncReceiver(cluster.address, "orders", group="billing") as receiver:
        fresh = await receive_all(receiver)
        assert sorted(message.id for message in fresh) == sorted(state[""])
        assert {message.attempt for message in fresh} == {1}
        # Policy `exponential:5m..10m`: the second delay is 10 min at most. Leases are for an hour.
        await cluster.advance("11m")
        attempts = {message.id: message.attempt for message in await receive_all(receiver)}
        assert state["retried"] <= attempts.keys()
        assert {attempts[name] for name in state["retried"]} <= {2, 3}
        assert not state["leased"] & attempts.keys()
        await cluster.advance("2h")
        attempts = {message.id: message.attempt for message in await receive_all(receiver)}
        assert state["leased"] <= attempts.keys()
        assert {attempts[name] for name in state["leased"]} <= {2, 3}
        assert attempts.keys() - state["leased"] <= ids(manifest, "orders", pending=True)


async def test_ordered_group_continues_in_order(cluster: Cluster) -> None:
    async with AsyncReceiver(cluster.address, "accounts", group="ledger") as receiver:
        assert await receive_all(receiver) == [], "the queue is leased to another receiver"
        await cluster.advance("1h")
        assert [message.id for message in await receive_all(receiver)] == [f"step-{n}" for n in range(1, 6)]


async def test_group_without_receives_starts_at_its_configured_offset(cluster: Cluster, manifest: Manifest) -> None:
    async with AsyncReceiver(cluster.address, "orders", group="newcomers") as receiver:
        assert {message.id for message in await receive_all(receiver)} == ids(manifest, "orders")


async def test_puller_resumes_at_the_groups_offsets(cluster: Cluster, manifest: Manifest) -> None:
    offsets = {queue.get("queue", 0): int(queue.get("offset", 0)) for queue in manifest["answers"]["offsets"]["queues"]}
    left = len(ids(manifest, "orders")) - sum(offsets.values())
    assert 0 < left < len(ids(manifest, "orders"))
    async with AsyncPuller(cluster.address, "orders", group="readers") as puller:
        assert puller.positions == offsets
        pulled: list[str] = []
        while len(pulled) < left:
            pulled += [message.id for message in await puller.poll(wait="10s")]
    assert len(set(pulled)) == left


async def test_dead_letters_are_redriven_and_discarded(cluster: Cluster, manifest: Manifest) -> None:
    async with AsyncDeadLetters(cluster.address, "billing") as letters:
        redriven = {result.id async for result in letters.redrive() if result.outcome == "redriven"}
        assert redriven == ids(manifest, "orders", group="billing", state="dead")
        assert [letter.id async for letter in letters.list()] == []
    async with AsyncReceiver(cluster.address, "orders", group="billing") as receiver:
        attempts = {message.id: message.attempt for message in await receive_all(receiver)}
    assert {name: attempts.get(name) for name in redriven} == dict.fromkeys(redriven, 1)
    async with AsyncReceiver(cluster.address, "parcels", group="shipping") as receiver:
        received = {message.id for message in await receive_all(receiver)}
    assert received == ids(manifest, "parcels", group="shipping", state="redriven"), "redriven by the release"


async def test_repeated_send_is_answered_with_the_first_result(stub: Stub, manifest: Manifest) -> None:
    name = max(ids(manifest, "orders", pending=True))
    message = message_pb2.Message(topic="orders", id=name, body=b"again", delay_level=1)
    answer = await stub.Send(gateway_pb2.SendRequest(messages=[message]), timeout=60)
    (result,) = answer.results
    assert result.duplicate
    assert result.deliver_at_ms == manifest["messages"][name]["due_at_ms"]
