"""Exports of shards with open transactions: a broker that opens one asks about those, and about no other."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from duetime_core.errors import DueTimeError
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import HALF_TOPIC, OP_TOPIC
from duetime_format.properties import decode_properties
from duetime_format.record import tags_code
from duetime_shard import configs, halves
from duetime_shard.disk import LocalFiles
from duetime_shard.records import message
from duetime_shard.shard import read
from duetime_store.offline.export import ExportResult, ExportTarget, export_directory
from duetime_store.offline.exporthalves import HalfExport
from duetime_store.offline.report import VerifyReport
from duetime_store.offline.verify import verify
from duetime_store.transactions import tablefile
from duetime_store.transactions.table import OpenTransactions
from hypothesis import given
from hypothesis import strategies as st

from tests.format import golden
from tests.store.half_log import START_MS, HalfLog

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


@pytest.fixture
def log(tmp_path: Path) -> HalfLog:
    return HalfLog(tmp_path / "shard")


def export(root: Path, *, broker: ExportTarget | None = None, name: str = "made") -> tuple[ExportResult, Path]:
    made = root.with_name(name)
    exported = export_directory(
        root, made, LEVELS, accept_damage=False, broker=broker or ExportTarget(), now_ms=START_MS + 60_000
    )
    assert verify(made, LEVELS).damages == []
    return exported, made


def brokers_view(root: Path) -> list[dict[str, str]]:
    """Properties of the half messages that a 4.9 broker asks about: from its progress on, without those that an op
    record from its progress in theirs on names."""
    state = read(root, LEVELS)
    table = configs.read(root / "config", configs.CONSUMER_OFFSETS) or {}

    def messages(topic: str) -> list[tuple[int, bytes, dict[str, str]]]:
        queue = state.queues.get((topic, 0))
        first = int(table.get("offsetTable", {}).get(f"{topic}@{halves.GROUP}", {}).get("0", 0))
        found = []
        for offsets, units in queue.read(first) if queue is not None else ():
            for offset, (position, _, tags) in zip(offsets.tolist(), units.tolist(), strict=True):
                one = message(state, position)
                assert one is not None
                properties = decode_properties(one.properties)
                assert tags == tags_code(properties.get("TAGS", "").encode())
                found.append((offset, one.body, properties))
        return found

    done = {int(body) for _, body, _ in messages(OP_TOPIC)}
    return [properties for offset, _, properties in messages(HALF_TOPIC) if offset not in done]


def asked_about(root: Path) -> list[tuple[str, int]]:
    """Id and checks of the half messages that a broker asks about."""
    return [(one["UNIQ_KEY"], int(one.get("TRANSACTION_CHECK_TIMES", 0))) for one in brokers_view(root)]


def opened(root: Path) -> list[tuple[str, int]]:
    """Id and checks of open transactions."""
    state = read(root, LEVELS)
    found = []
    for half in halves.of_state(state).open:
        one = message(state, half.position)
        assert one is not None
        found.append((decode_properties(one.properties)["UNIQ_KEY"], half.checks))
    return found


def test_open_ones_at_the_end_stay_where_they_are(log: HalfLog) -> None:
    log.half("a")
    log.half("b")
    log.asked(1, 1)
    log.ended("rollback", 0)
    exported, made = export(log.write())
    assert exported.transactions == 1
    assert asked_about(made) == [("b", 1)]
    assert (made / "commitlog" / f"{0:020d}").read_bytes() == bytes(log.data).ljust(1 << 20, b"\0")


def test_open_ones_before_ended_ones_are_appended(log: HalfLog) -> None:
    for name in "abcd":
        log.half(name)
    log.ended("rollback", 1)
    log.committed(2, ours=True)
    log.ended("commit", 2)
    root = log.write()
    exported, made = export(root)
    assert (exported.transactions, exported.records) == (2, 8)
    assert asked_about(made) == [("d", 0), ("a", 0)]
    assert opened(made) == [("d", 0), ("a", 0)]
    table = (configs.read(made / "config", configs.CONSUMER_OFFSETS) or {})["offsetTable"]
    assert table == {f"{HALF_TOPIC}@{halves.GROUP}": {"0": 3}, f"{OP_TOPIC}@{halves.GROUP}": {"0": 2}}
    assert '":{0:3\n' in (made / "config" / "consumerOffset.json").read_text()


@pytest.mark.parametrize("gone", ["consumequeue", "config"])
def test_decisions_come_back_also_without_a_brokers_files(log: HalfLog, gone: str) -> None:
    """A broker that loses its queues rebuilds them from the log; one that loses its configuration reads from the
    beginning.
    """
    for name in "abcde":
        log.half(name)
    log.asked(3, 4)
    log.ended("rollback", 1)
    log.committed(2, ours=True)
    log.ended("commit", 2)
    log.given_up(0)
    log.ended("give_up", 0)
    _, made = export(log.write())
    shutil.rmtree(made / gone)
    assert opened(made) == [("e", 0), ("d", 4)] or opened(made) == [("d", 4), ("e", 0)]
    if gone == "consumequeue":
        assert sorted(asked_about(made)) == [("d", 4), ("e", 0)]


def test_other_groups_keep_their_offsets(log: HalfLog) -> None:
    log.half("a")
    root = log.write(half_progress=0)
    path = root / "config" / "consumerOffset.json"
    path.write_text('{"dataVersion":{"counter":7},"offsetTable":{"orders@g":{0:5,1:3},"odd":7}}')
    _, made = export(root)
    found = configs.read(made / "config", configs.CONSUMER_OFFSETS) or {}
    assert found["dataVersion"] == {"counter": 7}
    assert found["offsetTable"]["orders@g"] == {"0": 5, "1": 3}
    assert found["offsetTable"]["odd"] == 7
    assert found["offsetTable"][f"{HALF_TOPIC}@{halves.GROUP}"] == {"0": 0}


@pytest.mark.parametrize(
    "delay",
    [{"DELAY": "4"}, {"TIMER_DELAY_MS": "60000"}, {"TIMER_DELAY_SEC": "60"}, {"TIMER_DELIVER_MS": str(START_MS)}],
)
def test_delays_are_not_lost_unless_that_is_allowed(log: HalfLog, tmp_path: Path, delay: dict[str, str]) -> None:
    log.half("a", **delay)
    log.half("b")
    root = log.write()
    with pytest.raises(DueTimeError, match="1 open transactions have a delay, which a broker does not keep"):
        export(root)
    assert not (tmp_path / "made").exists()
    exported, made = export(root, broker=ExportTarget(may_lose_delays=True))
    assert (exported.transactions, exported.delays_lost) == (2, 1)
    assert any("have lost their delay" in text for text in exported.warnings)
    assert asked_about(made) == [("b", 0), ("a", 0)]
    assert not any(set(delay) & set(properties) for properties in brokers_view(made))


def test_delay_of_an_ended_one_is_no_matter(log: HalfLog) -> None:
    log.half("a", DELAY="4")
    log.ended("rollback", 0)
    exported, made = export(log.write())
    assert (exported.transactions, exported.warnings) == (0, [])
    assert asked_about(made) == []


def test_immune_copies_name_no_older_one(log: HalfLog) -> None:
    """That one would end them, and is not there."""
    log.half("a", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    log.put_off(0)
    _, made = export(log.write(half_progress=1))
    (properties,) = brokers_view(made)
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in properties
    assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "60"


def test_heard_checks_count_for_the_broker(log: HalfLog) -> None:
    for name in "abc":
        log.half(name)
    log.asked(2, 9)
    root = log.write()
    table, offsets, moments = OpenTransactions(checks_max=15), np.array([0, 1, 3]), np.full(3, START_MS)
    table.add(offsets, ["g"] * 3, moments, moments, np.array([3, 0, 7]))
    (root / tablefile.FILE).write_bytes(tablefile.encode(table.snapshot(), len(log.data)))
    _, made = export(root)
    assert sorted(asked_about(made)) == sorted(opened(made)) == [("a", 3), ("b", 0), ("c", 9)]
    assert not (made / tablefile.FILE).exists()


def test_the_last_one_of_the_queue_is_no_more_open_where_it_is_appended_again(log: HalfLog) -> None:
    """An export appends it after its end; otherwise a broker that rebuilds its queues from the log forgets
    the offset.
    """
    log.half("a")
    log.half("b")
    log.kept(0)
    log.op("1")
    exported, made = export(log.write(half_progress=1))
    assert (exported.records, exported.transactions) == (5, 0)
    assert opened(made) == asked_about(made) == []


def test_a_wrong_export_is_reported(log: HalfLog) -> None:
    log.half("a")
    log.half("b")
    root = log.write()
    _, made = export(root)
    report = VerifyReport()
    HalfExport(read(root, LEVELS)).check(LocalFiles(made), report)
    assert report.is_sound
    wrong = {f"{HALF_TOPIC}@{halves.GROUP}": {"0": 1}}
    (made / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": wrong}))
    HalfExport(read(root, LEVELS)).check(LocalFiles(made), report)
    assert "a broker would find 1 half messages open, 2 are" in str(report.damages[0])


@pytest.mark.parametrize("name", golden.params())
def test_brokers_directories_go_back_as_they_came(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path)
    expected = opened(root)
    assert len(expected) > 3
    timers = tmp_path / "timers.jsonl"
    exported, made = export(root, broker=ExportTarget(has_timers=False, timers_to=timers))
    assert exported.transactions == len(expected)
    assert sorted(asked_about(made)) == sorted(opened(made)) == sorted(expected)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["half", "half", "asked", "put_off", "kept", "op", "commit", "rollback", "give_up"]),
        st.integers(0, 30),
    ),
    max_size=25,
)


@given(actions=ACTIONS, progress=st.integers(0, 20))
def test_a_broker_asks_about_open_transactions(actions: list[tuple[str, int]], progress: int) -> None:
    """Directories that went through any hands."""
    with TemporaryDirectory() as folder:
        log = HalfLog(Path(folder) / "shard")
        known: list[int] = []
        for action, number in actions:
            if action == "half" or not known:
                known.append(log.half(f"id{len(known)}"))
                continue
            offset = known[number % len(known)]
            if action == "asked":
                log.asked(offset, 1 + number)
            elif action == "put_off":
                log.put_off(offset)
            elif action == "kept":
                log.kept(offset)
            elif action == "op":
                log.op(str(offset))
            else:
                if action == "commit":
                    log.committed(offset, ours=True)
                log.ended(action, offset)
        root = log.write(half_progress=min(progress, len(known)) if progress < 15 else None)
        expected = sorted(opened(root))
        _, made = export(root)
        assert sorted(asked_about(made)) == expected
        assert sorted(opened(made)) == expected
        shutil.rmtree(made / "consumequeue", ignore_errors=True)
        assert sorted(opened(made)) == expected
        _, again = export(made, name="again")
        assert sorted(asked_about(again)) == expected
