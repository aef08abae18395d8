"""Every reader of a record agrees on it, for any properties: Python, compiled, SDK and Spark."""

import pyarrow as pa
import pytest
from duetime.client.message import moment
from duetime.client.record import ReceivedMessage
from duetime.v1 import gateway_pb2
from duetime_format import columns, expiry, keys, priority, record
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.properties import as_text, decode_properties, value_of
from duetime_format.record import RESERVED_PROPERTIES
from duetime_spark.decoding import decode
from duetime_store.reading import messages
from hypothesis import example, given
from hypothesis import strategies as st

from tests.twins import compiled

NAMES = (
    "TAGS",
    "KEYS",
    "UNIQ_KEY",
    "REAL_TOPIC",
    "DELAY",
    "color",
    "",
    "TAG",
    "XTAGS",
    priority.PRIORITY,
    record.EXPIRES,
)
VALUES = (
    b"",
    b"paid",
    b"a b",
    b"  a  b ",
    "größe😀".encode(),
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"x\x01y",
    b"3",
    b"2147483647",
    b"2147483648",
    b"1700000000123",
    b"0" * 30,
)
parts = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)).map(lambda pair: pair[0].encode() + b"\x01" + pair[1]),
    st.sampled_from([b"", b"TAGS", b"\x01paid", b"DT_ENTRY\x012:7:1700000000000", b"__CRC32#\x010000000000"]),
)
endings = st.sampled_from([b"", b"\x02", record.CRC_ENDING])
properties = st.tuples(st.lists(parts, max_size=6).map(b"\x02".join), endings).map(b"".join)
topics = st.sampled_from(["orders", SCHEDULE_TOPIC, "töpic"])
hosts = st.sampled_from([bytes(8), bytes(20)])
TWICE = b"TAGS\x01first\x02UNIQ_KEY\x01A\x02TAGS\x01last\x02UNIQ_KEY\x01B\x02TAGS\x01"


def sealed(data: bytes) -> bytes:
    if not record.has_crc_mark(data[-len(record.CRC_ENDING) :]):
        return data
    whole = bytearray(data)
    whole[-record.CRC_DIGITS - 1 : -1] = record.crc_digits(data[: -len(record.CRC_MARK)])
    return bytes(whole)


def in_both(read: object, *modules: object) -> list[object]:
    """A call's results in Python and compiled."""
    found = []
    for wanted in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            for module, name, twin in modules:  # type: ignore[attr-defined]
                patch.setattr(module, name, compiled(twin) if wanted else None)
            found.append(read())  # type: ignore[operator]
    return found


@given(topics, properties, hosts)
@example("orders", TWICE, bytes(8))
@example(SCHEDULE_TOPIC, TWICE + b"\x02REAL_TOPIC\x01one\x02REAL_TOPIC\x01two", bytes(20))
def test_all_readers_agree(topic: str, encoded: bytes, host: bytes) -> None:
    made = record.Record(topic, 1, b"body", encoded, born_host=host, store_host=host, queue_offset=5)
    data = sealed(record.encode(made))
    whole = encoded.removesuffix(b"\x02")
    told = decode_properties(data[-len(encoded) :] if encoded else b"")
    tags, message_id = told.get("TAGS", ""), told.get("UNIQ_KEY", "")
    words = [word for word in [message_id, *told.get("KEYS", "").split(" ")] if word]
    words += [keys.tag_word(tags)] if tags else []

    # One value, and one name among others.
    for name in NAMES[:6]:
        assert as_text(value_of(encoded, name.encode())) == told.get(name, "")
    wanted = tuple(name.encode() for name in NAMES[:6])
    for found in in_both(
        lambda: columns.values(data, [len(data)], wanted), (columns, "_twin", "duetime_format._columns")
    ):
        assert [as_text(column[0] or b"") for column in found] == [told.get(name, "") for name in NAMES[:6]]  # type: ignore[attr-defined]

    # Results of recovery, intake and the index.
    hashes = [keys.key_hash(topic, word) for word in words]
    for run in in_both(lambda: columns.take(data, 0, 0), (columns, "_twin", "duetime_format._columns")):
        assert isinstance(run, columns.RecordRun)
        assert run.count == (not whole.endswith(b"\0"))
        assert run.tags_codes.tolist() == [record.java_hash(tags)]
        assert (run.id_hashes[0] >= 0) == bool(message_id)
        assert columns.parse(data).columns.tolist() == run.columns.tolist()
        for rows in in_both(lambda run=run: keys.rows_of(run), (keys, "_twin", "duetime_format._keys")):  # type: ignore[misc, attr-defined]
            assert rows["hash"].tolist() == hashes  # type: ignore[index]

    # Results of readers: the store, the SDK, Spark.
    own = {name: value for name, value in told.items() if name not in RESERVED_PROPERTIES}
    for response in in_both(lambda: stored(data), (messages, "_compiled", "duetime_store.reading._messages")):
        (message,) = response.messages  # type: ignore[attr-defined]
        assert (message.priority if message.HasField("priority") else None) == priority.of(told)
        assert (message.tags, message.id, dict(message.properties)) == (tags, message_id, own)
        assert message.expires_at_ms == expiry.of_record(record.decode(data))
        assert list(message.keys) == told.get("KEYS", "").split()
    received = ReceivedMessage(data)
    assert (received.tags, received.properties, received.topic) == (tags, own, topic)
    assert received.priority == priority.of(told)
    expires_at_ms = expiry.of_record(record.decode(data))
    assert received.expires_at == (moment(expires_at_ms) if expires_at_ms else None)
    assert received.id == (message_id or record.offset_message_id(host, 0))
    batch, _, _ = decode.decode(data, 0, len(data), len(data) + 8)
    (row,) = pa.Table.from_batches([batch]).to_pylist()
    assert (row["tags"] or "", row["id"] or "", row["topic"]) == (tags, message_id, topic)
    assert dict(row["properties"]) == decode_properties(record.without_crc_mark(encoded))


def stored(data: bytes) -> gateway_pb2.PullResponse:
    response = gateway_pb2.PullResponse()
    messages.add_messages(response, data, [len(data)])
    return response
