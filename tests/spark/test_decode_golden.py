"""Logs that real brokers wrote: every record as their own classes decode it."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from duetime_format import record
from duetime_spark.decoding import decode
from duetime_spark.decoding.decode import SCHEMA, Decoder, batches

from tests.format import golden
from tests.twins import compiled

# Column, and the manifest's word.
SAME = {
    "topic": "topic",
    "queue": "queueId",
    "offset": "queueOffset",
    "position": "physicalOffset",
    "size": "size",
    "id": "uniqKey",
    "stored_at_ms": "storeTimestamp",
    "born_at_ms": "bornTimestamp",
    "born_host": "bornHost",
    "store_host": "storeHost",
    "sys_flag": "sysFlag",
    "flag": "flag",
    "body_crc": "bodyCRC",
    "reconsume_times": "reconsumeTimes",
    "prepared_offset": "preparedTransactionOffset",
    "body_size": "bodyLength",
}


def decoded(store: Path) -> tuple[dict[int, dict[str, Any]], list[Any]]:
    """Rows by position, and the skipped bytes."""
    rows: dict[int, dict[str, Any]] = {}
    skipped = []
    for path in sorted((store / "commitlog").iterdir()):
        data, base = path.read_bytes(), int(path.name)
        end = base + len(data)
        decoder = Decoder(end, end, columns=SCHEMA.names)

        def read(position: int, length: int, data: bytes = data, base: int = base) -> bytes:
            return data[position - base :][:length]

        for batch in batches(read, base, decoder, end, end):
            batch.validate(full=True)
            rows.update((row["position"], row) for row in batch.to_pylist())
        skipped += decoder.skipped
    return rows, skipped


@pytest.mark.parametrize("kind", ["twin", "python"])
@pytest.mark.parametrize("name", golden.params())
def test_every_record_decodes_as_in_the_broker(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "twin":
        compiled("duetime_spark.decoding._decode")
    else:
        monkeypatch.setattr(decode, "_twin", None)
    rows, skipped = decoded(golden.unpack(name, tmp_path))
    units = list(golden.units(name))
    for unit in units:
        row = rows.pop(unit["physicalOffset"])
        assert {column: row[column] for column in SAME} == {column: unit[word] for column, word in SAME.items()}
        properties = dict(row["properties"])
        assert len(properties) == len(row["properties"])
        assert properties == unit["properties"]
        assert hashlib.sha256(row["body"]).hexdigest() == unit["bodySha256"]
        assert (row["tags"], row["keys"]) == (properties.get(record.TAGS), properties.get(record.KEYS))
        assert row["real_topic"] == properties.get(record.REAL_TOPIC)
        for column, word in (("level", record.DELAY), ("real_queue", record.REAL_QID)):
            assert row[column] == (int(properties[word]) if word in properties else None)
        assert row["damage"] is None
        assert row["lane_level"] is None
    log, summary = golden.summary(name)["commitLog"], golden.summary(name)
    assert len(units) + len(rows) == log["records"]
    assert len(rows) == len(summary["recordsInNoQueue"])
    # Only bytes after the last record are damaged.
    assert all(one.position >= log["maxPhysicalOffset"] for one in skipped)
