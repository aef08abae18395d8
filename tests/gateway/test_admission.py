"""Each bad input: its code, reason, field and text. And that the encoder's cheap test never differs from the rules."""

import string
from typing import Any
from zlib import crc32

import pytest
from duetime.v1 import message_pb2
from duetime_core.errors import DueTimeError, InvalidArgument
from duetime_core.rpc import retry_policy
from duetime_core.rpc.calls import fault_of
from duetime_format import admission, limits, record
from duetime_format.admission import Draft, Terms, topic_violations
from duetime_format.levels import DELAY_MS_MAX, DelayLevels
from duetime_format.properties import decode_properties
from duetime_gateway.consuming.admission import check_pull
from duetime_gateway.queries import Position, Pull, Selection
from duetime_gateway.routing.topics import check_new_topic
from duetime_gateway.sending.drafts import DraftList, EncodingRules
from duetime_gateway.sending.encoding import DraftBatch, Encoder
from duetime_gateway.sending.ids import MessageIds
from duetime_gateway.shards.route import Route
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st

LEVELS = DelayLevels.parse("1s 5s 10s")
NOW_MS = 1_700_000_000_000
HOST = record.host_bytes("127.0.0.1", 99)
INVALID, UNIMPLEMENTED = code_pb2.INVALID_ARGUMENT, code_pb2.UNIMPLEMENTED


def draft(**fields: Any) -> Draft:
    return Draft(**{"topic": "orders", "body": b"body", **fields})


def encode(*drafts: Draft, born_host: bytes = HOST, store_host: bytes = HOST) -> DraftBatch:
    """The drafts as a gateway with one shard and four queues per topic takes them."""
    batch = DraftBatch(DraftList(drafts), NOW_MS, born_host)
    routes: dict[str, Route | DueTimeError] = {}
    for name in {one.topic for one in drafts}:
        violations = list(topic_violations("topic", name))
        if violations:
            routes[name] = InvalidArgument(violations, reason="MESSAGE_INVALID")
        else:
            routes[name] = route = Route(name, [0] * 4, max_delay_ms=4_000 if name == "short" else 0)
            route.store_hosts[0] = store_host
            route.timer_lanes[0] = 2
    encoder = Encoder(EncodingRules(LEVELS, MessageIds("127.0.0.1", 1, b"abcd", lambda: NOW_MS)))
    encoder.encode(batch, range(len(drafts)), routes)
    return batch


def fault(one: Draft) -> message_pb2.Fault:
    batch = encode(one)
    assert not list(batch.all_groups())
    return fault_of(batch.faults[0])


LONG = "x" * 300
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"topic": ""}, "topic", "'' has 0 characters; a topic has 1 to 127"),
    ({"topic": "t" * 128}, "topic", f"'{'t' * 64}'... has 128 characters; a topic has 1 to 127"),
    ({"topic": "a b"}, "topic", "'a b' holds characters other than [%|a-zA-Z0-9_-]"),
    ({"topic": "günther"}, "topic", "'günther' holds characters other than [%|a-zA-Z0-9_-]"),
    ({"topic": "orders\n"}, "topic", "'orders\\n' holds characters other than [%|a-zA-Z0-9_-]"),
    (
        {"topic": "SCHEDULE_TOPIC_XXXX"},
        "topic",
        "'SCHEDULE_TOPIC_XXXX' is a system topic; only DueTime itself writes to it",
    ),
    ({"topic": "%RETRY%g"}, "topic", "'%RETRY%g' is a system topic; only DueTime itself writes to it"),
    ({"topic": "DT_QUARANTINE"}, "topic", "'DT_QUARANTINE' is a system topic; only DueTime itself writes to it"),
    ({"body": bytes(4_194_305)}, "body", "4194305 bytes exceed the limit of 4194304"),
    ({"properties": {"": "v"}}, 'properties[""]', "the name is empty"),
    ({"properties": {"x": ""}}, 'properties["x"]', "the value is empty"),
    (
        {"properties": {"x\x01": "v"}},
        'properties["x\\u0001"]',
        "U+0001 and U+0002 separate properties and are not allowed in names or values",
    ),
    (
        {"properties": {"x": "a\x02b"}},
        'properties["x"]',
        "U+0001 and U+0002 separate properties and are not allowed in names or values",
    ),
    ({"properties": {"TAGS": "v"}}, 'properties["TAGS"]', "TAGS is a system property; use the field tags"),
    ({"properties": {"KEYS": "v"}}, 'properties["KEYS"]', "KEYS is a system property; use the field keys"),
    ({"properties": {"UNIQ_KEY": "v"}}, 'properties["UNIQ_KEY"]', "UNIQ_KEY is a system property; use the field id"),
    ({"properties": {"DELAY": "3"}}, 'properties["DELAY"]', "DELAY is a system property; use the field delay_level"),
    (
        {"properties": {"TIMER_DELAY_MS": "3"}},
        'properties["TIMER_DELAY_MS"]',
        "TIMER_DELAY_MS is a system property; use the field delay_ms",
    ),
    (
        {"properties": {"DT_RETRY": "levels"}},
        'properties["DT_RETRY"]',
        "DT_RETRY is a system property; use the field retry",
    ),
    ({"retry": message_pb2.RetryPolicy(max_attempts=1_001)}, "retry.max_attempts", "1001 is not within 1 and 1000"),
    ({"retry": message_pb2.RetryPolicy(intervals={})}, "retry.intervals", "has 0 delays, not 1 to 64"),
    ({"properties": {"DT_ENTRY": "1"}}, 'properties["DT_ENTRY"]', "DT_ENTRY is a system property; no field sets it"),
    (
        {"properties": {"x": "v" * 32_767}},
        "properties",
        "32811 bytes encoded and 21 that DueTime adds exceed the limit of 32767",
    ),
    (
        {"properties": {"x": "v" * 32_500}, "delay_level": 1},
        "properties",
        "32544 bytes encoded and 320 that DueTime adds exceed the limit of 32767",
    ),
    (
        {"properties": {"x": "v" * (32_767 - 44 - 320 + 1)}, "delay_level": 1},
        "properties",
        "32448 bytes encoded and 320 that DueTime adds exceed the limit of 32767",
    ),
    ({"tags": "a|b"}, "tags", "'a|b' holds |, which separates the tags of a filter"),
    ({"tags": " a"}, "tags", "' a' begins or ends with a blank"),
    ({"tags": "a\x02b"}, "tags", "'a\\x02b' holds a control character"),
    ({"keys": ["a", ""]}, "keys[1]", "the key is empty"),
    ({"keys": ["a b"]}, "keys[0]", "'a b' holds a blank or a control character"),
    ({"keys": ["a\x01"]}, "keys[0]", "'a\\x01' holds a blank or a control character"),
    ({"sharding_key": "a\x01"}, "sharding_key", "'a\\x01' holds U+0001 or U+0002, which separate properties"),
    ({"queue": 4}, "queue", "4 is not within 0 and 3, the topic's last"),
    ({"queue": -1}, "queue", "-1 is not within 0 and 3, the topic's last"),
    ({"delay_level": -1}, "delay_level", "-1 is below 0; levels are 1 to 3, 0 is none"),
    ({"delay_ms": -1_000}, "delay_ms", "-1000 ms is below 0"),
    ({"delay_ms": (1 << 63) - 1}, "delay_ms", "106751991167d7h12m55s807ms exceeds the limit of 3660d (ten years)"),
    ({"delay_ms": 4_001, "topic": "short"}, "delay_ms", "4s1ms exceeds the limit of 4s for topic short"),
    (
        {"delay_level": 9, "topic": "short"},
        "delay_level",
        "level 9 is 10s; the limit of topic short is 4s",
    ),
    ({"delay_ms": 5_000, "delay_level": 1}, "delay_ms", "conflicts with delay_level; give one"),
    ({"delay_ms": 5_000, "deliver_at_ms": 0}, "deliver_at_ms", "conflicts with delay_ms; give one"),
    ({"deliver_at_ms": -1}, "deliver_at_ms", "-1 is below 0; it counts Unix milliseconds"),
    (
        {"deliver_at_ms": NOW_MS + 316_224_060_001},
        "deliver_at_ms",
        "2033-11-21T22:14:20.001+00:00 is 3660d1m1ms ahead; the limit is 3660d (ten years)",
    ),
    (
        {"deliver_at_ms": NOW_MS + 4_001, "topic": "short"},
        "deliver_at_ms",
        "2023-11-14T22:13:24.001+00:00 is 4s1ms ahead; the limit of topic short is 4s",
    ),
    ({"replace": True, "keys": ["a"]}, "replace", "needs a delay or a due time"),
    ({"replace": True, "delay_ms": 5}, "replace", "needs exactly one key; there are 0"),
    ({"replace": True, "delay_ms": 5, "keys": ["a", "b"]}, "replace", "needs exactly one key; there are 2"),
    (
        {"replace": True, "delay_ms": 5, "keys": ["a"], "queue": 1},
        "replace",
        "conflicts with queue: the key chooses the queue",
    ),
    (
        {"replace": True, "delay_ms": 5, "keys": ["a"], "sharding_key": "b"},
        "replace",
        "conflicts with sharding_key: the key chooses the queue",
    ),
    ({"max_wait_ms": 5, "delay_ms": 5}, "max_wait_ms", "is set without replace"),
    ({"max_wait_ms": -5, "replace": True, "keys": ["a"], "delay_ms": 5}, "max_wait_ms", "-5 ms is below 0"),
    (
        {"properties": {"x": "v" * (32_767 - 44 - 450 + 1)}, "delay_ms": 7},
        "properties",
        "32318 bytes encoded and 450 that DueTime adds exceed the limit of 32767",
    ),
    (
        {"properties": {"x": "v" * (32_767 - 51 - 450 + 1)}, "replace": True, "keys": ["a"], "delay_level": 1},
        "properties",
        "32318 bytes encoded and 450 that DueTime adds exceed the limit of 32767",
    ),
    ({"id": LONG}, "id", f"'{'x' * 64}'... has 300 characters; the limit is 255"),
    ({"id": "a b"}, "id", "'a b' holds a blank or a control character"),
    ({"id": "a\x02"}, "id", "'a\\x02' holds a blank or a control character"),
    ({"born_at_ms": -5}, "born_at_ms", "-5 is below 0; it counts Unix milliseconds"),
]


@pytest.mark.parametrize(("fields", "field", "text"), BAD, ids=[f"{field}-{n}" for n, (_, field, _) in enumerate(BAD)])
def test_bad_field_is_reported_with_value_and_limit(fields: dict[str, Any], field: str, text: str) -> None:
    found = fault(draft(**fields))
    assert (found.code, found.reason, found.retriable) == (INVALID, "MESSAGE_INVALID", False)
    assert [(one.field, one.description) for one in found.violations] == [(field, text)]
    assert found.message == f"{field}: {text}"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"deliver_at_ms": 0}, "deliver_at_ms"),
        ({"delay_ms": 7}, "delay_ms"),
        ({"delay_level": 1, "replace": True, "keys": ["a"]}, "replace"),
    ],
)
def test_a_shard_without_timer_lanes_supports_levels_only(fields: dict[str, Any], field: str) -> None:
    route = Route("orders", [0] * 4)
    route.store_hosts[0] = HOST
    batch = DraftBatch(DraftList([draft(**fields), draft(delay_level=1)]), NOW_MS, HOST)
    ids = MessageIds("127.0.0.1", 1, b"abcd", lambda: NOW_MS)
    Encoder(EncodingRules(LEVELS, ids)).encode(batch, range(2), {"orders": route})
    assert [group.indices for group in batch.all_groups()] == [[1]]
    found = fault_of(batch.faults[0])
    assert (found.code, found.reason, found.retriable) == (UNIMPLEMENTED, "NOT_SUPPORTED", False)
    assert [(one.field, one.description) for one in found.violations] == [
        (field, "shard 0 has no lane for any time; its delay levels are 1s 5s 10s")
    ]


def test_all_faults_of_a_message_are_reported_at_once() -> None:
    found = fault(
        Draft(
            topic="%DLQ%a b",
            body=bytes(limits.BODY_BYTES_MAX + 1),
            properties={"TAGS": "x", "y": ""},
            tags=" a|b",
            keys=["", "c d"],
            sharding_key="\x01",
            queue=-2,
            deliver_at_ms=-5,
            id="a b",
            born_at_ms=-1,
            replace=True,
            max_wait_ms=-1,
        )
    )
    assert (found.code, found.reason) == (INVALID, "MESSAGE_INVALID")
    expected = ["topic", "topic", "body", "properties", "properties", "tags", "tags", "keys", "keys"]
    expected += ["sharding_key", "queue", "deliver_at_ms", "id", "born_at_ms"]
    expected += ["replace", "replace", "replace", "max_wait_ms"]
    assert [one.field.partition("[")[0] for one in found.violations] == expected


def test_values_at_the_limits_are_taken() -> None:
    batch = encode(
        draft(topic="t" * 127),
        draft(body=bytes(limits.BODY_BYTES_MAX)),
        draft(body=b""),
        draft(id="x" * 255, queue=3),
        draft(id="i" * 32, properties={"x": "v" * (32_767 - 44 - 21)}),
        draft(id="i" * 32, properties={"x": "v" * (32_767 - 44 - 320)}, delay_level=3),
        draft(delay_level=2_000_000_000),
        draft(id="i" * 32, properties={"x": "v" * (32_767 - 44 - 450)}, delay_ms=DELAY_MS_MAX),
        draft(deliver_at_ms=NOW_MS + DELAY_MS_MAX + 60_000),
        draft(topic="short", delay_ms=4_000),
        draft(topic="short", deliver_at_ms=NOW_MS + 4_000),
        draft(topic="short", delay_level=1),
        draft(flag=-(1 << 31), born_at_ms=(1 << 63) - 1),
        draft(tags="two words", keys=["schlüssel"], id="a-b:c/d"),
    )
    assert not batch.faults
    assert batch.requested_levels == {6: 2_000_000_000}


def test_rules_end_at_their_limits() -> None:
    """The encoder takes most drafts without a look at the rules."""
    own, none = Terms(4, NOW_MS, max_delay_ms=5_000), Terms(4, NOW_MS)
    far_ms = NOW_MS + DELAY_MS_MAX + admission.CLOCKS_APART_MS
    for field, most, terms in (
        ("delay_ms", 5_000, own),
        ("delay_ms", DELAY_MS_MAX, none),
        ("deliver_at_ms", NOW_MS + 5_000, own),
        ("deliver_at_ms", far_ms, none),
        ("delay_level", 2, own),
        ("queue", 3, none),
    ):
        assert admission.violations(draft(**{field: most}), LEVELS, terms) == []
        assert [one.field for one in admission.violations(draft(**{field: most + 1}), LEVELS, terms)] == [field]
    assert admission.violations(draft(body=bytes(limits.BODY_BYTES_MAX)), LEVELS, none) == []
    assert admission.violations(draft(body=bytes(limits.BODY_BYTES_MAX + 1)), LEVELS, none)


def test_fields_of_a_pull_are_checked_together() -> None:
    pull = Pull("a b", Position(-1, -1), Selection(max_count=1_025, max_bytes=-1, wait_ms=30_001))
    with pytest.raises(InvalidArgument) as caught:
        check_pull(pull)
    assert caught.value.text == (
        "topic: 'a b' holds characters other than [%|a-zA-Z0-9_-]; queue: -1 is not within 0 and 1023; "
        "offset: -1 is not within 0 and 9223372036854775807; max_count: 1025 is not within 0 and 1024; "
        "max_bytes: -1 is not within 0 and 16777216; wait_ms: 30001 is not within 0 and 30000"
    )


def test_fields_of_a_new_topic_are_checked_together() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_new_topic("%RETRY%g", 1_025)
    assert caught.value.text == (
        "name: '%RETRY%g' is a system topic; only DueTime itself writes to it; "
        "queue_count: 1025 is not within 0 and 1024"
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CLEAN = st.text(string.ascii_letters + string.digits + "-_äß", min_size=1, max_size=12)
FIELD = TEXT | CLEAN
POLICIES = [
    message_pb2.RetryPolicy(),
    message_pb2.RetryPolicy(max_attempts=-1),
    retry_policy.parse("max=3"),
    retry_policy.parse("1s,5s,30s,max=5"),
    retry_policy.parse("exponential:250ms..2h,factor=3,jitter=0"),
    message_pb2.RetryPolicy(exponential=message_pb2.ExponentialBackoff(initial_ms=5, max_ms=4)),
]
DRAFTS = st.builds(
    Draft,
    topic=st.sampled_from(["orders", "paid", "a|b"]),
    body=st.binary(max_size=64),
    properties=st.dictionaries(CLEAN | TEXT | st.sampled_from(["TAGS", "DELAY"]), FIELD, max_size=3),
    tags=FIELD,
    keys=st.lists(FIELD, max_size=3),
    sharding_key=FIELD,
    queue=st.none() | st.integers(-1, 4),
    delay_level=st.just(0) | st.integers(-1, 5),
    delay_ms=st.just(0) | st.sampled_from([-1, 1, 5_000, DELAY_MS_MAX, DELAY_MS_MAX + 1]),
    deliver_at_ms=st.none() | st.sampled_from([-1, 0, 10**12, NOW_MS, NOW_MS + DELAY_MS_MAX + 60_001]),
    replace=st.booleans(),
    max_wait_ms=st.sampled_from([0, 0, 5, -1]),
    id=FIELD,
    born_at_ms=st.integers(-1, 2),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    retry=st.none() | st.sampled_from(POLICIES),
)
HOSTS = st.sampled_from([HOST, record.host_bytes("::1", 1)])


@given(DRAFTS, HOSTS, HOSTS)
def test_encoder_accepts_exactly_admitted_messages(sent: Draft, born_host: bytes, store_host: bytes) -> None:
    batch = encode(sent, born_host=born_host, store_host=store_host)
    violations = admission.violations(sent, LEVELS, Terms(4, NOW_MS))
    assert [v.field for v in (batch.faults[0].violations if batch.faults else ())] == [v.field for v in violations]
    if violations:
        return
    (group,) = batch.all_groups()
    (data,) = group.records
    assert (group is batch.replacing.get(0)) is sent.replace
    assert group.max_waits_ms == ([sent.max_wait_ms] if sent.replace else [])
    stored = record.decode(data)
    assert stored == record.decode(record.encode(stored))
    assert (stored.body, stored.flag, stored.size) == (sent.body, sent.flag, len(data))
    assert (stored.born_host, stored.store_host) == (born_host, store_host)
    assert stored.born_at_ms == (sent.born_at_ms or batch.arrived_at_ms)
    expected = dict(sent.properties)
    expected[record.UNIQ_KEY] = sent.id or batch.ids[0]
    expected |= {record.TAGS: sent.tags} if sent.tags else {}
    expected |= {record.KEYS: " ".join(sent.keys)} if sent.keys else {}
    expected |= {record.SHARDING_KEY: sent.sharding_key} if sent.sharding_key else {}
    expected |= {record.RETRY: retry_policy.render(sent.retry)} if sent.retry is not None else {}
    level = min(max(sent.delay_level, 0), 3) or LEVELS.level_of(sent.delay_ms) or 0
    if sent.deliver_at_ms is not None or (sent.delay_ms and not level) or sent.replace:
        delay_ms = sent.delay_ms or (LEVELS.delay_ms(level) if level else 0)
        asked = f"{record.TIMER_DELAY_MS}={delay_ms}"
        out = f"{delay_ms:013d}"
        if sent.deliver_at_ms is not None:
            asked = f"{record.TIMER_DELIVER_MS}={sent.deliver_at_ms}"
            out = f"{max(sent.deliver_at_ms - 1, 10**12):013d}"
        name, _, value = asked.partition("=")
        expected |= {name: value, "TIMER_OUT_MS": out, "REAL_TOPIC": sent.topic, "REAL_QID": str(batch.queues[0])}
        assert (stored.topic, stored.queue) == ("rmq_sys_wheel_timer", batch.queues[0] % 2)
        assert (batch.lanes, batch.levels) == ([1_000 + stored.queue], [0])
        ending = f"TIMER_OUT_MS\x01{out}\x02REAL_TOPIC\x01{sent.topic}\x02REAL_QID\x01{batch.queues[0]}".encode()
        assert record.without_crc_mark(stored.properties).endswith(ending)
        assert not sent.replace or batch.queues[0] == crc32(sent.keys[0].encode()) % 4
    elif level:
        assert batch.lanes == [level]
        expected |= record.deferral(level, sent.topic, batch.queues[0])
        assert (stored.topic, stored.queue) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    else:
        assert (stored.topic, stored.queue) == (sent.topic, batch.queues[0])
    assert record.has_crc_mark(stored.properties)
    assert decode_properties(record.without_crc_mark(stored.properties)) == expected
    assert sent.queue is None or batch.queues[0] == sent.queue


def test_every_reserved_property_is_refused() -> None:
    for name in record.RESERVED_PROPERTIES:
        assert fault(draft(properties={name: "x"})).reason == "MESSAGE_INVALID"
