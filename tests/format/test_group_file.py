"""The head of the file of groups, and the way to its dead letters."""

import pytest
from duetime_format import group_file
from duetime_format.errors import DamagedBytes
from duetime_format.group_file import COUNT, ENDED, GroupFileHead
from duetime_format.ranges import ranges

GONE = b"bits of dead letters"
REST = ENDED.pack(7, 0, 4) + b"cart" + COUNT.pack(2) + ranges([1, 2, 5]) + GONE + b"places"
HEAD = GroupFileHead(journal_offset=42, last_lease_id=9, ended_count=1, gone_bytes=len(GONE), place_count=3)
FILE = group_file.encode(HEAD, REST)


def test_the_head_is_read_as_it_was_written() -> None:
    assert group_file.read_head(FILE) == HEAD
    group_file.check_crc(FILE)
    assert FILE.startswith(b"DTG1")
    assert FILE[group_file.HEAD_BYTES :] == REST


def test_dead_letters_are_found_after_the_leases_that_ended() -> None:
    assert group_file.gone_letters(FILE) == (42, GONE)


@pytest.mark.parametrize("size", range(group_file.HEAD_BYTES + ENDED.size + len("cart") + COUNT.size))
def test_a_file_that_is_cut_short_before_its_dead_letters_is_damaged(size: int) -> None:
    with pytest.raises(DamagedBytes):
        group_file.gone_letters(FILE[:size])


def test_another_mark_is_damage() -> None:
    with pytest.raises(DamagedBytes, match="it begins with b'DTG2'"):
        group_file.read_head(b"DTG2" + FILE[4:])


def test_a_flipped_bit_does_not_match_the_crc() -> None:
    for at in (8, group_file.HEAD_BYTES, len(FILE) - 1):
        flipped = FILE[:at] + bytes([FILE[at] ^ 1]) + FILE[at + 1 :]
        with pytest.raises(DamagedBytes, match="it does not match its CRC"):
            group_file.check_crc(flipped)
