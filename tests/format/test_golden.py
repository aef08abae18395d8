"""Every record of commit logs that real brokers wrote is read exactly, and written again to the same bytes."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from duetime_format import layout, record
from duetime_format.errors import DamagedBytes
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.properties import decode_properties, value_of
from duetime_format.record import Record

from tests.format.golden import NAMES, acknowledged, golden_dir, summary, units, unpack


@pytest.fixture(scope="module", params=NAMES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    golden_dir()
    return unpack(request.param, tmp_path_factory.mktemp("golden"))


def walk(store: Path, blanks: list[list[int]]) -> Iterator[tuple[Record, bytes]]:
    """All records, segment by segment, up to the log's end; notes each BLANK's position and length."""
    for path in sorted((store / "commitlog").iterdir()):
        base, image = int(path.name), path.read_bytes()
        at = 0
        while at + layout.BLANK_BYTES <= len(image):
            size, magic = layout.SIZE_MAGIC.unpack_from(image, at)
            if magic == layout.MAGIC_BLANK:
                blanks.append([base + at, size])
                assert at + size == len(image)
                break
            try:
                read = record.decode(image, at)
            except DamagedBytes:
                return
            yield read, image[at : at + read.size]
            assert read.position == base + at
            at += read.size


@pytest.fixture(scope="module")
def log(store: Path) -> tuple[dict[int, tuple[Record, bytes]], list[list[int]]]:
    blanks: list[list[int]] = []
    return {read.position: (read, encoded) for read, encoded in walk(store, blanks)}, blanks


Log = tuple[dict[int, tuple[Record, bytes]], list[list[int]]]


def test_log_is_walked_to_its_end(store: Path, log: Log) -> None:
    expected = summary(store.name)["commitLog"]
    records, blanks = log
    assert len(records) == expected["records"]
    assert sum(read.size for read, _ in records.values()) == expected["recordBytes"]
    assert blanks == expected["blankAtAndLength"]
    last = records[max(records)][0]
    assert last.position + last.size == expected["maxPhysicalOffset"]


def test_each_unit_names_a_record_that_reads_as_rocketmq_read_it(store: Path, log: Log) -> None:
    records, _ = log
    seen = set()
    for unit in units(store.name):
        read, _ = records[unit["physicalOffset"]]
        assert facts(read) == {name: unit[name] for name in FACTS}
        seen.add(unit["physicalOffset"])
    in_no_queue = {entry["physicalOffset"] for entry in summary(store.name)["recordsInNoQueue"]}
    assert set(records) - seen == in_no_queue


FACTS = [
    "topic",
    "queueId",
    "queueOffset",
    "size",
    "storeTimestamp",
    "bornTimestamp",
    "bornHost",
    "storeHost",
    "msgId",
    "uniqKey",
    "sysFlag",
    "flag",
    "bodyCRC",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "properties",
    "bodyLength",
    "bodySha256",
]


def facts(read: Record) -> dict[str, Any]:
    """The manifest's facts of a record, computed from ours."""
    properties = decode_properties(read.properties)
    return {
        "topic": read.topic,
        "queueId": read.queue,
        "queueOffset": read.queue_offset,
        "size": read.size,
        "storeTimestamp": read.stored_at_ms,
        "bornTimestamp": read.born_at_ms,
        "bornHost": record.host_text(read.born_host),
        "storeHost": record.host_text(read.store_host),
        "msgId": record.offset_message_id(read.store_host, read.position),
        "uniqKey": properties.get("UNIQ_KEY"),
        "sysFlag": read.sys_flag,
        "flag": read.flag,
        "bodyCRC": read.body_crc,
        "reconsumeTimes": read.reconsume_times,
        "preparedTransactionOffset": read.prepared_transaction_offset,
        "properties": properties,
        "bodyLength": len(read.body),
        "bodySha256": hashlib.sha256(read.body).hexdigest(),
    }


def test_tags_codes_are_the_units(store: Path, log: Log) -> None:
    records, _ = log
    for unit in units(store.name):
        read, _ = records[unit["physicalOffset"]]
        if read.topic != SCHEDULE_TOPIC:
            tags = value_of(read.properties, b"TAGS")
            assert (record.tags_code(tags) if tags else 0) == unit["tagsCode"]


def test_each_record_is_written_again_to_the_same_bytes(log: Log) -> None:
    for read, encoded in log[0].values():
        assert record.encode(read) == encoded


def test_acknowledged_messages_are_all_there(store: Path, log: Log) -> None:
    if not store.name.endswith("killed"):
        pytest.skip("nothing was in flight when this broker stopped")
    ids = {decode_properties(read.properties).get("UNIQ_KEY") for read, _ in log[0].values()}
    assert acknowledged(store.name) <= ids
