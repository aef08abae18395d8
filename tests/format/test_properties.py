"""Properties by column: in Python and compiled the same, and as RocketMQ's readers see them."""

import pytest
from duetime_format import columns, layout, record
from duetime_format.properties import decode_properties
from hypothesis import example, given
from hypothesis import strategies as st

from tests.twins import compiled

NAMES = (b"a", b"color", b"TAGS")
V6 = bytes(range(16)) + b"\x00\x00\x2a\x9f"
parts = st.tuples(
    st.sampled_from(["a", "color", "TAGS", "aa", "colo", "", "x"]),
    st.sampled_from(["\x01", "\x01", "\x01", ""]),
    st.sampled_from(["", "red", "blue", "a\x01b", "é", "5" * 300]),
).map("".join)
encoded = st.lists(parts, max_size=6).map(lambda several: "\x02".join(several).encode())


def in_python(records: bytes, sizes: list[int], names: tuple[bytes, ...]) -> list[list[bytes | None]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_twin", None)
        return columns.values(records, sizes, names)


def made(properties: bytes, **changes: object) -> bytes:
    values: dict[str, object] = {"topic": "orders", "queue": 3, "body": b"a\x01body", "properties": properties}
    return record.encode(record.Record(**{**values, **changes}))  # type: ignore[arg-type]


@given(st.lists(encoded, max_size=4), st.sampled_from([b"", record.CRC_MARK, record.CRC_ENDING, b"\x02", b"\xff"]))
@example([b"a\x01\x02a\x01x\x02a\x01", b"a\x01x", b""], b"")
def test_values_are_those_that_readers_see(several: list[bytes], ending: bytes) -> None:
    records = [made(one + ending) for one in several]
    sizes = [size for one in records for size in (len(one), 0)]
    found = in_python(b"".join(records), sizes, NAMES)
    assert compiled("duetime_format._columns").values(b"".join(records), sizes, NAMES) == found
    assert columns.values(b"".join(records), sizes, NAMES) == found
    for index, one in enumerate(several):
        decoded = decode_properties(one + ending)
        for name, column in zip(NAMES, found, strict=True):
            value = column[2 * index]
            assert (None if value is None else value.decode("utf-8", "replace")) == decoded.get(name.decode())
            assert column[2 * index + 1] is None


def test_records_of_all_shapes_are_read_and_too_many_names_are_left_to_python() -> None:
    unusual = [
        made(b"a\x01x", magic=layout.MAGIC_V2, topic="t" * 200),
        made(b"a\x01x", born_host=V6, store_host=V6),
        made(b"a\x01x", store_host=V6),
    ]
    for data in (made(b"a\x01y") + one for one in unusual):
        sizes = [len(made(b"a\x01y")), len(data) - len(made(b"a\x01y"))]
        assert in_python(data, sizes, (b"a",)) == [[b"y", b"x"]]
        assert columns.values(data, sizes, (b"a",)) == [[b"y", b"x"]]
    many = tuple(f"n{n}".encode() for n in range(265))
    one = made(b"n64\x01x\x02n1\x01y")
    assert compiled("duetime_format._columns").values(one, [len(one)], many) is None
    assert columns.values(one, [len(one)], many)[64] == [b"x"]
    of_all = compiled("duetime_format._columns").values(one, [len(one)], many[:264])
    assert of_all == in_python(one, [len(one)], many[:264])
    assert of_all[1] == [b"y"]


@given(st.binary(max_size=300), st.lists(st.integers(-5, 400), max_size=4))
def test_any_bytes_are_taken_for_records_without_harm(data: bytes, sizes: list[int]) -> None:
    found = compiled("duetime_format._columns").values(data, sizes, NAMES)
    assert found is None or not any(sizes)
