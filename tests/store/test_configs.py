"""Files under config/: RocketMQ's dialect, detected damage, and preserved unknown fields."""

from pathlib import Path
from typing import Any

import pytest
from duetime_store.files import configs
from duetime_store.files.disk import Disk
from hypothesis import given
from hypothesis import strategies as st

OFFSETS = {"offsetTable": {1: 120, 3: 7}}
BROKERS_TOPICS = """{
	"dataVersion":{
		"counter":19,
		"stateVersion":4,
		"timestamp":1795224759478
	},
	"topicConfigTable":{
		"Zoo":{
			"attributes":{"+message.type":"DELAY,4:x"},
			"order":true,
			"perm":4,
			"readQueueNums":6,
			"topicFilterType":"MULTI_TAG",
			"topicName":"Zoo",
			"topicSysFlag":2,
			"writeQueueNums":2
		},
		"Apple":{
			"attributes":{},
			"order":false,
			"perm":6,
			"readQueueNums":1,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"Apple",
			"topicSysFlag":0,
			"writeQueueNums":1
		}
	},
	"unknown":{7:8
	}
}"""
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def written(directory: Path, value: dict[str, Any]) -> Path:
    configs.write(Disk(), directory, configs.DELAY_OFFSETS, value)
    return directory / configs.DELAY_OFFSETS


def test_config_files_speak_the_brokers_dialect(tmp_path: Path) -> None:
    path = written(tmp_path, OFFSETS)
    assert path.read_bytes().startswith(b'{\n\t"offsetTable":{1:120,3:7\n\t},\n\t"duetimeCrc32":')
    assert configs.delay_offsets(configs.read(tmp_path, configs.DELAY_OFFSETS)) == {1: 120, 3: 7}


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_rendered_text_is_parsed(value: dict[str, Any]) -> None:
    assert configs.parse(configs.render(value)) == value


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"offsetTable":{1:12', "\xff", '{"duetimeCrc32":1}'])
def test_unreadable_file_gives_its_backup_and_never_becomes_one(tmp_path: Path, content: str) -> None:
    path = written(tmp_path, OFFSETS)
    written(tmp_path, {"offsetTable": {1: 121}})
    path.write_bytes(content.encode("latin-1"))
    loaded = configs.load(tmp_path, configs.DELAY_OFFSETS)
    assert configs.delay_offsets(loaded.value) == {1: 120, 3: 7}
    assert loaded.fault.endswith("; its backup is read")
    written(tmp_path, {"offsetTable": {1: 122}})
    path.write_text("")
    assert configs.delay_offsets(configs.read(tmp_path, configs.DELAY_OFFSETS)) == {1: 120, 3: 7}
    (tmp_path / f"{configs.DELAY_OFFSETS}.bak").write_text("{")
    loaded = configs.load(tmp_path, configs.DELAY_OFFSETS)
    assert loaded.value is None
    assert "its backup: it is not a JSON object" in loaded.fault


def test_flipped_bit_is_found(tmp_path: Path) -> None:
    path = written(tmp_path, OFFSETS)
    data = path.read_bytes()
    written(tmp_path, {"offsetTable": {1: 200}})
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            path.write_bytes(flipped)
            loaded = configs.load(tmp_path, configs.DELAY_OFFSETS)
            # Only a flip in the name of the CRC itself, or in the kind of a blank, goes undetected.
            assert configs.delay_offsets(loaded.value) == {1: 120, 3: 7}, (at, bit)


def test_file_that_never_was_is_no_fault(tmp_path: Path) -> None:
    assert configs.load(tmp_path, configs.TOPICS) == configs.LoadedConfig()


def test_brokers_topics_stay_unchanged() -> None:
    known = configs.parse(BROKERS_TOPICS)
    assert configs.topic_counts(known) == {"Zoo": 6, "Apple": 1}
    assert configs.with_topics(known, {"Zoo": 6, "Apple": 1}, 5) is None
    changed = configs.with_topics(known, {"Zoo": 6, "Apple": 3, "New": 2}, 5)
    assert changed is not None
    assert changed["dataVersion"] == {"counter": 20, "stateVersion": 4, "timestamp": 5}
    assert list(changed["topicConfigTable"]) == ["Zoo", "Apple", "New"]
    before, after = known["topicConfigTable"], changed["topicConfigTable"]
    assert after["Zoo"] == before["Zoo"]
    assert after["Apple"] == {**before["Apple"], "readQueueNums": 3, "writeQueueNums": 3}
    assert list(after["New"]) == list(before["Apple"])
    assert after["New"] == {**before["Apple"], "topicName": "New", "readQueueNums": 2, "writeQueueNums": 2}
    assert changed["unknown"] == {"7": 8}


def test_topics_of_an_older_broker_have_no_attributes() -> None:
    changed = configs.with_topics(None, {"a": 2}, 5)
    assert changed is not None
    assert list(changed) == ["dataVersion", "topicConfigTable"]
    assert "attributes" not in changed["topicConfigTable"]["a"]
    assert configs.with_topics(configs.parse(configs.render(changed)), {"a": 2}, 6) is None


def test_delay_offsets_keep_the_version_and_levels_that_are_not_known() -> None:
    known = {
        "dataVersion": {"counter": 2, "stateVersion": 1, "timestamp": 3},
        "offsetTable": {"1": 75, "4": 0, "30": 9},
    }
    assert configs.with_delay_offsets(known, {1: 80, 2: 0, 3: 5, 4: 0}, 7) == {
        "dataVersion": {"counter": 3, "stateVersion": 1, "timestamp": 7},
        "offsetTable": {1: 80, 3: 5, 4: 0, 30: 9},
    }
    assert configs.with_delay_offsets(None, {1: 80, 2: 0}, 7) == {"offsetTable": {1: 80}}
    assert configs.delay_offsets({"offsetTable": {"1": "x", "a": 3, "2": None, "3": 4}}) == {3: 4}
