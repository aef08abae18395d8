"""Real topics by position: the compiled twin and the Python agree, and neither accepts invalid records."""

import mmap
from pathlib import Path

import numpy as np
import pytest
from duetime_format import layout
from duetime_format.record import Record
from duetime_spark.decoding import topics
from duetime_spark.decoding.topics import RealTopics, find_topics
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.log_records import flipped, flips, items, log_of
from tests.twins import compiled

BASE = 1_000


def of(data: bytes, sizes: list[int], base: int = BASE) -> RealTopics:
    positions = base + np.cumsum([0, *sizes[:-1]]) if sizes else np.empty(0, np.int64)
    return find_topics(data, base, positions, np.array(sizes, np.int64))


def lane(properties: bytes, body: bytes = b"body") -> tuple[Record, bool]:
    return Record("SCHEDULE_TOPIC_XXXX", 2, body, properties, stored_at_ms=77), False


def named(found: RealTopics) -> list[bytes | None]:
    return [None if code < 0 else found.names[code] for code in found.codes.tolist()]


@given(made=items, damage=flips, extra=st.lists(st.tuples(st.integers(-50, 2_000), st.integers(-9, 400)), max_size=4))
def test_twin_finds_the_same_as_python(made: list, damage: list[tuple[int, int]], extra: list[tuple[int, int]]) -> None:
    compiled("duetime_spark.decoding._topics")
    data, sizes = log_of(made, BASE)
    data = flipped(data, damage)
    starts = [BASE + int(at) for at in np.cumsum([0, *sizes])[:-1]]
    positions = np.array(starts + [BASE + at for at, _ in extra] + [-(1 << 63), (1 << 63) - 1], np.int64)
    lengths = np.array(sizes + [size for _, size in extra] + [100, 100], np.int64)
    twin = find_topics(data, BASE, positions, lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics, "_twin", None)
        python = find_topics(data, BASE, positions, lengths)
    assert twin.names == python.names
    for column in ("codes", "stored_at_ms", "body_sizes"):
        one, other = getattr(twin, column), getattr(python, column)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


@pytest.fixture(params=["twin", "python"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "twin":
        compiled("duetime_spark.decoding._topics")
    else:
        monkeypatch.setattr(topics, "_twin", None)


@pytest.mark.usefixtures("either")
def test_topics_of_records_wherever_the_property_stands() -> None:
    texts = [
        b"REAL_TOPIC\x01orders\x02DELAY\x013",
        b"DELAY\x013\x02REAL_TOPIC\x01bills\x02",
        b"REAL_TOPIC\x01old\x02XREAL_TOPIC\x01other\x02REAL_TOPIC\x01orders\x02REAL_TOPIC\x01\x02n\x01v",
        "REAL_TOPIC\x01Bücher".encode(),
        b"n\x01REAL_TOPIC",
        b"",
    ]
    data, sizes = log_of([lane(text, b"b" * n) for n, text in enumerate(texts)], BASE)
    found = of(data, sizes)
    assert named(found) == [b"orders", b"bills", b"orders", "Bücher".encode(), None, None]
    assert found.names == [b"orders", b"bills", "Bücher".encode()]
    assert found.stored_at_ms.tolist() == [77] * 6
    assert found.body_sizes.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"\0\0\0\x60"),  # size
        (4, layout.blank(8)[4:]),  # magic
        (28, bytes(8)),  # position
        (84, b"\x7f\xff\xff\xff"),  # body length
        (84, b"\xff\xff\xff\xff"),
        (92, b"\x80"),  # topic length
        (112, b"\0\x01"),  # properties length
    ],
)
def test_invalid_record_has_no_topic(at: int, value: bytes) -> None:
    made = [lane(b"REAL_TOPIC\x01orders")] * 3
    data, sizes = log_of(made, BASE)
    damaged = bytearray(data)
    damaged[sizes[0] + at : sizes[0] + at + len(value)] = value
    found = of(bytes(damaged), sizes)
    assert named(found) == [b"orders", None, b"orders"]
    assert found.stored_at_ms.tolist() == [77, -1, 77]
    assert found.body_sizes.tolist() == [4, -1, 4]


@pytest.mark.usefixtures("either")
def test_unit_with_another_size_has_no_topic() -> None:
    data, sizes = log_of([lane(b"REAL_TOPIC\x01orders")] * 2, BASE)
    assert named(of(data, [sizes[0] + 1, sizes[1]])) == [None, None]


def test_more_topics_than_a_table_has_places_for() -> None:
    """Names that give up their places to others are found again, under the same number."""
    expected = [b"topic-%d" % (n % 5_000) for n in range(10_000)]
    data, sizes = log_of([lane(b"REAL_TOPIC\x01" + name) for name in expected], BASE)
    found = of(data, sizes)
    assert named(found) == expected
    assert len(found.names) == 5_000


def test_a_mapped_file_is_free_again(tmp_path: Path) -> None:
    data, sizes = log_of([lane(b"REAL_TOPIC\x01orders")])
    (tmp_path / "log").write_bytes(data)
    with open(tmp_path / "log", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        found = find_topics(mapped, 0, np.array([0]), np.array(sizes))  # type: ignore[arg-type]
    assert found.names == [b"orders"]


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="sizes for"):
        find_topics(b"", 0, np.zeros(2, np.int64), np.zeros(1, np.int64))
