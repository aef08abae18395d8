"""Long scans take turns: one step each, round-robin, and together half of the loop's time."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, store_pb2
from duetime_core.clock import turn
from duetime_format import limits
from duetime_store.reading import reader
from duetime_store.reading.filters import Filter
from duetime_store.reading.turns import LONG_S, STEP_S, ScanTurns

from tests.store.conftest import sent
from tests.store.running import Running
from tests.store.test_finder import keyed


class Stopwatch:
    """A clock that advances by `tick_s` at each read."""

    def __init__(self, tick_s: float = 0.0) -> None:
        # A store that runs has looked at the real one.
        self.now_s = time.perf_counter()
        self.tick_s = tick_s

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


def hurried(store: Running) -> ScanTurns:
    """From now on a step is over after each piece of work."""
    store.node.parts.turns.now = Stopwatch(STEP_S)
    return store.node.parts.turns


# --- turns -----------------------------------------------------------------------------------------------------------


async def test_scans_go_round_a_step_each() -> None:
    watch = Stopwatch(STEP_S / 10)
    turns, told = ScanTurns(watch), list[str]()

    async def scan(name: str) -> None:
        with turns.walk() as walk:
            await walk.begin()
            for _ in range(3):
                told.append(name)
                watch.now_s += STEP_S
                assert walk.is_over
                await walk.turn()

    await asyncio.gather(*(scan(name) for name in "abc"))
    # The first one began immediately, and waited for its next turn before the others came.
    assert "".join(told) == "aabcabcbc"
    assert turns.waiting_count == 0


async def test_scans_together_have_half_of_the_loops_time() -> None:
    watch = Stopwatch()
    turns, began_s = ScanTurns(watch), watch.now_s
    scanned_s = 0.0

    async def scan() -> None:
        nonlocal scanned_s
        with turns.walk() as walk:
            await walk.begin()
            for _ in range(20):
                watch.now_s += 2 * STEP_S
                scanned_s += 2 * STEP_S
                await walk.turn()

    async def others() -> None:
        while True:
            watch.now_s += STEP_S / 10
            await turn()

    beside = asyncio.create_task(others())
    await asyncio.gather(*(scan() for _ in range(4)))
    beside.cancel()
    with suppress(asyncio.CancelledError):
        await beside
    assert 0 < scanned_s / (watch.now_s - began_s) <= 0.5
    assert turns.taken_s == pytest.approx(scanned_s)


async def test_short_looks_are_charged_to_the_long_ones() -> None:
    watch = Stopwatch()
    turns = ScanTurns(watch)
    for _ in range(10):
        with turns.walk() as walk:
            walk.start()
            watch.now_s += STEP_S
    waiting = asyncio.create_task(turns.next())
    await turn()
    assert turns.waiting_count == 1
    watch.now_s += 10 * STEP_S
    await waiting
    assert turns.waiting_count == 0


async def test_abandoned_scan_blocks_no_other() -> None:
    watch = Stopwatch(STEP_S / 10)
    turns = ScanTurns(watch)
    turns.end(STEP_S, given=False)
    waiting, given, other = (asyncio.create_task(turns.next()) for _ in range(3))
    await turn()
    assert turns.waiting_count == 3
    waiting.cancel()
    watch.now_s += STEP_S
    turns._resume()
    assert turns.waiting_count == 1
    # It gets its turn, and is cancelled before it learns of it.
    given.cancel()
    await asyncio.wait_for(other, 60)
    assert [one.cancelled() for one in (waiting, given)] == [True, True]


# --- calls -----------------------------------------------------------------------------------------------------------


async def test_filtered_pull_judges_few_records_at_once(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put(*(sent(f"{n}") for n in range(100)))
    judged: list[int] = []
    beside = 0
    passing = Filter.passing

    def counted(wanted: Filter, records: bytes, sizes: list[int]) -> Any:
        judged.append(beside)
        return passing(wanted, records, sizes)

    async def bystander() -> None:
        nonlocal beside
        while True:
            beside += 1
            await turn()

    monkeypatch.setattr(Filter, "passing", counted)
    monkeypatch.setattr(reader, "PIECE_RECORDS_MAX", 10)
    hurried(store)
    task = asyncio.create_task(bystander())
    answer = await store.pull(sql="UNIQ_KEY = '99'")
    task.cancel()
    assert [message.id for message in answer.messages] == ["99"]
    assert len(judged) == 10
    # The bystander had its turn between any two of them.
    assert len(set(judged)) == 10


async def test_found_messages_are_sent_before_the_next_step(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put(*(sent(f"{n}") for n in range(40)))
    monkeypatch.setattr(reader, "PIECE_RECORDS_MAX", 10)
    wanted = "UNIQ_KEY IN ('12', '15', '25')"
    # No time passes: one step is enough, however busy the machine is.
    store.node.parts.turns.now = lambda: 0.0
    whole = await store.pull(sql=wanted)
    assert ([message.id for message in whole.messages], whole.next_offset) == (["12", "15", "25"], 40)
    hurried(store)
    answer = await store.pull(sql=wanted)
    assert ([message.id for message in answer.messages], answer.next_offset) == (["12", "15"], 20)
    answer = await store.pull(20, sql=wanted)
    assert ([message.id for message in answer.messages], answer.next_offset) == (["25"], 30)


async def test_long_empty_pull_reports_its_progress(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put(*(sent(f"{n}") for n in range(40)))
    monkeypatch.setattr(reader, "PIECE_RECORDS_MAX", 10)
    store.node.parts.turns.now = Stopwatch(LONG_S / 4)
    answer = await store.pull(sql="UNIQ_KEY = 'none'", wait_ms=30_000)
    assert answer.status == gateway_pb2.PULL_STATUS_NO_MATCH
    assert not answer.messages
    assert 0 < answer.next_offset < 40
    assert answer.max_offset == 40


async def test_message_that_comes_while_a_pull_scans_another_queue_is_not_missed(
    store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put(*(sent(f"{n}") for n in range(20)), *(sent(f"b{n}", queue=1) for n in range(20)))
    monkeypatch.setattr(reader, "PIECE_RECORDS_MAX", 5)
    turns = hurried(store)
    request = gateway_pb2.PullQueuesRequest(topic="orders", sql="UNIQ_KEY = 'late'", wait_ms=30_000)
    for queue in (0, 1):
        request.queues.add(queue=queue, shard_queue=queue, offset=0)
    call = store.stub.PullQueues(request, timeout=60)
    steps = turns.count
    async with asyncio.timeout(60):
        # Queue 0 is scanned, queue 1 is not.
        while turns.count < steps + 6:
            await turn()
    await store.put(sent("late"))
    answer = await call
    assert {one.queue: [message.id for message in one.pull.messages] for one in answer.queues}[0] == ["late"]


async def test_filtered_receive_scans_in_steps_and_resumes(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put(*(sent(f"{n}") for n in range(100)))
    monkeypatch.setattr(reader, "PIECE_RECORDS_MAX", 10)
    request = consumer_pb2.ReceiveRequest(group="g", topic="orders", sql="UNIQ_KEY = '99'", max_count=10)
    request.queues.add(queue=0, shard_queue=0)
    store.node.parts.turns.now = Stopwatch(LONG_S / 20)
    answers = 0
    while not (answer := await store.stub.Receive(request, timeout=60)).messages:
        answers += 1
    assert 0 < answers < 10
    assert [one.message.id for one in answer.messages] == ["99"]
    # One that waits looks on for as long as it waits.
    reset = consumer_pb2.ResetGroupRequest(name="g", topic="orders", earliest=True)
    reset.queues.add(queue=0, shard_queue=0)
    await store.stub.ResetGroup(reset, timeout=60)
    request.wait_ms = 30_000
    answer = await store.stub.Receive(request, timeout=60)
    assert [one.message.id for one in answer.messages] == ["99"]


async def test_every_call_that_walks_takes_turns(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put(*(keyed(f"m{n}", "same") for n in range(40)), *(sent(f"{n}", topic=f"t{n}") for n in range(40)))
    queues = [{"queue": 0, "shard_queue": 0}]
    for n in range(8):
        await store.stub.PutGroup(consumer_pb2.Group(name=f"g{n}"), timeout=60)
    await store.stub.Receive(consumer_pb2.ReceiveRequest(group="g", topic="orders", queues=queues), timeout=60)
    calls: dict[str, tuple[Any, int]] = {
        "QueryMessages": (gateway_pb2.QueryMessagesRequest(topic="orders", key="same", max_count=64), 40),
        "GetMessage": (gateway_pb2.GetMessageRequest(id="m3"), 3),
        "TraceMessage": (consumer_pb2.TraceMessageRequest(id="m3"), 5),
        "SearchOffset": (gateway_pb2.SearchOffsetRequest(topic="orders", at_ms=1), 5),
        "ResetGroup": (
            consumer_pb2.ResetGroupRequest(name="g", topic="orders", queues=queues, at_ms=1, dry_run=True),
            4,
        ),
        "DescribeGroup": (consumer_pb2.DescribeGroupRequest(name="g"), 1),
        "ListQueues": (store_pb2.ListQueuesRequest(), 40),
        "ListTopics": (store_pb2.ListStoredTopicsRequest(), 40),
        "ListGroups": (consumer_pb2.ListGroupsRequest(), 8),
        "ListLanes": (gateway_pb2.ListLanesRequest(), 2),
    }
    unhurried = {name: await getattr(store.stub, name)(request, timeout=60) for name, (request, _) in calls.items()}
    turns = hurried(store)
    for name, (request, least) in calls.items():
        before = turns.count
        answer = await getattr(store.stub, name)(request, timeout=60)
        assert turns.count - before >= least, name
        assert answer == unhurried[name], name


async def test_wrong_and_new_expressions_are_parsed_in_turns(store: Running) -> None:
    await store.put(sent("0"))
    turns = store.node.parts.turns
    before = turns.count
    for number in range(5):
        await store.pull(1, sql=f"a = {number}")
    # One to parse it, one to look.
    assert turns.count == before + 10
    await store.pull(1, sql="a = 4")
    assert turns.count == before + 11


async def test_large_answers_take_turns_and_have_a_bound(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PULL_ANSWER_BYTES_MAX", 32_000)
    monkeypatch.setattr(reader, "MUCH_BYTES", 8_000)
    for number in range(6):
        await store.put(sent(f"{number}", body=bytes(10_000)))
    turns = hurried(store)
    before = turns.count
    answers = await asyncio.gather(*(store.pull(max_count=6, max_bytes=16 * 1024 * 1024) for _ in range(8)))
    assert [len(answer.messages) for answer in answers] == [3] * 8
    # Each is charged, and the next began once it was over.
    assert turns.count == before + 8
    # A reader that keeps up has small answers, and takes no turn.
    await store.pull(6)
    await store.put(sent("6"))
    assert len((await store.pull(6)).messages) == 1
    assert turns.count == before + 8


async def test_receive_without_filter_is_no_scan(store: Running) -> None:
    await store.put(*(sent(f"{n}") for n in range(10)))
    turns = store.node.parts.turns
    before = turns.count
    request = consumer_pb2.ReceiveRequest(group="g", topic="orders", queues=[{"queue": 0, "shard_queue": 0}])
    assert len((await store.pull()).messages) == 10
    assert len((await store.stub.Receive(request, timeout=60)).messages) == 10
    assert turns.count == before
    await store.pull(tags="nobody else asks for this one")
    # One to parse it, which this process then remembers, one to look.
    assert turns.count == before + 2
