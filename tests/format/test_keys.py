"""The keys that records are indexed under, by the Python and by its compiled twin."""

from types import ModuleType

import numpy as np
import pytest
from duetime_format import keys, layout, record
from duetime_format.columns import parse, take
from duetime_format.keys import key_hash
from duetime_format.placing import place
from hypothesis import example, given
from hypothesis import strategies as st

from tests.twins import compiled

ROLLBACK = layout.SYS_TRANSACTION_ROLLBACK


def encoded(*properties: bytes, topic: str = "orders", sys_flag: int = 0) -> record.Record:
    return record.Record(topic, 1, b"body", b"\x02".join(properties), sys_flag=sys_flag)


def log_of(records: list[record.Record]) -> bytes:
    """Records at their positions, from 0 on."""
    data = b""
    for one in records:
        fields = {name: getattr(one, name) for name in ("topic", "queue", "body", "properties", "sys_flag", "magic")}
        data += record.encode(record.Record(**fields, position=len(data)))
    return data


def hashes_of(*records: record.Record) -> list[tuple[int, int]]:
    """(record, hash) of all keys."""
    run = take(log_of(list(records)), 0, 0)
    assert run.count == len(records)
    rows = keys.rows_of(run)
    return list(zip(np.searchsorted(run.positions, rows["position"]).tolist(), rows["hash"].tolist(), strict=True))


@pytest.fixture(params=["python", "compiled"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled":
        compiled("duetime_format._keys")
    else:
        monkeypatch.setattr(keys, "_twin", None)


pytestmark = pytest.mark.usefixtures("either")


def test_message_id_comes_first_then_each_word_then_the_tag() -> None:
    first = encoded(b"KEYS\x01K1  K2 ", b"TAGS\x01paid late", b"UNIQ_KEY\x01ID")
    assert hashes_of(first) == [(0, key_hash("orders", word)) for word in ("ID", "K1", "K2", "T#paid late")]
    assert keys.tag_word("paid late") == "T#paid late"


def test_records_are_distinguished() -> None:
    none, second = encoded(b"TAGS\x01"), encoded(b"KEYS\x01K1", topic="%RETRY%group")
    assert hashes_of(none, second, none) == [(1, key_hash("%RETRY%group", "K1"))]
    assert hashes_of(none) == []


def test_last_of_equal_names_counts_and_an_empty_one_does_not() -> None:
    twice = encoded(b"KEYS\x01K1", b"KEYS\x01K2", b"UNIQ_KEY\x01ID", b"UNIQ_KEY\x01", b"MY_KEYS\x01K3")
    assert hashes_of(twice) == [(0, key_hash("orders", "ID")), (0, key_hash("orders", "K2"))]


def test_rolled_back_record_is_not_indexed_and_a_half_one_is() -> None:
    of = {flag: encoded(b"UNIQ_KEY\x01ID", sys_flag=flag) for flag in (ROLLBACK, layout.SYS_TRANSACTION_PREPARED)}
    assert hashes_of(of[ROLLBACK]) == []
    assert len(hashes_of(of[layout.SYS_TRANSACTION_PREPARED])) == 1


def test_words_are_hashed_as_java_does() -> None:
    odd = encoded(
        "UNIQ_KEY\x01a\u8ba2\U0001f600".encode(), b"KEYS\x01a\xff\xfeb polygenelubricants", b"TAGS\x01\xc3\xa9t\xc3\xa9"
    )
    expected = ["a\u8ba2\U0001f600", "a\ufffd\ufffdb", "polygenelubricants", "T#\u00e9t\u00e9"]
    assert hashes_of(odd) == [(0, key_hash("orders", word)) for word in expected]


def test_long_topics_of_version_2_are_read() -> None:
    topic = "%RETRY%" + "g" * 130
    long = record.Record(topic, 0, b"", b"KEYS\x01K1", magic=layout.MAGIC_V2)
    assert hashes_of(long) == [(0, key_hash(topic, "K1"))]


def test_rows_have_position_and_store_time_of_a_record() -> None:
    four, six = ("orders", bytes(8)), ("orders", bytes(20))
    data = b""
    for stored_at_ms, (topic, host) in enumerate([four, six, four], 1_700_000_000_000):
        data += record.encode(
            record.Record(
                topic, 1, b"body", b"UNIQ_KEY\x01ID", born_host=host, position=len(data), stored_at_ms=stored_at_ms
            )
        )
    run = take(data, 0, 0)
    rows = keys.rows_of(run)
    assert rows["position"].tolist() == run.positions.tolist()
    assert rows["stored_at_ms"].tolist() == run.stored_at_ms.tolist() == [1_700_000_000_000 + n for n in range(3)]


def test_rows_of_a_put_have_the_places_that_were_filled_in() -> None:
    run = parse(record.encode(encoded(b"UNIQ_KEY\x01ID")) + record.encode(encoded(b"KEYS\x01a b")))
    placed = place(run, np.array([500, 700]), [0], [0], 42)
    rows = keys.rows_placed(run, placed.data)
    assert rows is not None
    assert rows[["position", "stored_at_ms"]].tolist() == [(500, 42), (700, 42), (700, 42)]
    assert [keys.rows_placed(run, placed.data, most) is None for most in (2, 3)] == [True, False]


PROPERTY = st.one_of(
    st.sampled_from(
        [
            b"UNIQ_KEY\x01ID",
            b"KEYS\x01 a  b",
            b"KEYS\x01",
            b"KEYS",
            b"K",
            b"",
            b"U\x01\x01",
            b"XKEYS\x01c",
            b"TAGS\x01d e",
        ]
    ),
    st.binary(max_size=8).map(lambda value: b"KEYS\x01" + value),
    st.binary(max_size=12),
)


@given(st.lists(st.tuples(st.lists(PROPERTY, max_size=5), st.sampled_from([0, 4, 8, 12])), max_size=5))
@example([([b"KEYS\x01\xc3", b"UNIQ_KEY\x01\xc3"], 0)])
def test_twin_finds_the_same_in_any_bytes(rows: list[tuple[list[bytes], int]]) -> None:
    twin: ModuleType = compiled("duetime_format._keys")
    records = [encoded(*properties, sys_flag=flag) for properties, flag in rows]
    run = take(log_of(records), 0, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "_twin", None)
        expected = keys.rows_of(run).tolist()
        patch.setattr(keys, "_twin", twin)
        assert keys.rows_of(run).tolist() == expected


def test_twin_does_not_trust_columns() -> None:
    twin: ModuleType = compiled("duetime_format._keys")
    run = take(log_of([encoded(b"UNIQ_KEY\x01ID", b"KEYS\x01a b")]), 0, 0)
    for row, value in (
        (0, -1),
        (0, 50),
        (1, 1 << 40),
        (1, -5),
        (2, 1),
        (2, -1),
        *((row, 1 << 40) for row in (13, 14, 15)),
    ):
        wrong = run.columns.copy()
        wrong[row, 0] = value
        with pytest.raises(ValueError, match="record 0 is not within"):
            twin.rows_of(run.data, wrong, run.keys, 100)
