"""The compiled encoder gives the same result as the Python encoder, or leaves the request to Python."""

import random
from typing import Any
from zlib import crc32

import pytest
from duetime.v1 import gateway_pb2, message_pb2
from duetime_format import limits, record
from duetime_format.levels import DELAY_MS_MAX, DelayLevels
from duetime_format.properties import decode_properties
from duetime_gateway.packing.sends import MessageDrafts
from duetime_gateway.sending.drafts import EncodingRules
from duetime_gateway.sending.encoding import DraftBatch, Encoder
from duetime_gateway.sending.ids import MessageIds
from duetime_gateway.shards.batcher import PUT_BYTES_MAX
from duetime_gateway.shards.route import Route
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from tests.gateway.test_admission import CLEAN, FIELD, HOSTS, TEXT
from tests.twins import compiled, damaged

take = compiled("duetime_gateway.packing._packing").take

LEVELS = DelayLevels.parse("1s 5s 10s")
NOW_MS = 1_700_000_000_000
HOST = record.host_bytes("127.0.0.1", 99)


def asking(**fields: Any) -> message_pb2.Message:
    """A message of the fields that are given; one that says when it is due replaces another."""
    return message_pb2.Message(**{name: value for name, value in fields.items() if value is not None})


FITTING = st.builds(
    asking,
    topic=st.sampled_from(["orders", "paid"]),
    body=st.binary(max_size=64),
    properties=st.dictionaries(CLEAN.filter(lambda name: name not in record.RESERVED_PROPERTIES), CLEAN, max_size=3),
    tags=st.just("") | CLEAN,
    keys=st.lists(CLEAN, max_size=3),
    sharding_key=st.just("") | CLEAN,
    queue=st.none() | st.integers(0, 3),
    delay_level=st.none() | st.integers(0, 3),
    # The last of several counts.
    delay_ms=st.none() | st.sampled_from([0, 1, 999, 1_000, 5_000, 123_456_789, DELAY_MS_MAX]),
    deliver_at_ms=st.none() | st.sampled_from([0, 1, 10**12, 10**12 + 1, NOW_MS, NOW_MS + 1, NOW_MS + DELAY_MS_MAX]),
    id=st.just("") | st.text("abcXYZ019-_.", min_size=1, max_size=40),
    born_at_ms=st.integers(0, 2),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
)
ANY = st.builds(
    asking,
    topic=st.sampled_from(["orders", "paid", "a|b", "unknown", ""]),
    body=st.binary(max_size=8),
    properties=st.dictionaries(TEXT | st.sampled_from(["TAGS", "DELAY", "1ST_POP_TIME"]), FIELD, max_size=3),
    tags=FIELD,
    keys=st.lists(FIELD, max_size=3),
    sharding_key=FIELD,
    queue=st.none() | st.integers(-1, 4),
    delay_ms=st.none() | st.sampled_from([-1, 0, 1, 1_000, 5_000, DELAY_MS_MAX + 1]),
    deliver_at_ms=st.none() | st.sampled_from([-1, 0, NOW_MS + DELAY_MS_MAX + 60_000, NOW_MS + DELAY_MS_MAX + 60_001]),
    replace=st.booleans(),
    max_wait_ms=st.sampled_from([0, 0, 0, 1, -1]),
    id=FIELD,
    born_at_ms=st.integers(-1, 2),
)


def routes(shards: list[int], host: bytes = HOST) -> dict[str, Any]:
    found = {name: Route(name, shards) for name in ("orders", "paid", "a|b")}
    for route in found.values():
        route.store_hosts.update(dict.fromkeys(shards, host))
        route.timer_lanes.update({shard: 1 + shard % 3 for shard in shards})
    return found


def rules(body_bytes_min: int = 0) -> EncodingRules:
    return EncodingRules(LEVELS, ids(), body_bytes_min)


def ids() -> MessageIds:
    made = MessageIds("127.0.0.1", 1, b"abcd", lambda: NOW_MS)
    made.renew()
    return made


def take_data(data: bytes, shards: list[int], born_host: bytes = HOST, store_host: bytes = HOST) -> Any:
    return take(data, routes(shards, store_host), rules(), born_host, NOW_MS)


def reference(data: bytes, shards: list[int], born_host: bytes = HOST, store_host: bytes = HOST) -> DraftBatch:
    request = gateway_pb2.SendRequest.FromString(data)
    batch = DraftBatch(MessageDrafts(request.messages), NOW_MS, born_host)
    known = routes(shards, store_host)
    indices = [n for n, message in enumerate(request.messages) if message.topic in known]
    if len(indices) < len(request.messages):
        batch.faults[-1] = NotImplementedError  # type: ignore[assignment]
    Encoder(rules()).encode(batch, indices, known)
    return batch


def canonical(data: bytes) -> list[Any]:
    """The records; properties without their order, which a map on the wire does not have."""
    found = []
    while data:
        one = record.decode(data)
        properties = decode_properties(one.properties)
        found.append((one.size, properties, {**vars_of(one), "properties": b""}))
        data = data[one.size :]
    return found


def vars_of(one: record.Record) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def assert_same(taken: Any, batch: DraftBatch) -> None:
    assert not batch.faults
    assert not batch.replacing
    assert dict(taken.parts) == {shard: len(group.records) for shard, group in batch.groups.items()}
    for number, (shard, _) in enumerate(taken.parts):
        assert canonical(taken.records(number)) == canonical(b"".join(batch.groups[shard].records))
    assert taken.columns()[:4] == (batch.ids, batch.queues, batch.levels, batch.lanes)


REQUESTS = st.lists(FITTING, min_size=1, max_size=5)
# No two messages with one id of their own.
DISTINCT = st.lists(FITTING, min_size=1, max_size=5, unique_by=lambda one: (one.topic, one.id or object()))
SHARDS = st.sampled_from([[0, 0, 0, 0], [3, 7, 3, 1]])


@given(REQUESTS, SHARDS, HOSTS, HOSTS)
def test_fitting_messages_are_taken_as_the_encoder_takes_them(
    sent: list[message_pb2.Message], shards: list[int], born_host: bytes, store_host: bytes
) -> None:
    request = gateway_pb2.SendRequest(messages=sent)
    data = request.SerializeToString()
    taken = take_data(data, shards, born_host, store_host)
    named = [(one.topic, one.id) for one in sent if one.id]
    if len(set(named)) < len(named):
        assert taken is None
        assert len(reference(data, shards).repeats) == len(named) - len(set(named))
        return
    assert taken is not None
    assert taken.count == len(sent)
    assert_same(taken, reference(data, shards, born_host, store_host))


@given(st.lists(ANY, min_size=1, max_size=2), SHARDS)
def test_other_messages_are_taken_alike_or_left(sent: list[message_pb2.Message], shards: list[int]) -> None:
    data = gateway_pb2.SendRequest(messages=sent).SerializeToString()
    taken = take_data(data, shards)
    if taken is not None:
        assert_same(taken, reference(data, shards))


@given(REQUESTS, st.randoms(use_true_random=False), st.integers(1, 4))
@example([message_pb2.Message(topic="orders", id="a")], random.Random(0), 1)
def test_damaged_requests_are_taken_alike_or_left(
    sent: list[message_pb2.Message], chance: random.Random, flips: int
) -> None:
    cut = damaged(gateway_pb2.SendRequest(messages=sent).SerializeToString(), chance, flips)
    taken = take_data(cut, [0, 0, 0, 0])
    if taken is None:
        return
    try:
        batch = reference(cut, [0, 0, 0, 0])
    except DecodeError:
        raise AssertionError("taken, and no SendRequest") from None
    assert_same(taken, batch)


@given(st.binary(max_size=64))
def test_bytes_of_any_kind_do_no_harm(data: bytes) -> None:
    taken = take_data(data, [0])
    assert taken is None or not reference(data, [0]).faults


@pytest.mark.parametrize("count", [2, 3, 100, limits.SEND_COUNT_MAX])
def test_equal_ids_are_found_at_any_position(count: int) -> None:
    sent = [message(id=f"id-{number}", topic=("orders", "paid")[number % 2]) for number in range(count)]
    assert take_data(gateway_pb2.SendRequest(messages=sent).SerializeToString(), [0]) is not None
    # The same id under another topic is another's.
    sent[-1].id, sent[-1].topic = "id-0", "paid"
    assert take_data(gateway_pb2.SendRequest(messages=sent).SerializeToString(), [0]) is not None
    sent[-1].topic = "orders"
    data = gateway_pb2.SendRequest(messages=sent).SerializeToString()
    assert take_data(data, [0]) is None
    assert reference(data, [0]).repeats == {count - 1: 0}


def test_ids_chosen_to_collide_cost_no_more_than_others() -> None:
    """CRC-32 is no secret: these share the lower bits of theirs, and so their place in the table."""
    alike = [name for name in (f"{number}" for number in range(600_000)) if crc32(name.encode()) & 0x1FFF == 7][:70]
    assert len(alike) == 70
    sent = [message(id=name) for name in alike] + [message(id=f"id-{number}") for number in range(4_000)]
    data = gateway_pb2.SendRequest(messages=sent).SerializeToString()
    assert take_data(data, [0]) is None
    assert reference(data, [0]).repeats == {}


def message(**fields: Any) -> message_pb2.Message:
    return message_pb2.Message(**{"topic": "orders", "body": b"body", "id": "a", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"body": b"x" * (limits.BODY_BYTES_MAX + 1)},
        {"properties": {"a": "x" * limits.PROPERTIES_BYTES_MAX}},
        {"properties": {"a": "x" * (limits.PROPERTIES_BYTES_MAX - len("a=;UNIQ_KEY=a") - 20)}},
        {"properties": {"a": "x" * (limits.PROPERTIES_BYTES_MAX - 100)}, "delay_level": 1},
        {"properties": {"TAGS": "a"}},
        {"properties": {"a": ""}},
        {"tags": "a|b"},
        {"tags": " a"},
        {"keys": ["a b"]},
        {"keys": [""]},
        {"queue": 4},
        {"queue": -1},
        {"delay_level": -1},
        {"delay_level": 4},
        {"delay_ms": -1},
        {"delay_ms": DELAY_MS_MAX + 1},
        {"deliver_at_ms": -1},
        {"deliver_at_ms": NOW_MS + DELAY_MS_MAX + 60_001},
        {"delay_ms": 7, "keys": ["a"], "replace": True},
        {"delay_ms": 7, "max_wait_ms": 1},
        {"properties": {"a": "x" * (limits.PROPERTIES_BYTES_MAX - 400)}, "delay_ms": 7},
        {"born_at_ms": -1},
        {"retry": {"max_attempts": 3}},
        {"id": "x" * 256},
        {"id": "a b"},
        {"topic": "unknown"},
        {"topic": ""},
    ],
)
def test_a_request_with_one_doubtful_message_is_left_to_the_encoder(fields: dict[str, Any]) -> None:
    request = gateway_pb2.SendRequest(messages=[message(), message(**fields)])
    assert take_data(request.SerializeToString(), [0] * 4) is None


@pytest.mark.parametrize(
    ("delayed", "added"),
    [
        ({}, limits.CHECKSUM_BYTES),
        ({"delay_level": 1}, limits.DEFERRAL_BYTES_MAX),
        ({"delay_ms": DELAY_MS_MAX}, limits.TIMER_BYTES_MAX),
        ({"deliver_at_ms": 5}, limits.TIMER_BYTES_MAX),
    ],
)
def test_properties_at_the_limit_are_taken(delayed: dict[str, int], added: int) -> None:
    value = "x" * (limits.PROPERTIES_BYTES_MAX - len("a=;UNIQ_KEY=a") - added)
    data = gateway_pb2.SendRequest(messages=[message(properties={"a": value}, **delayed)]).SerializeToString()
    taken = take_data(data, [0])
    assert_same(taken, reference(data, [0]))
    assert record.has_crc_mark(record.decode(taken.records(0)).properties)


def test_a_shard_that_is_not_ready_is_left_to_the_encoder() -> None:
    data = gateway_pb2.SendRequest(messages=[message(queue=0)]).SerializeToString()
    known = routes([0, 1])
    assert take(data, known, rules(), HOST, 1) is not None
    known["orders"].forget(0)
    assert take(data, known, rules(), HOST, 1) is None


def test_a_shard_without_timer_lanes_is_left_to_the_encoder() -> None:
    data = gateway_pb2.SendRequest(messages=[message(delay_ms=7)]).SerializeToString()
    known = routes([0])
    assert take(data, known, rules(), HOST, 1) is not None
    known["orders"].timer_lanes[0] = 0
    assert take(data, known, rules(), HOST, 1) is None


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"delay_ms": 4_000}, True),
        ({"delay_ms": 4_001}, False),
        ({"delay_level": 1}, True),
        ({"delay_level": 2}, False),
        ({"delay_ms": 5_000}, False),
        ({"deliver_at_ms": NOW_MS + 4_000}, True),
        ({"deliver_at_ms": NOW_MS + 4_001}, False),
        ({}, True),
    ],
)
def test_delays_beyond_the_topics_limit_are_left_to_the_encoder(fields: dict[str, int], is_taken: bool) -> None:
    known = {"orders": Route("orders", [0], max_delay_ms=4_000)}
    known["orders"].store_hosts[0] = HOST
    known["orders"].timer_lanes[0] = 1
    data = gateway_pb2.SendRequest(messages=[message(**fields)]).SerializeToString()
    assert (take(data, known, rules(), HOST, NOW_MS) is not None) is is_taken


def test_an_empty_body_is_left_to_the_encoder_where_it_is_refused() -> None:
    for body, least, is_taken in ((b"", 0, True), (b"", 1, False), (b"x", 1, True)):
        data = gateway_pb2.SendRequest(messages=[message(body=body)]).SerializeToString()
        taken = take(data, routes([0]), rules(least), HOST, NOW_MS)
        assert (taken is not None) is is_taken


def test_no_message_and_too_many_are_left_to_the_encoder() -> None:
    assert take_data(b"", [0]) is None
    many = [message(id="") for _ in range(limits.SEND_COUNT_MAX + 1)]
    assert take_data(gateway_pb2.SendRequest(messages=many[1:]).SerializeToString(), [0]) is not None
    assert take_data(gateway_pb2.SendRequest(messages=many).SerializeToString(), [0]) is None


@given(DISTINCT, SHARDS, st.integers(0, 1 << 62), st.booleans())
def test_results_are_in_the_order_of_the_request(
    sent: list[message_pb2.Message], shards: list[int], first: int, dues_are_given: bool
) -> None:
    taken = take_data(gateway_pb2.SendRequest(messages=sent).SerializeToString(), shards)
    answers = [
        (
            [first + n for n in range(count)],
            [NOW_MS + n for n in range(count)] if dues_are_given else [],
            (),
        )
        for _, count in taken.parts
    ]
    expected = gateway_pb2.SendResponse()
    next_of = [0] * len(answers)
    for message_id, queue, level, lane, part in zip(*taken.columns(), strict=True):
        at = next_of[part]
        next_of[part] += 1
        result = expected.results.add(
            message_id=message_id,
            shard=taken.parts[part][0],
            queue=queue,
            offset=answers[part][0][at],
            delay_level=level,
            lane=lane,
        )
        if lane and dues_are_given:
            result.deliver_at_ms = answers[part][1][at]
    assert gateway_pb2.SendResponse.FromString(taken.response(answers)) == expected


def test_a_large_request_comes_in_parts_that_fit_into_a_put() -> None:
    sizes = [3 << 20, 100, 1 << 20, 4 << 20, 5, 6]
    sent = [message(id=f"m{n}", body=bytes([n]) * size, queue=n % 2) for n, size in enumerate(sizes)]
    data = gateway_pb2.SendRequest(messages=sent).SerializeToString()
    taken = take_data(data, [3, 7])
    assert taken.parts == [(3, 1), (7, 1), (3, 2), (7, 1), (7, 1)]
    assert [len(taken.records(part)) <= PUT_BYTES_MAX for part in range(5)] == [True, True, True, False, True]
    batch = reference(data, [3, 7])
    for shard in (3, 7):
        records = [taken.records(part) for part, (at, _) in enumerate(taken.parts) if at == shard]
        assert canonical(b"".join(records)) == canonical(b"".join(batch.groups[shard].records))
    assert taken.columns()[4] == [0, 1, 2, 3, 2, 4]
    with pytest.raises(IndexError):
        taken.records(5)


def test_answers_that_do_not_fit_are_refused() -> None:
    taken = take_data(gateway_pb2.SendRequest(messages=[message()]).SerializeToString(), [0])
    for answers in ([], [([], [], ())], [([1, 2], [], ())], [([1], [1, 2], ())]):
        with pytest.raises(ValueError, match="part"):
            taken.response(answers)
