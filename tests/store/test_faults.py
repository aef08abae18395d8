"""The store validates its callers as the gateway does."""

from dataclasses import replace

import pytest
from duetime_format import record
from duetime_format.limits import BODY_BYTES_MAX, QUEUE_COUNT_MAX
from duetime_store.writing.faults import QUEUE_ID_MAX_RESTORED
from duetime_store.writing.staging import OK, REFUSED

from tests.store.conftest import MIB, HandClock, Shard, restored, sent, timer


def odd(**fields: object) -> bytes:
    return record.encode(replace(record.decode(sent("A")), **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["", ".", "..", "../../../evil", "a/b", "a\0b", "a b", "ä"])
def test_topic_that_is_no_name_is_refused_alone(shard: Shard, topic: str) -> None:
    outcome = shard.put(odd(topic=topic), sent("B"))
    assert outcome.statuses == [REFUSED, OK]
    assert "characters of [%|a-zA-Z0-9_-]" in outcome.faults[0]
    assert sorted(path.name for path in (shard.root / "consumequeue").iterdir()) == ["orders"]
    assert sorted(path.name for path in shard.root.parent.iterdir()) == ["store"]


@pytest.mark.parametrize("topic", ["DT_GROUPS", "DT_QUARANTINE", "DT_CANCELLED", "DT_NEW", "rmq_sys_x", "TBW102"])
def test_system_topics_are_closed_to_sends(shard: Shard, topic: str) -> None:
    outcome = shard.put(odd(topic=topic))
    assert outcome.faults == {0: f"topic {topic} is the store's own, or a broker's"}


@pytest.mark.parametrize("name", ["DT_ENTRY", "DT_UPSERT"])
@pytest.mark.parametrize("at", ["first", "middle", "last"])
@pytest.mark.parametrize("as_timer", [True, False])
def test_replacement_properties_are_closed_to_sends(shard: Shard, name: str, at: str, as_timer: bool) -> None:
    plain = record.decode(timer("A", 5) if as_timer else sent("A"), check_crc=False)
    parts = record.without_crc_mark(plain.properties).removesuffix(b"\x02").split(b"\x02")
    parts.insert({"first": 0, "middle": 1, "last": len(parts)}[at], f"{name}\x011000:0:7".encode())
    odd_one = record.encode(replace(plain, properties=record.with_crc_mark(b"\x02".join(parts))))
    # A body may say anything.
    outcome = shard.put(sent("B", body=f"\x02{name}\x01".encode()), odd_one)
    assert outcome.statuses == [OK, REFUSED]
    assert outcome.faults == {1: f"property {name} is the store's own"}


@pytest.mark.parametrize("topic", ["%RETRY%billing", "%DLQ%billing"])
def test_topics_of_groups_are_open_to_the_retry_service(shard: Shard, topic: str) -> None:
    assert shard.put(odd(topic=topic)).statuses == [OK]


@pytest.mark.parametrize("queue", [-1, -(2**31), QUEUE_COUNT_MAX, 2**31 - 1])
def test_queue_out_of_range_is_refused(shard: Shard, queue: int) -> None:
    assert shard.put(odd(queue=queue), odd(queue=QUEUE_COUNT_MAX - 1)).statuses == [REFUSED, OK]


def test_no_put_makes_more_queues_than_the_shard_may_have(tmp_path, clock: HandClock) -> None:
    shard = Shard(tmp_path / "s", clock, topics_max=100, queues_max=100)
    try:
        assert shard.put(sent("A"), sent("B", topic="invoices")).statuses == [OK, OK]
        outcome = shard.put(sent("C", topic="letters", queue=99), sent("D", queue=900), sent("E", queue=3))
        assert outcome.statuses == [REFUSED, REFUSED, OK]
    finally:
        shard.crash()


@pytest.mark.parametrize("fields", [{"sys_flag": 4}, {"sys_flag": 12}, {"born_at_ms": -1}])
def test_half_of_a_transaction_and_a_birth_before_time_are_refused(shard: Shard, fields: dict[str, int]) -> None:
    assert shard.put(odd(**fields), sent("B")).statuses == [REFUSED, OK]


def test_body_beyond_the_limit_is_rejected(tmp_path, clock: HandClock) -> None:
    shard = Shard(tmp_path / "s", clock, segment_bytes=16 * MIB)
    try:
        outcome = shard.put(sent("A", body=bytes(BODY_BYTES_MAX + 64 * 1024)), sent("B", body=bytes(BODY_BYTES_MAX)))
        assert outcome.statuses == [REFUSED, OK]
        assert "the limit is" in outcome.faults[0]
    finally:
        shard.crash()


@pytest.mark.parametrize("target", ["DT_GROUPS", "RMQ_SYS_TRANS_OP_HALF_TOPIC"])
def test_entry_that_leads_into_a_closed_topic_is_put_aside(shard: Shard, target: str) -> None:
    shard.put(sent("A", level=1, topic=target))
    shard.clock.wall_ms += 1_000
    outcome = shard.put_entries(restored(shard.store, 1, 0, 1), lane=1, first_entry=0)
    assert outcome.statuses == [REFUSED]
    assert f"a restored record can't enter {target}" in outcome.faults[0]


def test_entry_for_a_queue_beyond_the_limit_is_refused(shard: Shard) -> None:
    shard.put(sent("A", level=1, queue=QUEUE_ID_MAX_RESTORED + 1))
    shard.clock.wall_ms += 1_000
    assert shard.put_entries(restored(shard.store, 1, 0, 1), lane=1, first_entry=0).statuses == [REFUSED]
    assert "orders" not in shard.store.queues.counts


@pytest.mark.parametrize(("topic", "queue"), [(b"../evil", 0), (b"a\0b", 0), (b"", 0), (b"orders", -1)])
def test_no_path_is_made_of_an_invalid_name(shard: Shard, topic: bytes, queue: int) -> None:
    with pytest.raises(ValueError, match="is not a valid queue"):
        shard.store.queues.get_bytes(topic, queue)
