"""Receipts survive the way out and back, and nothing else passes for one."""

from duetime_format import receipts
from duetime_format.receipts import RECEIPT_BYTES, LeaseReceipt
from hypothesis import given
from hypothesis import strategies as st

U64 = st.integers(0, (1 << 64) - 1)


@given(st.integers(0, 65_535), U64, st.lists(U64, max_size=20))
def test_parsed_receipts_equal_the_packed_fields(shard: int, lease: int, offsets: list[int]) -> None:
    packed = receipts.pack(shard, lease, offsets)
    assert [receipts.parse(receipt) for receipt in packed] == [LeaseReceipt(shard, lease, offset) for offset in offsets]
    assert all(len(receipt) == RECEIPT_BYTES for receipt in packed)


def test_layout_is_the_documented_one() -> None:
    (receipt,) = receipts.pack(1, 2, [3])
    assert receipt[:18] == bytes([0, 1, *[0] * 7, 2, *[0] * 7, 3])


@given(st.binary(max_size=RECEIPT_BYTES + 1).filter(lambda data: len(data) != RECEIPT_BYTES))
def test_bytes_of_another_length_are_no_receipt(data: bytes) -> None:
    assert receipts.parse(data) is None


@given(st.integers(0, 65_535), U64, U64, st.integers(0, RECEIPT_BYTES * 8 - 1))
def test_a_flipped_bit_is_noticed(shard: int, lease: int, offset: int, bit: int) -> None:
    flipped = bytearray(receipts.pack(shard, lease, [offset])[0])
    flipped[bit // 8] ^= 1 << bit % 8
    assert receipts.parse(bytes(flipped)) is None


def test_receipts_differ_by_shard() -> None:
    mine, other = receipts.pack(7, 1, [1, 2]), receipts.pack(0, 1, [1])
    assert receipts.by_shard([mine[0], b"junk", other[0], mine[1]]) == ({7: [0, 3], 0: [2]}, [1])


@given(st.integers(0, 65_535), U64, st.lists(U64))
def test_receipts_of_a_lease_are_made_of_its_name(shard: int, lease: int, offsets: list[int]) -> None:
    name = receipts.lease_name(shard, lease)
    assert receipts.parse_lease(name) == (shard, lease)
    assert receipts.of_lease(name, offsets) == receipts.pack(shard, lease, offsets)
    assert receipts.parse_lease(name[1:]) is None
