"""Index files: broker's bytes, every key of the golden directories, and files that can't be a broker's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duetime_core import record
from duetime_core.errors import Damaged
from duetime_store.index import (
    ENTRIES_DEFAULT,
    SLOTS_DEFAULT,
    Header,
    IndexFile,
    Shape,
    file_paths,
    hash_codes,
    key_hash,
    key_hashes,
    may_be_within,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.core.golden import NAMES, golden_dir, summary, units, unpack

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


@pytest.mark.parametrize("name", NAMES)
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
    """What a broker indexes a record under."""
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
    with pytest.raises(Damaged, match="1000 bytes, which is neither 5000000 slots"):
        IndexFile(path)


@pytest.mark.parametrize("header", [Header(next_entry=21), Header(used_slots=11), Header(used_slots=-1)])
def test_an_impossible_header_is_refused(tmp_path: Path, header: Header) -> None:
    path = tmp_path / "20260101000000000"
    path.write_bytes(header.encode().ljust(Shape(10, 20).file_bytes, b"\0"))
    with pytest.raises(Damaged, match="20 and 10 at most"):
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
