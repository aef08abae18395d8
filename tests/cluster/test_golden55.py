"""A cluster that starts on a directory of RocketMQ 5.5.1: each line of its manifest is compared, messages with their
times and counts, topics, groups and checks of transactions."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc
from duetime.v1 import transactions_pb2 as transactions
from duetime_core.rpc.serving import make_channel
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
# Invisible time of the receives by POP.
INVISIBLE_MS = 600_000
# All kinds of lines: each is compared below, `recall` by `states`.
KINDS = {"topic", "level", "timer", "fail", "normal", "fifo", "offset", "recall", "tx", "priority", "priority+delay"}
KINDS |= {"lite", "both", "far", "check", "seen", "pop", "end"}
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


class Seen(NamedTuple):
    """The contents of a cluster at a start at the time of the broker's end, and three days later."""

    first: Stored
    last: Stored
    topics: dict[str, tuple[str, int]]
    # Attempts by id of the messages that groups receive: at the start, when leases of POP have ended, and at the end.
    groups: dict[str, list[dict[str, int]]]
    # Open transactions, with the number of the next check.
    checks: Counter[tuple[str, int]]


def group_topics(name: str) -> dict[str, str]:
    """Topics of the manifest's groups."""
    found = {line["id"]: line["topic"] for line in golden55.lines(name, "offset")}
    found |= {line["group"]: line["topic"] for line in golden55.lines(name, "pop")}
    failed = golden55.lines(name, "fail")[0]["topic"]
    return found | {golden55.prefix(name) + group: failed for group in ("g_retry", "g_dlq")}


async def received(stub: Any, name: str) -> dict[str, dict[str, int]]:
    """Attempts of each message that the groups receive now; the leases outlast the test."""
    found: dict[str, dict[str, int]] = {}
    for group, topic in group_topics(name).items():
        found[group] = {}
        request = consumer_pb2.ReceiveRequest(group=group, topic=topic, max_count=1_000, invisible_ms=43_200_000)
        for one in (await stub.Receive(request, timeout=60)).messages:
            assert one.message.id not in found[group]
            found[group][one.message.id] = one.attempt
    return found


async def topics(stub: Any) -> dict[str, tuple[str, int]]:
    """Types and numbers of queues."""
    listed = await stub.ListTopics(gateway_pb2.ListTopicsRequest(), timeout=60)
    names = gateway_pb2.TopicType.Name
    return {one.name: (names(one.message_type).removeprefix("TOPIC_TYPE_"), one.queue_count) for one in listed.topics}


async def checks(stub: Any, cluster: Cluster, name: str) -> Counter[tuple[str, int]]:
    """The first check of each open transaction of the manifest's producers."""
    found: Counter[tuple[str, int]] = Counter()
    count = sum(line["state"] == "half" for line in golden55.lines(name, "tx"))
    call = stub.WatchTransactions()
    await call.write(transactions.WatchTransactionsRequest(group=f"{golden55.prefix(name)}tx"))
    answers = aiter(call)
    await anext(answers)
    await cluster.advance("60s")
    async with asyncio.timeout(60):
        while found.total() < count:
            answer = await anext(answers)
            found.update((one.message.id, one.number) for one in answer.checks)
    call.cancel()
    return found


@asynccontextmanager
async def stub_of(cluster: Cluster) -> AsyncIterator[Any]:
    async with make_channel(cluster.address) as channel:
        yield gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]


async def seen(root: Path, name: str) -> Seen:
    at_ms = golden55.ended_at_ms(name)
    popped_at_ms = max(line["at"] for line in golden55.lines(name, "pop"))
    kept = {"retention_ms": 2 * LONGEST_MS}
    async with Cluster(root, clock=FakeClock(at_ms), store_settings=kept) as cluster, stub_of(cluster) as stub:
        store = cluster.stores[0].store
        await cluster.settle()
        first, groups = stored(store), [await received(stub, name)]
        asked = await checks(stub, cluster, name)
        await cluster.advance(f"{max(popped_at_ms + INVISIBLE_MS - cluster.clock.now_ms(), 0)}ms")
        groups.append(await received(stub, name))
        await cluster.advance(f"{LONGEST_MS}ms")
        groups.append(await received(stub, name))
        assert sum(lane.pending_count for lane in store.lanes) == 0
        by_group = {group: [each[group] for each in groups] for group in groups[0]}
        return Seen(first, stored(store), await topics(stub), by_group, asked)


def assert_messages(name: str, first: Stored, last: Stored) -> None:
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


def assert_topics(name: str, found: dict[str, tuple[str, int]]) -> None:
    for line in golden55.lines(name, "topic"):
        wanted = None if line["state"] == "refused" else (line["state"], line["queues"])
        assert found.get(line["topic"]) == wanted, line


def assert_groups(name: str, found: dict[str, list[dict[str, int]]]) -> None:
    normal, start = golden55.lines(name, "normal"), golden55.prefix(name)
    next_of = {(line["id"], line["queue"]): line["next"] for line in golden55.lines(name, "offset")}
    for group in {group for group, _ in next_of}:
        rest = [line["id"] for line in normal if line["offset"] >= next_of[group, line["queue"]]]
        assert found.pop(group)[0] == dict.fromkeys(rest, 1)
    pops = golden55.lines(name, "pop")
    for group in {line["group"] for line in pops}:
        own = [line for line in pops if line["group"] == group]
        again = [line["id"] for line in own if line["state"] != "acked"]
        fresh = {line["id"] for line in normal} - {line["id"] for line in own}
        # The fresh ones are leased again 12 h later.
        at_start, visible, _ = found.pop(group)
        assert (at_start, visible) == (dict.fromkeys(fresh, 1), dict.fromkeys(again, 2))
    retried = [line["id"] for line in golden55.lines(name, "fail") if line["state"].startswith("retry")]
    assert found.pop(f"{start}g_retry") == [{}, {}, dict.fromkeys(retried, 2)]
    assert found.pop(f"{start}g_dlq") == [{}, {}, {}]
    assert not found


def assert_checks(name: str, found: Counter[tuple[str, int]]) -> None:
    """A broker counts also the checks that no producer hears; a kill may lose the counts of RocksDB."""
    (end,) = golden55.lines(name, "end")
    asked = Counter(line["id"] for line in golden55.lines(name, "check"))
    halves = [line["id"] for line in golden55.lines(name, "tx") if line["state"] == "half"]
    assert sorted(one for one, _ in found.elements()) == sorted(halves)
    if end["how"] == "clean":
        assert all(number > max(asked[one], 1) for one, number in found)


@pytest.mark.parametrize("name", golden55.chosen(*golden55.OWN_NAMES, *golden55.NAMES))
async def test_each_line_of_the_manifest_holds(name: str, tmp_path: Path) -> None:
    golden55.unpack(name, tmp_path).rename(tmp_path / "store-0")
    found = await seen(tmp_path, name)
    assert {line["kind"] for line in golden55.manifest(name)} <= KINDS
    assert_messages(name, found.first, found.last)
    assert_topics(name, found.topics)
    assert_groups(name, dict(found.groups))
    assert_checks(name, found.checks)
