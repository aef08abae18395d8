"""`duetime store inspect`: brokers' directories as RocketMQ's own classes read them, ours as the store left it."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duetime.cli.app import run
from duetime_format import layout, record
from duetime_format.layout import MAGIC_V2
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.record import Record
from duetime_shard import shard as state
from duetime_store.offline import units
from duetime_store.offline.summary import summary

from tests.format import golden
from tests.format.golden import golden_dir, params, unpack
from tests.store.conftest import MIB, HandClock, Shard, ids, sent

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


def inspected(root: Path) -> dict[str, Any]:
    return json.loads(json.dumps(summary(state.read(root, LEVELS))))


def lines(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in units.lines(state.read(root, LEVELS))]


def all_bytes(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "duetime", "store", *map(str, arguments)], capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize("name", params(count=1))
def test_units_of_a_brokers_directory_are_the_manifests(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    before = all_bytes(root)
    told = command("inspect", root, "--units", "--json")
    assert (told.returncode, told.stderr) == (0, "")
    with gzip.open(golden_dir() / f"{name}.units.jsonl.gz", "rt") as manifest:
        assert told.stdout == manifest.read()
    assert all_bytes(root) == before


@pytest.mark.parametrize("name", params(count=1))
def test_queues_are_the_same_when_they_are_made_from_the_log_alone(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    shutil.rmtree(root / "consumequeue")
    found = [json.loads(line) for line in units.lines(state.read(root, LEVELS))]
    wanted = []
    for unit in golden.units(name):
        code = golden.code(unit)
        wanted.append(unit | {"tagsCode": code, "tagsCodeHex": f"{code & 0xFFFFFFFFFFFFFFFF:016x}"})
    assert found == wanted


@pytest.mark.parametrize("name", params(count=1))
def test_summary_is_the_manifests(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    told, wanted = inspected(root), golden.summary(name)
    same = (
        "name", "abortFile", "sizes", "consumeQueueUnits", "queues", "recordsInNoQueue", "delayOffsetFile",
        "delayOffsetAfterLoad", "consumerOffset", "topics", "subscriptionGroups", "pendingPerDelayLevel",
        "pendingTotal",
    )  # fmt: skip
    assert {key: told[key] for key in same} == {key: wanted[key] for key in same}
    log = wanted["commitLog"]
    assert {key: told["commitLog"][key] for key in log if key != "dispatchedAfterLoad"} | {
        "dispatchedAfterLoad": 0
    } == log
    times = wanted["checkpointBeforeLoad"]
    assert {key: told["checkpoint"][key] for key in times} == times
    timer = wanted.get("timer", {})
    assert {key: told.get("timer", {})[key] for key in timer} == timer
    assert ("timer" in told) == bool(timer)
    assert told["damaged"] == []
    assert sum(file["entries"] for file in told["indexFiles"]) == wanted["index"]["keysLookedUp"]
    # RocketMQ's op messages show the same: 29 were appended again when its offsets were lost.
    assert told["halfMessages"]["pending"] == len(told["halfMessages"]["messages"]) > 0
    assert all(half["topic"].startswith(("Dt", "Dk")) for half in told["halfMessages"]["messages"])


def test_summary_for_people_names_waiting_messages(tmp_path: Path) -> None:
    root = unpack("rmq-5.3.3-killed", tmp_path)
    told = command("inspect", root, "--topic", "DkPop")
    assert told.returncode == 0
    for words in ("abort exists", "pending: 696", "pending: 76 for any time", "half messages: ", "DkPop"):
        assert words in told.stdout
    assert "DkWide" not in told.stdout.replace("DkWide@", "")


def test_foreign_directory_is_refused(tmp_path: Path) -> None:
    told = command("inspect", tmp_path)
    assert told.returncode == 2
    assert "is not a store directory: it has none of commitlog" in told.stderr


@pytest.fixture
def served(shard: Shard, clock: HandClock) -> Shard:
    """Some messages, partly restored and partly pending."""
    for number in range(20):
        shard.put(sent(f"now{number}"), sent(f"soon{number}", level=1), sent(f"later{number}", level=2))
    clock.wall_ms += 1_000
    shard.restore(1, 0, 15)
    return shard


def test_directory_of_a_running_store_is_read(served: Shard) -> None:
    told = inspected(served.root)
    assert told["writtenBy"] == "DueTime"
    assert (told["abortFile"], told["pendingTotal"]) == (False, 25)
    assert told["pendingPerDelayLevel"] == {"1": 5, "2": 20}
    assert [line["uniqKey"] for line in lines(served.root) if line["topic"] == "orders"] == ids(served.pulled())


def test_pending_counts_by_the_checkpoint_without_the_log_before(served: Shard) -> None:
    served.checkpoint()
    assert inspected(served.root)["checkpoint"]["watermarks"][:2] == [15, 0]
    assert inspected(served.root)["pendingTotal"] == 25


def test_entries_restored_ahead_of_a_gap_are_not_pending(served: Shard) -> None:
    """A power cut took part of a batch: the record that restores entry 3; later ones are kept."""
    restored = [line for line in lines(served.root) if line["topic"] == "orders" and "DT_ENTRY" in line["properties"]]
    path = served.root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[restored[3]["physicalOffset"] + 88] ^= 1
    path.write_bytes(data)
    told = inspected(served.root)
    assert (told["watermarks"]["1"], told["pendingPerDelayLevel"]["1"]) == (3, 6)


def test_due_times_are_those_of_the_table_in_force(tmp_path: Path, clock: HandClock) -> None:
    shard = Shard(tmp_path / "store", clock)
    shard.put(sent("a", level=2))
    shard.crash()
    shard = Shard(tmp_path / "store", clock, delay_levels="1s 1h", accept_delay_levels=True)
    shard.put(sent("b", level=2))
    shutil.rmtree(shard.root / "consumequeue")
    assert [line["tagsCode"] - line["storeTimestamp"] for line in lines(shard.root)] == [5_000, 3_600_000]
    shard.crash()


def test_log_that_a_file_is_missing_of_is_read_around_it(tmp_path: Path, clock: HandClock) -> None:
    shard = Shard(tmp_path / "store", clock)
    for number in range(30):
        shard.put(sent(f"m{number}", body=bytes(200_000)))
    shard.crash()
    (shard.root / "commitlog" / f"{MIB:020d}").unlink()
    told = inspected(shard.root)
    assert [entry["physicalOffset"] for entry in told["damaged"]] == [MIB]
    found = lines(shard.root)
    assert [line["queueOffset"] for line in found] == list(range(30))
    gone = [line for line in found if "damage" in line]
    assert 0 < len(gone) < 10
    assert all(line["physicalOffset"] // MIB == 1 for line in gone)


NAMES_AND_VALUES = b'a\x01\x02b\x01\x7f\n"\\' + "é😀".encode() + b"\x02"
LOCAL, LINK = bytes(15) + b"\x01" + bytes(4), b"\xfe\x80" + bytes(13) + b"\x0a\0\0\x2a\x9f"
MAPPED = bytes(10) + b"\xff\xff\x01\x02\x03\x04\0\0\0\x50"
ODD = [
    Record("%RETRY%" + "g" * 200, 0, b"b", b"TAGS\x01t\x02", magic=MAGIC_V2),
    Record("t", 0, b"", b""),
    Record("t", 0, b"x", NAMES_AND_VALUES, flag=-5, sys_flag=0x301),
    Record("t", 1, b"x", b"k\x01v", born_host=LOCAL, store_host=LINK),
    Record("t", 2, b"x", b"TAGS\x01one\x02TAGS\x01two", born_host=MAPPED),
    Record("SCHEDULE_TOPIC_XXXX", 17, b"x", b"DELAY\x0199\x02", stored_at_ms=5),
    Record("SCHEDULE_TOPIC_XXXX", 0, b"x", b"DELAY\x01+1\x02", stored_at_ms=5),
    Record("SCHEDULE_TOPIC_XXXX", 1, b"x", b"DELAY\x01x\x02", stored_at_ms=5),
]


def test_odd_records_read_as_in_rocketmq(tmp_path: Path) -> None:
    log = tmp_path / "commitlog" / ("0" * 20)
    log.parent.mkdir()
    data = bytearray()
    for odd in ODD:
        values = {name: getattr(odd, name) for name in Record.__slots__} | {"position": len(data)}
        data += record.encode(Record(**values))
    log.write_bytes(bytes(data).ljust(MIB, b"\0"))
    found = {(line["topic"], line["queueId"], line["queueOffset"]): line for line in lines(tmp_path)}
    assert found["%RETRY%" + "g" * 200, 0, 0]["tagsCode"] == record.java_hash("t")
    # Two records have one place: the later one is ignored, as in a broker.
    assert found["t", 0, 0]["properties"] == {}
    assert found["t", 0, 0]["uniqKey"] is None
    assert found["t", 1, 0]["bornHost"] == "0:0:0:0:0:0:0:1:0"
    assert found["t", 1, 0]["storeHost"] == "fe80:0:0:0:0:0:0:a:10911"
    assert found["t", 1, 0]["msgId"].startswith("FE80")
    assert len(found["t", 1, 0]["msgId"]) == 56
    assert found["t", 2, 0]["bornHost"] == "1.2.3.4:80"
    assert found["t", 2, 0]["tagsCode"] == record.java_hash("two")
    delays = [found["SCHEDULE_TOPIC_XXXX", queue, 0]["tagsCode"] for queue in (17, 0, 1)]
    assert delays == [7_200_005, 1_005, 0]


def test_escape_sequences_of_senders_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "title\x1b]0;x\x07\x9b2J\x7f\u202e"
    log = tmp_path / "commitlog" / ("0" * 20)
    log.parent.mkdir()
    odd = Record("orders", 0, b"x", f"UNIQ_KEY\x01{said}\x02".encode(), stored_at_ms=5)
    log.write_bytes(record.encode(odd).ljust(MIB, b"\0"))
    offsets = tmp_path / "config" / "consumerOffset.json"
    offsets.parent.mkdir()
    offsets.write_text(json.dumps({"offsetTable": {f"orders@{said}": {"0": 1}}}))
    for words in (["inspect"], ["inspect", "--units"], ["inspect", "--units", "--json"], ["verify"]):
        assert run(["store", words[0], str(tmp_path), *words[1:]]) in (0, 1), words
        shown = capsys.readouterr()
        assert not re.search("[^ -~\u2026\u2500\n]", shown.out + shown.err), words
        assert words == ["verify"] or "title" in shown.out, words
    assert run(["store", "inspect", str(tmp_path / said)]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_line_is_ascii_with_lower_case_escapes() -> None:
    data = record.encode(ODD[2])
    line = units.line("t", 0, 0, (0, len(data), -1), lambda position, size: data)
    assert '"properties":{"b":"\\u007f\\u000a\\"\\\\\\u00e9\\ud83d\\ude00"}' in line
    assert '"tagsCode":-1,"tagsCodeHex":"ffffffffffffffff"' in line
    assert line.isascii()


def test_unit_that_points_nowhere_is_reported() -> None:
    line = json.loads(units.line("t", 0, 7, (90, 100, 0), lambda position, size: b""))
    assert (line["queueOffset"], line["damage"]) == (7, "0 bytes are too few for a record")


def test_units_behind_the_end_of_the_log_are_dropped(shard: Shard) -> None:
    for number in range(3):
        shard.put(sent(f"m{number}"))
    path = shard.root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    size = layout.SIZE_MAGIC.unpack_from(data)[0]
    data[2 * size : 3 * size] = bytes(size)
    path.write_bytes(data)
    assert inspected(shard.root)["queues"] == {"orders": {"0": {"min": 0, "max": 2}}}
    assert np.array_equal([line["queueOffset"] for line in lines(shard.root)], [0, 1])
