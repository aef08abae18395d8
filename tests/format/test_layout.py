"""The compiled twins and Python agree on the layout."""

import re
from pathlib import Path

import duetime_format
from duetime_format import columns, lanes, layout, record, units

PXD = Path(duetime_format.__file__).with_name("layout.pxd").read_text()
# Counted from other places than Python counts from.
OFFSETS = {"ATTEMPTS_FROM_TAIL": 0, "PREPARED_FROM_TAIL": 4, "BODY_LENGTH_FROM_TAIL": 12, "MAGIC_AT": 4}


def test_layout_files_agree() -> None:
    said = {name: int(value, 0) for name, value in re.findall(r"\b([A-Z][A-Z0-9_]+) = (-?(?:0x)?[0-9A-Fa-f]+)\b", PXD)}
    assert said.pop("UNIT_BYTES") == units.UNIT.size
    assert said.pop("TIMER_LANE_FIRST") == lanes.TIMER_LANE_FIRST
    assert said.pop("TIMER_OUT_DIGITS") == record.TIMER_OUT_DIGITS
    assert said.pop("TOPIC_FACTOR") == record.TOPIC_FACTOR
    assert {name: said.pop(name) for name in OFFSETS} == OFFSETS
    assert len(said) > 10
    assert said == {name: getattr(layout, name) for name in said}


def test_rows_of_columns_are_in_the_order_of_the_properties() -> None:
    (rows,) = re.findall(r"^    (STARTS, [^#]*?ROWS)$", PXD, re.MULTILINE)
    names = rows.lower().replace("\n", "").replace(",", "").split()
    assert names.index("rows") == columns.ROWS
    run = columns.RecordRun(b"", 0, 0, [], columns.np.arange(columns.ROWS).reshape(-1, 1), None)
    shown = {"offsets": "offsets", "stored_at": "stored_at_ms"}
    assert [getattr(run, shown.get(name, name)).tolist() for name in names[:-1]] == [[n] for n in range(columns.ROWS)]
