"""Our table, a broker's, and the log's changes: a broker's entry counts where it changed it."""

from typing import Any

import pytest
from duetime_format.changes import OFFSETS, StateChange
from duetime_shard.configs import LoadedConfig
from duetime_shard.kept import KeptTable
from hypothesis import given
from hypothesis import strategies as st

KEYS, QUEUES = ("a@g", "b@g", "c@g"), (0, 1)
TABLES = st.dictionaries(
    st.sampled_from(KEYS), st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 2), min_size=1), max_size=3
)


@given(TABLES, TABLES, TABLES)
def test_each_entry_is_the_brokers_where_it_has_changed_it(before: Any, now: Any, theirs: Any) -> None:
    found = KeptTable(0, (), before, now).judge(LoadedConfig({"offsetTable": theirs}))[1]
    for key in KEYS:
        for queue in QUEUES:
            was, log, broker = (table.get(key, {}).get(queue) for table in (before, now, theirs))
            assert found.get(key, {}).get(queue) == (log if broker == was else broker)
    assert all(found.values())


def test_entries_that_are_no_table_are_compared_as_a_whole() -> None:
    before = {"odd": "?", "other": "?", "gone": "?"}
    theirs = LoadedConfig({"offsetTable": {"odd": "?", "other": "!"}})
    _, found = KeptTable(0, (), before, {**before, "odd": {0: 1}}).judge(theirs)
    assert found == {"odd": {0: 1}, "other": "!"}


@pytest.mark.parametrize(("position", "found"), [(99, {}), (100, {"a@g": {0: 5}})])
def test_records_before_the_tables_position_are_in_it(position: int, found: dict[str, Any]) -> None:
    table = KeptTable(100)
    table.replay(position, StateChange(OFFSETS, "a@g", {"0": 5}))
    assert table.replayed == found
