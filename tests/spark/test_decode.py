"""Records as Arrow: the compiled twin and the Python agree with each other, and with a walk of the store."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from duetime_format import layout, record
from duetime_format.batches import marks
from duetime_format.record import Record
from duetime_shard.walk import DamagedRecord, SegmentBlank, SkippedBytes, scan_runs
from duetime_spark.decoding import decode
from duetime_spark.decoding.decode import DEFAULT_COLUMNS, SCHEMA, Decoder, batches
from duetime_spark.decoding.rows import PythonRows, TwinRows
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from tests.spark.log_records import encoded, flipped, flips, items, log_of, records
from tests.twins import compiled

ALL = SCHEMA.names
BASE = 4_096
PLAIN = Record("t", 0, b"body", b"")
DDL = (
    "shard INT, topic STRING, queue INT, offset BIGINT, position BIGINT, size INT, id STRING, tags STRING, "
    "keys STRING, level INT, real_topic STRING, real_queue INT, lane_level INT, lane_offset BIGINT, "
    "lane_due_at_ms BIGINT, born_at_ms BIGINT, stored_at_ms BIGINT, born_host STRING, store_host STRING, flag INT, "
    "sys_flag INT, reconsume_times INT, prepared_offset BIGINT, body_crc INT, body_size INT, body BINARY, "
    "properties MAP<STRING,STRING>, damage STRING"
)
ROWS = {"twin": TwinRows, "python": PythonRows}


class Segment:
    """Bytes of a log from a position on, as walk.py wants them."""

    def __init__(self, data: bytes, base: int = BASE) -> None:
        self.base, self.end, self._data = base, base + len(data), data

    def read_file(self, position: int, length: int) -> bytes:
        return self._data[position - self.base :][:length]

    def next_data(self, position: int) -> int | None:
        return position

    def segment_from(self, position: int) -> "Segment | None":
        return self if position < self.end else None


def in_pieces(data: bytes, piece: int, make: Callable[..., Any], **options: Any) -> tuple[pa.Table, Decoder]:
    """All of a segment, read in pieces."""
    end = BASE + len(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_twin", None if make is PythonRows else True)
        patch.setattr(decode, "_CHUNK_BYTES", piece)
        decoder = Decoder(end, end, **{"columns": ALL, **options})
        found = list(batches(lambda position, length: data[position - BASE :][:length], BASE, decoder, end, end))
    for batch in found:
        batch.validate(full=True)
    return pa.Table.from_batches(found, decoder.schema), decoder


def whole(data: bytes, make: Callable[..., Any] = TwinRows, **options: Any) -> list[dict[str, Any]]:
    return in_pieces(data, 1 << 20, make, **options)[0].to_pylist()


@pytest.fixture(params=["twin", "python"])
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "twin":
        compiled("duetime_spark.decoding._decode")
    return ROWS[request.param]


@given(
    made=items,
    damage=flips,
    cut=st.integers(0, 60),
    piece=st.integers(20, 900),
    check_crc=st.booleans(),
    rows_max=st.integers(1, 5),
)
def test_twin_decodes_as_the_python_does(
    made: list, damage: list[tuple[int, int]], cut: int, piece: int, check_crc: bool, rows_max: int
) -> None:
    compiled("duetime_spark.decoding._decode")
    data = flipped(log_of(made, BASE)[0], damage)
    data = data[: max(len(data) - cut, 0)]
    twin, twins = in_pieces(data, piece, TwinRows, check_crc=check_crc, rows_max=rows_max)
    # Same number of rows for both, so that they see the same bytes at a time: the texts about skipped bytes depend on
    # it.
    python, pythons = in_pieces(data, piece, PythonRows, check_crc=check_crc, rows_max=rows_max)
    assert twin.to_pylist() == python.to_pylist()
    assert twins.skipped == pythons.skipped
    # Nothing else does.
    at_once, decoder = in_pieces(data, 1 << 20, PythonRows, check_crc=check_crc)
    assert twin.to_pylist() == at_once.to_pylist()
    assert [(one.position, one.size) for one in twins.skipped] == [(one.position, one.size) for one in decoder.skipped]


# The second record's body is damaged. An example fails at once, and the search for a small one may take minutes.
@example(made=[(PLAIN, False)] * 3, damage=[(len(encoded(PLAIN, BASE, with_crc=False)) + 89, 1)], blank=8, piece=900)
@given(made=items, damage=flips, blank=st.integers(8, 100), piece=st.integers(20, 900))
def test_a_segment_is_judged_as_a_walk_of_the_store_judges_it(
    made: list, damage: list[tuple[int, int]], blank: int, piece: int
) -> None:
    data, _ = log_of(made, BASE)
    data = flipped(data, damage) + layout.blank(blank) + bytes(blank - 8)
    table, decoder = in_pieces(data, piece, TwinRows)
    rows, skipped = [], []
    for item in scan_runs(Segment(data), BASE):  # type: ignore[arg-type]
        if isinstance(item, DamagedRecord):
            rows.append((item.position, item.record.size, item.damage))
        elif isinstance(item, SkippedBytes):
            skipped.append((item.position, item.size))
        elif not isinstance(item, SegmentBlank):
            rows += [(*pair, None) for pair in zip(item.positions.tolist(), item.sizes.tolist(), strict=True)]
    told = [(row["position"], row["size"], row["damage"]) for row in table.to_pylist()]
    assert told == rows
    # The walk does not report damage without an intact record after it.
    left_out = [one for one in decoder.skipped if (one.position, one.size) not in skipped]
    assert len(decoder.skipped) - len(left_out) == len(skipped)
    assert all(not rows or one.position >= rows[-1][0] + rows[-1][1] for one in left_out)


def test_all_fields_of_a_record(make: Callable[..., Any]) -> None:
    text = "KEYS\x01a b\x02TAGS\x01paid\x02UNIQ_KEY\x01ID7\x02DELAY\x013\x02"
    text += "REAL_TOPIC\x01orders\x02REAL_QID\x015\x02n\x01Grüße"
    found = Record(
        "SCHEDULE_TOPIC_XXXX",
        2,
        b"\0body",
        text.encode(),
        flag=-9,
        sys_flag=0x301 | layout.SYS_TRANSACTION_COMMIT,
        born_at_ms=1_700_000_000_001,
        born_host=record.host_bytes("10.1.2.3", 40_000),
        stored_at_ms=1_700_000_000_002,
        store_host=record.host_bytes("::1", 10_911),
        reconsume_times=2,
        prepared_transaction_offset=1 << 40,
        queue_offset=1 << 33,
    )
    data = encoded(found, BASE, with_crc=True)
    (row,) = whole(data, make, shard=3)
    assert row == {
        "shard": 3,
        "topic": "SCHEDULE_TOPIC_XXXX",
        "queue": 2,
        "offset": 1 << 33,
        "position": BASE,
        "size": len(data),
        "id": "ID7",
        "tags": "paid",
        "keys": "a b",
        "level": 3,
        "real_topic": "orders",
        "real_queue": 5,
        "lane_level": None,
        "lane_offset": None,
        "lane_due_at_ms": None,
        "born_at_ms": 1_700_000_000_001,
        "stored_at_ms": 1_700_000_000_002,
        "born_host": "10.1.2.3:40000",
        "store_host": "[::1]:10911",
        "flag": -9,
        "sys_flag": 0x301 | layout.SYS_TRANSACTION_COMMIT | layout.SYS_STORE_V6,
        "reconsume_times": 2,
        "prepared_offset": 1 << 40,
        "body_crc": record.body_crc(b"\0body"),
        "body_size": 5,
        "body": b"\0body",
        "properties": [tuple(part.split("\x01")) for part in text.split("\x02")],
        "damage": None,
    }


def test_record_of_a_batch_has_no_prepared_offset(make: Callable[..., Any]) -> None:
    mark = int(marks(np.array([BASE]), np.array([400]))[0])
    for flag, expected in ((0, 0), (layout.SYS_TRANSACTION_PREPARED, mark), (layout.SYS_TRANSACTION_ROLLBACK, mark)):
        found = Record("orders", 0, b"body", b"", sys_flag=flag, prepared_transaction_offset=mark)
        (row,) = whole(encoded(found, BASE, with_crc=True), make)
        assert row["prepared_offset"] == expected


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"n\x01a\x02m\x01b\x02n\x01c\x02", {"n": "c", "m": "b"}),
        (b"n\x01a\x02n\x01\x02", {"n": "a"}),
        (b"\x01a\x02bare\x02n\x01\x02m\x01a\x01b", {"m": "a\x01b"}),
        (b"n\x01\xff\xfeb", {"n": "\ufffd\ufffdb"}),
        (b"\xff\x01a\x02\xfe\x01b", {"\ufffd": "b"}),
        (b"n\x01a\0b\x02", {"n": "a\0b"}),
        (b"n\x01\xc3", {"n": "\ufffd"}),
        (b"", {}),
    ],
)
def test_properties_equal_rocketmqs_reading(make: Callable[..., Any], text: bytes, wanted: dict[str, str]) -> None:
    for with_crc in (False, True):
        (row,) = whole(encoded(Record("t", 0, b"b", text), BASE, with_crc=with_crc), make)
        assert row["properties"] == list(wanted.items())


def test_a_restored_record_names_its_lane_entry(make: Callable[..., Any]) -> None:
    texts = [
        b"DELAY\x013\x02DT_ENTRY\x013:9:77",
        b"DT_ENTRY\x013:9:77\x02n\x01v",  # only the last property counts
        b"n\x01v\x02DT_ENTRY\x013:9",
        b"n\x01v\x02DT_ENTRY\x012147483648:9:77",
        b"n\x01v\x02DT_ENTRY\x013:9223372036854775808:77",
    ]
    data, _ = log_of([(Record("t", 0, b"b", text), True) for text in texts], BASE)
    found = [(row["lane_level"], row["lane_offset"], row["lane_due_at_ms"]) for row in whole(data, make)]
    assert found == [(3, 9, 77)] + [(None, None, None)] * 4


def test_damage_is_reported_and_invalid_bytes_are_skipped(make: Callable[..., Any]) -> None:
    made = [(Record("t", 0, b"body", b"n\x01v", queue_offset=n), n % 2 == 0) for n in range(4)]
    data, sizes = log_of(made, BASE)
    damaged = bytearray(data)
    damaged[89] ^= 1  # the body of the first, which has a CRC of the whole record
    damaged[sizes[0] + 89] ^= 1  # and of the second, which has none
    damaged[sum(sizes[:2])] ^= 1  # the size of the third
    table, decoder = in_pieces(bytes(damaged), 1 << 20, make)
    rows = table.to_pylist()
    assert [row["offset"] for row in rows] == [0, 1, 3]
    assert rows[0]["damage"] == "the record does not match its CRC"
    assert rows[1]["damage"].startswith("body CRC ")
    assert rows[2]["damage"] is None
    assert [(one.position, one.size) for one in decoder.skipped] == [(BASE + sum(sizes[:2]), sizes[2])]
    assert "no record" in decoder.skipped[0].damage
    assert [row["damage"] for row in whole(bytes(damaged), make, check_crc=False)] == [None] * 3


@pytest.mark.parametrize("search", [12, 64, 100])
def test_records_are_found_again_wherever_a_search_was_cut(
    make: Callable[..., Any], search: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "_SEARCH_BYTES", search)
    for length in range(90, 110):
        data, sizes = log_of([(Record("t", 0, b"b", b"n" * length), False), (Record("u", 0, b"b", b""), False)], BASE)
        table, decoder = in_pieces(b"\1" + data[1:], 1 << 20, make)
        assert table.column("topic").to_pylist() == ["u"]
        assert [(one.position, one.size) for one in decoder.skipped] == [(BASE, sizes[0])]


def test_a_record_after_damage_is_found_wherever_pieces_end(make: Callable[..., Any]) -> None:
    """Also where a piece ends with the first bytes that could tell a record."""
    damaged = bytearray(encoded(Record("orders", 0, bytes(64), b""), BASE, with_crc=True))
    damaged[0] = 0x7F
    at = BASE + len(damaged)
    data = bytes(damaged) + encoded(Record("orders", 1, b"intact", b""), at, with_crc=True)
    for piece in range(len(damaged), len(data)):
        table, decoder = in_pieces(data, piece, make)
        assert table["position"].to_pylist() == [at], f"pieces of {piece} bytes"
        assert [(one.position, one.size) for one in decoder.skipped] == [(BASE, len(damaged))]


def test_a_mark_that_does_not_lead_to_the_end_closes_nothing(make: Callable[..., Any]) -> None:
    data, sizes = log_of([(Record(name, 0, b"b", b""), False) for name in "tuv"], BASE)
    marked = data[: sizes[0]] + layout.blank(9) + data[sizes[0] + 8 :]
    table, decoder = in_pieces(marked, 1 << 20, make)
    assert table.column("topic").to_pylist() == ["t", "v"]
    assert [(one.position, one.size) for one in decoder.skipped] == [(BASE + sizes[0], sizes[1])]


def test_skipped_bytes_end_with_the_range(make: Callable[..., Any]) -> None:
    """The reader of the next range reports the rest."""
    data, sizes = log_of([(Record(name, 0, b"b", b""), False) for name in "tuvw"], BASE)
    damaged = data[: sizes[0]] + bytes(sizes[0] * 2) + data[sizes[0] * 3 :]
    bound, middle = BASE + len(data), BASE + 2 * sizes[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_twin", None if make is PythonRows else True)
        told = []
        for start, end in ((BASE, middle), (middle, bound)):
            decoder = Decoder(end, bound, columns=["topic"])
            assert decoder.feed(damaged[start - BASE :], start) == end
            told.append((decoder.take().to_pydict()["topic"], [(one.position, one.size) for one in decoder.skipped]))
    assert told == [(["t"], [(BASE + sizes[0], sizes[0])]), (["w"], [(middle, sizes[0])])]


def test_a_truncated_file_is_reported(make: Callable[..., Any]) -> None:
    data, sizes = log_of([(Record("t", 0, b"body" * 20, b""), True)] * 3, BASE)
    end = BASE + len(data)
    short = data[: sizes[0] + 130]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_twin", None if make is PythonRows else True)
        decoder = Decoder(end, end)
        found = list(batches(lambda position, length: short[position - BASE :][:length], BASE, decoder, end, end))
    assert sum(batch.num_rows for batch in found) == 1
    assert decoder.skipped == [
        SkippedBytes(
            BASE + sizes[0], end - BASE - sizes[0], f"the file ends within its segment, at position {BASE + len(short)}"
        )
    ]


def test_only_records_starting_before_the_end_are_decoded(make: Callable[..., Any]) -> None:
    data, sizes = log_of([(Record("t", n, b"b", b""), False) for n in range(3)], BASE)
    bound = BASE + len(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_twin", None if make is PythonRows else True)
        for end, wanted in ((BASE + sizes[0], [0]), (BASE + sizes[0] + 1, [0, 1]), (BASE, [])):
            decoder = Decoder(end, bound, columns=["queue"])
            stopped_at = decoder.feed(data, BASE)
            assert decoder.take().to_pydict() == {"queue": wanted}
            assert stopped_at == BASE + sum(sizes[: len(wanted)])


@given(
    made=st.lists(st.tuples(records, st.booleans()), max_size=4),
    wanted=st.lists(st.sampled_from(ALL), min_size=1, unique=True),
)
def test_wanted_columns_are_those_of_all(made: list, wanted: list[str]) -> None:
    compiled("duetime_spark.decoding._decode")
    data, _ = log_of(made, BASE)
    table, _ = in_pieces(data, 1 << 20, TwinRows, columns=wanted)
    assert table.column_names == wanted
    assert table.to_pylist() == [{name: row[name] for name in wanted} for row in whole(data)]


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="no column bodies, colour"):
        Decoder(0, 0, columns=["bodies", "topic", "colour"])
    with pytest.raises(ValueError, match="no column"):
        Decoder(0, 0, columns=[])


def test_batches_outlive_their_decoder(make: Callable[..., Any]) -> None:
    """Arrays are of memory that their rows hold."""
    data, _ = log_of([(Record("t", 0, b"body", b"n\x01v"), True)] * 500, BASE)
    parts = [in_pieces(data, 10_000, make, rows_max=100)[0] for _ in range(20)]
    for table in parts:
        assert [chunk.num_rows for chunk in table.to_batches()] == [100] * 5
        assert set(table.column("body").to_pylist()) == {b"body"}


def test_types_equal_sparks(spark: SparkSession) -> None:
    wanted = to_arrow_schema(spark.createDataFrame([], DDL).schema)
    assert wanted == SCHEMA
    # Equal also where Arrow's comparison of maps does not look.
    assert [str(field) for field in SCHEMA] == [str(field) for field in wanted]
    data, _ = log_of([(Record("t", 0, b"body", b"n\x01v"), True)], BASE)
    table, _ = in_pieces(data, 1 << 20, TwinRows)
    assert [str(field) for field in table.schema] == [str(field) for field in wanted]
    assert set(DEFAULT_COLUMNS) == set(ALL) - {"body"}


def test_spark_reads_the_batches(spark: SparkSession) -> None:
    data, _ = log_of([(Record("Bücher", n, b"\xff\0", b"n\x01\xff\x02TAGS\x01t"), True) for n in range(3)], BASE)
    table, _ = in_pieces(data, 1 << 20, TwinRows, columns=["topic", "queue", "tags", "level", "body", "properties"])
    rows = spark.createDataFrame(table).orderBy("queue").collect()
    assert [tuple(row) for row in rows] == [
        ("Bücher", n, "t", None, b"\xff\0", {"n": "\ufffd", "TAGS": "t"}) for n in range(3)
    ]
