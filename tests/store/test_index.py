"""Index files: broker's bytes, every key of the golden directories, and files that can't be a broker's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.keys import ROW, Rows, hash_codes, key_hash, key_hashes
from duetime_store.files.disk import Disk
from duetime_store.finding.index import (
    ENTRIES_DEFAULT,
    SLOTS_DEFAULT,
    Header,
    IndexFile,
    IndexWriter,
    Shape,
    file_paths,
    may_be_within,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.format.golden import golden_dir, params, summary, units, unpack

T = 1_700_000_000_001


@given(st.lists(st.text(st.characters(exclude_categories=()), min_size=1)))
def test_hashes_of_many_texts_are_those_of_each(texts: list[str]) -> None:
    assert hash_codes(texts).astype(np.int32).tolist() == [record.java_hash(text) for text in texts]


@pytest.mark.parametrize(
    ("key", "expected"),
    [("7F0000010001070D0D0D000000000000", 494404314), ("K1", 78690324), ("K2", 78690323)],
)
def test_key_hash_is_rocketmqs(key: str, expected: int) -> None:
    assert key_hash("TestTopic", key) == expected


def test_the_hash_without_an_absolute_value_is_0() -> None:
    assert key_hashes(hash_codes(["polygenelubricants", "GydZG_"])).tolist() == [0, 0]


def test_default_file_has_a_brokers_size() -> None:
    assert Shape().file_bytes == 420_000_040
    assert Shape() == (SLOTS_DEFAULT, ENTRIES_DEFAULT)


@pytest.mark.parametrize("name", params())
def test_golden_index_is_read_as_rocketmq_read_it(name: str, tmp_path: Path) -> None:
    golden_dir()
    (path,) = file_paths(unpack(name, tmp_path) / "index")
    # The settings are others than the file's.
    file = IndexFile(path)
    assert file.shape == (2_000, 8_000)
    keys = [(unit, word) for unit in units(name) for word in words(unit)]
    told = summary(name)["index"]
    assert len(keys) == told["keysLookedUp"]
    assert told["notFound"] == (2_666 if name == "rmq-5.3.3-killed" else 0)
    # Those 2,666 were lost by the broker's recovery, which deletes the file; on disk they are.
    assert [(unit["topic"], word) for unit, word in keys if not found(file, unit, word)] == []
    check_whole(file, {unit["physicalOffset"] for unit in units(name)})
    file.close()


def words(unit: dict[str, Any]) -> list[str]:
    """The words under which a broker indexes a record."""
    keys = unit["properties"].get("KEYS", "").split(" ")
    return [word for word in [unit["uniqKey"], *keys] if word]


def found(file: IndexFile, unit: dict[str, Any], word: str) -> bool:
    at_ms = unit["storeTimestamp"]
    return any(
        hit is not None and hit.position == unit["physicalOffset"] and may_be_within(file, hit, at_ms, at_ms)
        for hit in file.chain(key_hash(unit["topic"], word))
    )


def check_whole(file: IndexFile, positions: set[int]) -> None:
    """Every entry names a record and hangs in its slot's chain."""
    entries, header = file.entries(), file.header
    assert set(entries["position"].tolist()) <= positions
    slots = entries["hash"] % file.shape.slot_count
    heads = np.zeros(file.shape.slot_count, np.int64)
    for number, (slot, previous) in enumerate(zip(slots.tolist(), entries["previous"].tolist(), strict=True), 1):
        assert previous == heads[slot]
        heads[slot] = number
    assert file.slots().tolist() == heads.tolist()
    assert header.used_slots == np.count_nonzero(heads)
    assert header.end_position == entries["position"][-1]
    assert header.begin_position == entries["position"][0]


def test_a_file_of_no_brokers_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "20260101000000000"
    path.write_bytes(bytes(1_000))
    with pytest.raises(DamagedBytes, match="1000 bytes, which is neither 5000000 slots"):
        IndexFile(path)


@pytest.mark.parametrize("header", [Header(next_entry=21), Header(used_slots=11), Header(used_slots=-1)])
def test_an_impossible_header_is_refused(tmp_path: Path, header: Header) -> None:
    path = tmp_path / "20260101000000000"
    path.write_bytes(header.encode().ljust(Shape(10, 20).file_bytes, b"\0"))
    with pytest.raises(DamagedBytes, match="the limits are 20 and 10"):
        IndexFile(path, Shape(10, 20))


def test_a_damaged_chain_ends(tmp_path: Path) -> None:
    path = tmp_path / "20260101000000000"
    shape = Shape(1, 20)
    entries = b"".join(number.to_bytes(16, "big") + (3).to_bytes(4, "big") for number in (0, 1, 2, 3))
    path.write_bytes((Header(next_entry=4).encode() + (3).to_bytes(4, "big") + entries).ljust(shape.file_bytes, b"\0"))
    file = IndexFile(path, shape)
    assert [hit.number for hit in file.chain(0) if hit] == [3]
    file.close()
    assert list(file.chain(0)) == []


def rows_of(*rows: tuple[str, int, int]) -> Rows:
    """Of (key, position, time)."""
    return np.array([(int(key_hashes(hash_codes([key]))[0]), position, time) for key, position, time in rows], ROW)


# Bytes that the broker's own classes wrote.
FIRST = [("TestTopic#7F0000010001070D0D0D000000000000", 0, T), ("TestTopic#K1", 0, T), ("TestTopic#K1", 164, T + 7_999)]
FIRST_FILE = bytes.fromhex(
    "0000018bcfe568010000018bcfe58740000000000000000000000000000000a40000000100000004"
    "00000000000000000000000000000000000000030000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000"
    "1d7802da00000000000000000000000000000000"
    "04b0b81400000000000000000000000000000001"
    "04b0b81400000000000000a40000000700000002"
)
SECOND = [("TestTopic#K2", 999, T + 5_500), ("TestTopic#K2", 1999, T + 9_000)]
SECOND_HEADER = "0000018bcfe57d7d0000018bcfe58b2900000000000003e700000000000007cf0000000100000003"
SECOND_ENTRIES = "04b0b81300000000000003e7000000050000000004b0b81300000000000007cf0000000300000001"


@pytest.mark.parametrize("batches", [[3], [1, 2], [2, 1], [1, 1, 1]])
def test_written_file_is_byte_for_byte_a_brokers(tmp_path: Path, batches: list[int]) -> None:
    path, shape = tmp_path / "20260101000000000", Shape(10, 20)
    writer = IndexWriter.create(Disk(), path, shape, None)
    first = 0
    for count in batches:
        writer.append(rows_of(*FIRST[first : first + count]))
        first += count
    assert path.read_bytes()[:40] == Header().encode()
    writer.write_slots()
    writer.close()
    assert path.read_bytes() == FIRST_FILE.ljust(shape.file_bytes, b"\0")


def test_file_that_follows_has_the_quirk_of_a_brokers(tmp_path: Path) -> None:
    path, shape = tmp_path / "20260101000000001", Shape(10, 20)
    writer = IndexWriter.create(Disk(), path, shape, Header(end_at_ms=T, end_position=164))
    assert writer.header == Header(T, T, 164, 164)
    writer.append(rows_of(*SECOND))
    writer.write_slots()
    assert path.read_bytes()[:40].hex() == SECOND_HEADER
    assert path.read_bytes()[shape.entries_at + 20 : shape.entries_at + 60].hex() == SECOND_ENTRIES
    # The time of the first entry reads 5 s late, but the entry is found.
    hit = [hit for hit in writer.chain(key_hash("TestTopic", "K2")) if hit][-1]
    assert may_be_within(writer, hit, T + 5_500, T + 5_500)
    assert not may_be_within(writer, hit, T + 12_000, T + 12_000)
    writer.close()


KEYS = st.sampled_from([f"T#{word}" for word in ("AaAa", "BBBB", "AaBB", "K1", "K2", "polygenelubricants")])


@given(st.lists(st.lists(KEYS, max_size=12), max_size=12), st.data())
def test_index_agrees_with_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[str]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("index") / "20260101000000000"
    writer = IndexWriter.create(Disk(), path, Shape(3, 200), None)
    expected: dict[int, list[int]] = {}
    headers, ends = [writer.header], [0]
    position = 0
    for batch in batches:
        rows = [(key, position := position + 100, T + position) for key in batch]
        if rows:
            writer.append(rows_of(*rows))
        for key, at, _ in rows:
            expected.setdefault(int(key_hashes(hash_codes([key]))[0]), []).insert(0, at)
        headers.append(writer.header)
        ends.append(position)

    def check(file: IndexFile) -> None:
        for key in ("T#AaAa", "T#K1", "T#K2", "T#AaBB", "T#polygenelubricants", "T#none"):
            wanted = int(key_hashes(hash_codes([key]))[0])
            assert [hit.position for hit in file.chain(wanted) if hit] == expected.get(wanted, [])

    check(writer)
    # Taken back to any state that it had, as after a crash; then written out and read by another process.
    kept = data.draw(st.integers(0, len(headers) - 1))
    for _ in writer.cut(headers[kept]):
        pass
    expected = {wanted: [at for at in found if at <= ends[kept]] for wanted, found in expected.items()}
    check(writer)
    writer.write_slots()
    if headers[kept].next_entry > 1:
        check_whole(writer, set(range(100, position + 1, 100)))
    writer.close()
    reader = IndexFile(path, Shape(3, 200))
    check(reader)
    reader.close()
