"""The life of a message as a shard reports it: from its records, its copies' histories and the journal of groups."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, store_pb2
from duetime_format import record
from duetime_format.names import GROUPS_TOPIC, QUARANTINE_TOPIC, dlq_topic, retry_topic
from duetime_format.properties import encode_properties
from duetime_format.restore import PulledEntry, restore
from duetime_store.finding import journals, trace
from duetime_store.log.intake import parse
from duetime_store.writing.staging import PutOutcome

from tests.store.conftest import sent
from tests.store.groups.running import GROUP, TOPIC, Consuming

LANE = "SCHEDULE_TOPIC_XXXX"
RETRY, DLQ = retry_topic(GROUP), dlq_topic(GROUP)


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Consuming]:
    async with Consuming(tmp_path) as running:
        yield running


async def life(shard: Consuming, message_id: str = "A", topic: str = "") -> consumer_pb2.TraceMessageResponse:
    request = consumer_pb2.TraceMessageRequest(id=message_id, topic=topic)
    response: consumer_pb2.TraceMessageResponse = await shard.stub.TraceMessage(request, timeout=60)
    return response


def lines(response: consumer_pb2.TraceMessageResponse) -> list[str]:
    return [line(event) for event in response.events]


def line(event: consumer_pb2.TraceEvent) -> str:
    kind = consumer_pb2.TraceKind.Name(event.kind).removeprefix("TRACE_KIND_").lower()
    return " ".join(
        [kind]
        + ([f"{event.topic}:{event.queue}:{event.offset}"] if event.topic else [])
        + ([f"#{event.attempt}"] if event.attempt else [])
        + ([event.error.type] if event.error.type else [])
    )


def copy(topic: str, attempts: list[Any], *, times: int, level: int = 0, **named: str) -> bytes:
    """As a retry service makes it."""
    history = json.dumps({"attempts": attempts}) if attempts else ""
    properties = {"UNIQ_KEY": "A", record.RETRY_TOPIC: TOPIC, record.ATTEMPTS: history, **named}
    if level:
        properties |= record.deferral(level, topic, 0)
        topic = LANE
    encoded = record.with_crc_mark(encode_properties({name: value for name, value in properties.items() if value}))
    return record.encode(record.Record(topic, max(level - 1, 0), b"body", encoded, reconsume_times=times))


async def settled(shard: Consuming, message: consumer_pb2.LeasedMessage, data: bytes) -> None:
    settle = store_pb2.Settle(record=0, receipt=message.receipt, group=GROUP)
    answer = await shard.put_settling(data, settles=[settle])
    assert not any(answer.statuses)


async def restored(shard: Consuming, level: int, first: int, data: bytes, due_at_ms: int) -> None:
    """Entry `first` of a lane, as a scheduler puts it."""
    again = restore(PulledEntry(level, first, due_at_ms, data))
    answer = await shard.stub.Restore(
        store_pb2.RestoreRequest(records=again, lane=level, first_entry=first), timeout=60
    )
    assert not any(answer.statuses)


async def test_a_delayed_message_is_followed_to_its_acknowledgement(shard: Consuming) -> None:
    started = shard.clock.now_ms()
    data = sent("A", level=1)
    await shard.put(data, sent("B", level=1))
    await shard.clock.advance(1_003)
    await restored(shard, 1, 0, data, started + 1_000)
    await shard.clock.advance(10)
    (message,) = await shard.receive()
    await shard.clock.advance(20)
    await shard.ack(message)
    answer = await life(shard)
    assert lines(answer) == [
        f"accepted {LANE}:0:0",
        f"deferred {LANE}:0:0",
        f"restored {TOPIC}:0:0",
        f"received {TOPIC}:0:0 #1",
        f"acknowledged {TOPIC}:0:0 #1",
    ]
    assert (answer.id, list(answer.gaps)) == ("A", [])
    assert [event.at_ms - started for event in answer.events] == [0, 0, 1_003, 1_013, 1_033]
    _, deferred, back, received, _ = answer.events
    assert (deferred.level, deferred.due_at_ms - started) == (1, 1_000)
    assert (back.level, back.due_at_ms - started, back.late_ms) == (1, 1_000, 3)
    assert received.group == GROUP
    assert lines(await life(shard, topic=TOPIC)) == lines(answer)


@pytest.mark.parametrize("level", [0, 1])
async def test_topic_selects_among_messages_with_one_id(shard: Consuming, level: int) -> None:
    await shard.put(sent("A", level=1), sent("A", level=level, topic="invoices"))
    place = f"{LANE}:0:1" if level else "invoices:0:0"
    assert lines(await life(shard, topic=TOPIC)) == [f"accepted {LANE}:0:0", f"deferred {LANE}:0:0"]
    assert lines(await life(shard, topic="invoices")) == [f"accepted {place}", f"deferred {place}"][: 1 + level]


async def test_retry_is_of_the_topic_that_it_came_from(shard: Consuming) -> None:
    await shard.put(sent("A"), sent("A", topic="invoices"), copy(RETRY, [], times=1, level=1), copy(DLQ, [], times=2))
    assert [event.topic for event in (await life(shard, topic="invoices")).events] == ["invoices"]
    assert {event.topic for event in (await life(shard, topic=TOPIC)).events} == {TOPIC, LANE, DLQ}


async def test_failures_and_their_errors_reach_the_dead_letter_once(shard: Consuming) -> None:
    await shard.send("A")
    start = shard.clock.now_ms()
    (first,) = await shard.receive()
    await shard.clock.advance(100)
    one = [1, start, start + 100, "TimeoutError", "slow", "trace 1"]
    await settled(shard, first, data := copy(RETRY, [one], times=1, level=1))
    await shard.clock.advance(1_000)
    await restored(shard, 1, 0, data, start + 1_100)
    (second,) = await shard.receive()
    assert second.attempt == 2
    await shard.clock.advance(50)
    # The copy's history has the first one shortened.
    history = [[*one[:4], None, None], [2, start + 1_100, start + 1_150, "ValueError", "bad", "trace 2"]]
    await settled(shard, second, copy(DLQ, history, times=2, DT_DEAD_REASON="REJECTED"))
    answer = await life(shard)
    assert lines(answer) == [
        f"accepted {TOPIC}:0:0",
        f"received {TOPIC}:0:0 #1",
        f"failed {TOPIC}:0:0 #1 TimeoutError",
        f"deferred {LANE}:0:0 #1",
        f"restored {RETRY}:0:0 #1",
        f"received {RETRY}:0:0 #2",
        f"failed {RETRY}:0:0 #2 ValueError",
        f"dead {DLQ}:0:0 #2 ValueError",
    ]
    failed = answer.events[2]
    assert (failed.error.message, failed.error.trace, failed.due_at_ms - start) == ("slow", "trace 1", 1_100)
    assert answer.events[6].due_at_ms == 0
    assert {event.group for event in answer.events[1:]} == {GROUP}


async def test_a_redriven_message_keeps_its_count(shard: Consuming) -> None:
    await shard.send("A")
    start = shard.clock.now_ms()
    (first,) = await shard.receive()
    await settled(shard, first, copy(DLQ, [[1, start, start, "E", "", ""]], times=1))
    await shard.clock.advance(10)
    letter = store_pb2.DeadLetterPlace(topic=DLQ, queue=0, offset=0)
    data = copy(RETRY, [[1, start, start, "E", "", ""]], times=0, DT_REDRIVEN="1")
    answer = await shard.put_settling(data, settles=[store_pb2.Settle(record=0, dead_letter=letter, group=GROUP)])
    assert not any(answer.statuses)
    (second,) = await shard.receive()
    await shard.clock.advance(10)
    history = [[1, start, start, "E", "", ""], [2, start + 10, start + 20, "F", "", ""]]
    await settled(shard, second, copy(DLQ, history, times=1, DT_REDRIVEN="1"))
    await shard.stub.DropDeadLetters(
        store_pb2.DropDeadLettersRequest(letters=[store_pb2.DeadLetterPlace(topic=DLQ, queue=0, offset=1)]), timeout=60
    )
    answer = await life(shard)
    # The redrive gave it back, not the failure before it.
    assert [event.due_at_ms for event in answer.events] == [0] * 9
    assert lines(answer) == [
        f"accepted {TOPIC}:0:0",
        f"received {TOPIC}:0:0 #1",
        f"failed {TOPIC}:0:0 #1 E",
        f"dead {DLQ}:0:0 #1 E",
        f"redriven {RETRY}:0:0",
        f"received {RETRY}:0:0 #2",
        f"discarded {DLQ}:0:1",
        f"failed {RETRY}:0:0 #2 F",
        f"dead {DLQ}:0:1 #2 F",
    ]


async def test_ended_leases_are_reported_with_and_without_redelivery(shard: Consuming) -> None:
    await shard.send("A", "B")
    messages = await shard.receive(invisible_ms=1_000)
    await shard.change(messages[0], ms=3_000)
    await shard.clock.advance(2_000)
    # B was redelivered; A's lease was extended.
    assert [one.message.id for one in await shard.receive(invisible_ms=1_000)] == ["B"]
    assert lines(await life(shard)) == [f"accepted {TOPIC}:0:0", f"received {TOPIC}:0:0 #1"]
    await shard.clock.advance(5_000)
    answer = await life(shard, "B")
    assert lines(answer) == [
        f"accepted {TOPIC}:0:1",
        f"received {TOPIC}:0:1 #1",
        f"expired {TOPIC}:0:1 #1",
        f"received {TOPIC}:0:1 #2",
        f"expired {TOPIC}:0:1 #2",
    ]
    times = [event.at_ms - answer.events[0].at_ms for event in answer.events]
    assert times == [0, 0, 1_000, 2_000, 3_000]
    (a, b) = await shard.receive()
    await shard.change(a, ms=0, not_attempted=True)
    await shard.change(b, ms=0)
    assert lines(await life(shard, "B"))[-2:] == [f"received {TOPIC}:0:1 #3", f"expired {TOPIC}:0:1 #3"]
    assert lines(await life(shard, "A"))[-1] == f"received {TOPIC}:0:0 #2"


async def test_groups_are_separate_and_survive_a_restart(shard: Consuming) -> None:
    await shard.send("A")
    for group in ("audit", GROUP):
        (message,) = await shard.receive(group=group)
        await shard.clock.advance(1)
        await shard.ack(message, group=group)
        await shard.clock.advance(1)
    before = await life(shard)
    assert [event.group for event in before.events] == ["", "audit", "audit", GROUP, GROUP]
    await shard.again()
    assert await life(shard) == before


async def test_a_quarantined_message_has_its_reason(shard: Consuming) -> None:
    aside = copy(QUARANTINE_TOPIC, [], times=0, **{record.FAULT: "the record is torn", record.RETRY_TOPIC: ""})
    # Clients may not send one: put it as the store stages a replacement.
    store = shard.node.store
    store.stage_sent(parse(aside), PutOutcome([], stored_at_ms=store.clock.now_ms()))
    shard.node.parts.flusher.wake()
    await store.when_durable()
    (event,) = (await life(shard)).events
    assert [event] == list((await life(shard, topic=TOPIC)).events)
    assert (line(event), event.error.message) == (f"quarantined {QUARANTINE_TOPIC}:0:0", "the record is torn")


async def test_message_sent_back_by_a_broker_is_a_failure_without_error(shard: Consuming) -> None:
    await shard.put(sent("A"), copy(RETRY, [], times=1), copy(DLQ, [], times=2))
    assert lines(await life(shard)) == [
        f"accepted {TOPIC}:0:0",
        f"failed {RETRY}:0:0 #1",
        f"dead {DLQ}:0:0 #2",
    ]
    await shard.put(copy(RETRY, [["no", "such", "history"]], times=3))
    assert lines(await life(shard))[-1] == f"failed {RETRY}:0:1 #3"


async def test_unread_journals_are_reported(shard: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    await shard.send("A", "B")
    a, b = await shard.receive()
    await shard.ack(b)
    await shard.ack(a)
    assert len((await life(shard)).events) == 3
    monkeypatch.setattr(journals, "STEP_RECORDS", 1)
    monkeypatch.setattr(journals, "BYTES_MAX", 1)
    answer = await life(shard)
    assert lines(answer) == [f"accepted {TOPIC}:0:0", f"received {TOPIC}:0:0 #1"]
    (gap,) = answer.gaps
    assert gap.startswith("events of groups were read until ")
    monkeypatch.undo()
    queue = shard.node.store.queues.find(GROUPS_TOPIC, 0)
    with (shard.settings.data_dir / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(int(queue.read(0, 1)["position"][0]) + 90)
        file.write(b"\xff")
    assert list((await life(shard)).gaps) == ["1 records with events of groups are damaged"]
    monkeypatch.setattr(trace, "TRACE_RECORDS_MAX", 1)
    await shard.put(copy(RETRY, [], times=1))
    assert "more than 1 records" in (await life(shard)).gaps[0]


async def test_journals_of_a_deferral_are_not_read(shard: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "STEP_RECORDS", 1)
    monkeypatch.setattr(journals, "BYTES_MAX", 1)
    await shard.send("B")
    started = shard.clock.now_ms()
    await shard.put(data := sent("A", level=1))
    await shard.clock.advance(10)
    await shard.ack(*await shard.receive())
    pending = await life(shard)
    assert (lines(pending), list(pending.gaps)) == ([f"accepted {LANE}:0:0", f"deferred {LANE}:0:0"], [])
    await shard.clock.advance(1_000)
    await restored(shard, 1, 0, data, started + 1_000)
    assert len(await shard.receive()) == 1
    answer = await life(shard)
    assert (lines(answer)[-1], list(answer.gaps)) == (f"received {TOPIC}:0:1 #1", [])


async def test_trace_after_retention_names_its_gaps(shard: Consuming) -> None:
    start = shard.clock.now_ms()
    await shard.put(copy(RETRY, [[1, start - 50, start - 20, "E", "", ""]], times=1))
    answer = await life(shard)
    assert lines(answer) == ["received #1", "failed #1 E"]
    assert list(answer.gaps) == [
        "the record with which it was accepted is no longer stored: retention has deleted it",
    ]


async def test_message_that_is_nowhere_is_not_found(shard: Consuming) -> None:
    await shard.send("A")
    for message_id, topic in (("B", ""), ("A", "other")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await life(shard, message_id, topic)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
