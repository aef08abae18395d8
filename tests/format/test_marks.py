"""Marks of entries: bytes, and each kind of damage."""

from dataclasses import replace

import pytest
from duetime_format.errors import DamagedBytes
from duetime_format.marks import GROUP, MARK_BYTES, MEMBERS, OWN, EntryMark, mark_of, mark_record
from duetime_format.record import CRC_MARK, Record, crc_digits, encode, with_crc_mark
from hypothesis import given
from hypothesis import strategies as st

U64 = st.integers(1, 2**63 - 1)
MARK = EntryMark(GROUP, 0xD0E, 7, 3, 2, 4_096, 0xCAFE)
GOLDEN = (
    "000000a4daa320a7746966a8000000000000000000000000000000060000000000001388000000000000018bcfe568000000"
    "0000000000000000018bcfe5680000000000000000000000000000000000000000000000002e01000000000000000d0e0000"
    "0000000000070000000000000003000000000000000200000000000010000000cafe0744545f5241465400145f5f43524333"
    "3223013431343333313636393102"
)


@given(
    st.sampled_from([GROUP, OWN, MEMBERS]),
    U64,
    U64,
    U64,
    U64,
    st.integers(0, 2**40),
    st.integers(0, 2**32 - 1),
    st.binary(),
)
def test_mark_is_read_as_written(
    kind: int, group: int, index: int, term: int, previous: int, position: int, crc: int, change: bytes
) -> None:
    mark = EntryMark(kind, group, index, term, previous, position, crc, change[:1_000] if kind == MEMBERS else b"")
    data = mark_record(mark, position + 100, 1_700_000_000_000)
    found, read = mark_of(data)
    assert read == mark
    assert (found.topic, found.queue, found.queue_offset, found.position) == ("DT_RAFT", 0, index - 1, position + 100)
    assert len(data) == MARK_BYTES + len(mark.change)


def test_bytes_of_a_mark_are_these() -> None:
    """A promise: copies of different versions write the same."""
    data = mark_record(MARK, 5_000, 1_700_000_000_000)
    assert len(data) == MARK_BYTES == 164
    assert data.hex() == GOLDEN


def test_any_flipped_bit_is_noticed() -> None:
    data = mark_record(MARK, 5_000, 9)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(DamagedBytes):
            mark_of(bytes(damaged))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"body": MARK.encode()[:40]}, "cut short"),
        ({"body": b"\x02" + MARK.encode()[1:]}, "version 2"),
        ({"body": b"\x01\x03" + MARK.encode()[2:]}, "kind 3"),
        ({"body": MARK.encode() + b"x"}, "kind 0 of a mark with 1 more bytes"),
        ({"queue_offset": 7}, "the place of another one"),
        ({"position": 4_000}, "the place of another one"),
    ],
)
def test_damaged_marks_are_refused(change: dict[str, bytes | int], fault: str) -> None:
    record = Record("DT_RAFT", 0, MARK.encode(), with_crc_mark(b""), queue_offset=6, position=5_000)
    assert mark_of(filled(record))[1] == MARK
    with pytest.raises(DamagedBytes, match=fault):
        mark_of(filled(replace(record, **change)))


def filled(record: Record) -> bytes:
    """With its CRC."""
    data = encode(record)
    return data[:-11] + crc_digits(data[: -len(CRC_MARK)]) + data[-1:]


def test_other_records_are_no_marks() -> None:
    record = Record("orders", 0, MARK.encode(), with_crc_mark(b""), queue_offset=6, position=5_000)
    with pytest.raises(DamagedBytes, match="a record of orders is no mark"):
        mark_of(filled(record))


@pytest.mark.parametrize("lost", range(1, 21))
def test_mark_that_lost_its_end_is_refused(lost: int) -> None:
    """A torn write leaves zeros: the record then seems to have no CRC, and its body is whole."""
    data = mark_record(MARK, 5_000, 9)
    with pytest.raises(DamagedBytes):
        mark_of(data[:-lost] + bytes(lost))
