"""Which half messages of a directory are open: brokers' own directories, and ones in the shapes that brokers leave."""

import shutil
from pathlib import Path

import pytest
from duetime_format.halves import COMMITTED, ENDED, GIVEN_UP, ROLLED_BACK, ends_of
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import HALF_TOPIC, OP_TOPIC
from duetime_shard import halves
from duetime_shard.shard import read

from tests.format import golden
from tests.store.half_log import START_MS, HalfLog

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


@pytest.fixture
def log(tmp_path: Path) -> HalfLog:
    return HalfLog(tmp_path / "shard")


def judged(root: Path) -> halves.UnmarkedHalves:
    return halves.of_state(read(root, LEVELS))


def opened(root: Path) -> list[int]:
    return [half.offset for half in judged(root).open]


def ends(root: Path) -> dict[int, tuple[int, int]]:
    """By offset: decision and position."""
    found = judged(root)
    codes, positions = ends_of(found.tags)
    return dict(zip(found.ended.tolist(), zip(codes.tolist(), positions.tolist(), strict=True), strict=True))


# --- brokers' own directories ----------------------------------------------------------------------------------------


def by_manifest(name: str, root: Path) -> dict[str, tuple[int, int]]:
    """Id, offset and checks of the half messages that a broker would ask about: those after its progress without an op
    record.
    """
    known = golden.summary(name)["consumerOffset"]
    first = int(known[f"{HALF_TOPIC}@{halves.GROUP}"]["0"])
    log = (root / "commitlog").iterdir()
    files = {int(path.name): path for path in log}
    done = set()
    found = {}
    for unit in golden.units(name):
        if unit["topic"] == OP_TOPIC:
            base = max(base for base in files if base <= unit["physicalOffset"])
            data = files[base].read_bytes()[unit["physicalOffset"] - base :][: unit["size"]]
            done.update(data[88 : 88 + unit["bodyLength"]].decode().split(","))
    for unit in golden.units(name):
        if unit["topic"] == HALF_TOPIC and unit["queueOffset"] >= first and str(unit["queueOffset"]) not in done:
            checks = int(unit["properties"].get("TRANSACTION_CHECK_TIMES", 0))
            found[unit["uniqKey"]] = unit["queueOffset"], checks
    return found


@pytest.mark.parametrize("name", golden.params())
def test_open_ones_of_a_broker_are_those_it_would_ask_about(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path)
    expected = by_manifest(name, root)
    found = judged(root)
    assert len(expected) > 3
    assert [(half.offset, half.checks) for half in found.open] == sorted(expected.values())
    assert all(half.group.endswith("_tx") for half in found.open)
    known = golden.summary(name)["queues"][HALF_TOPIC]["0"]
    assert sorted([*found.ended.tolist(), *(half.offset for half in found.open)]) == list(range(known["max"]))


@pytest.mark.parametrize("name", golden.params())
@pytest.mark.parametrize("gone", ["config/consumerOffset.json", "config", "consumequeue"])
def test_open_ones_are_the_same_when_a_brokers_files_are_lost(name: str, gone: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path)
    expected = by_manifest(name, root)
    if (root / gone).is_dir():
        shutil.rmtree(root / gone)
    else:
        for path in root.glob(f"{gone}*"):
            path.unlink()
    assert opened(root) == sorted(offset for offset, _ in expected.values())


# --- one record per half message, or several -------------------------------------------------------------------------


def test_half_message_without_an_end_is_open(log: HalfLog) -> None:
    log.half("a", CHECK_IMMUNITY_TIME_IN_SECONDS="30")
    (half,) = judged(log.write()).open
    assert (half.offset, half.group, half.checks, half.stored_at_ms, half.immunity_ms) == (0, "g", 0, START_MS, 30_000)
    assert (half.position, half.size) == (0, len(log.data))


@pytest.mark.parametrize("bodies", [["0", "2"], ["0,2,"], ["0,", "2,"], ["2,0"]])
def test_op_records_of_any_broker_end_the_named_halves(log: HalfLog, bodies: list[str]) -> None:
    for name in "abc":
        log.half(name)
    positions = [log.op(body) for body in bodies]
    root = log.write()
    assert opened(root) == [1]
    assert {end for end, _ in ends(root).values()} == {ENDED}
    assert {position for _, position in ends(root).values()} == set(positions)


def test_broken_op_record_ends_nothing(log: HalfLog) -> None:
    log.half("a")
    log.op("nonsense")
    assert opened(log.write()) == [0]


def test_newest_of_several_copies_is_open(log: HalfLog) -> None:
    log.half("a")
    log.half("b")
    log.asked(0, 1)
    log.asked(1, 1)
    log.asked(2, 2)
    root = log.write()
    assert [(half.offset, half.checks) for half in judged(root).open] == [(3, 1), (4, 2)]
    assert ends(root) == dict.fromkeys((0, 1, 2), (ENDED, 0))


@pytest.mark.parametrize("named", [0, 1, 2])
def test_end_of_any_copy_ends_all(log: HalfLog, named: int) -> None:
    """Else a producer that was late would be asked again, and its message delivered twice."""
    log.half("a")
    log.asked(0, 1)
    log.asked(1, 2)
    position = log.op(str(named))
    assert ends(log.write()) == dict.fromkeys(range(3), (ENDED, position))


def test_immune_copy_is_ended_by_the_first(log: HalfLog) -> None:
    log.half("a", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    log.put_off(0)
    log.op("0")
    assert opened(log.write(half_progress=1)) == []


def test_op_record_ends_an_immune_copy_without_its_first(log: HalfLog) -> None:
    for _ in range(3):
        log.half("others")
    log.half("a", TRAN_PREPARED_QUEUE_OFFSET="1")
    log.op("1")
    assert opened(log.write(half_progress=3)) == []


def test_copy_without_an_id_is_one(log: HalfLog) -> None:
    log.half("")
    log.asked(0, 1)
    assert opened(log.write()) == [1]


def test_two_messages_with_one_id_are_two_transactions(log: HalfLog) -> None:
    log.half("a")
    log.half("a", born_ms=START_MS + 1)
    log.half("a", born_ms=START_MS + 1, topic="others")
    log.asked(1, 1)
    log.op("3")
    root = log.write()
    assert opened(root) == [0, 2]
    assert set(ends(root)) == {1, 3}


# --- killed on the way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [False, True])
def test_committed_without_an_op_record_has_ended(log: HalfLog, ours: bool) -> None:
    log.half("a")
    log.half("b")
    position = log.committed(1, ours=ours)
    root = log.write()
    assert opened(root) == [0]
    assert ends(root) == {1: (COMMITTED, position)}


def test_commit_of_an_older_copy_ends_the_newest(log: HalfLog) -> None:
    log.half("others")
    log.half("a")
    position = log.committed(1)
    log.asked(1, 1)
    assert ends(log.write(half_progress=2))[2] == (COMMITTED, position)


def test_half_message_that_retention_moved_is_committed_by_its_new_place(log: HalfLog) -> None:
    log.half("a")
    log.kept(0)
    position = log.committed(0)
    assert ends(log.write()) == {0: (COMMITTED, position)}


def test_given_up_by_a_broker(log: HalfLog) -> None:
    log.half("a")
    log.half("b")
    position = log.given_up(0)
    root = log.write()
    assert opened(root) == [1]
    assert ends(root) == {0: (GIVEN_UP, position)}


def test_our_decisions_are_reported(log: HalfLog) -> None:
    for name in "abcd":
        log.half(name)
    given_up = log.given_up(2)
    log.given_up(3)
    rolled_back = log.ended("rollback", 1)
    log.ended("give_up", 2, 3)
    committed = log.committed(0, ours=True)
    log.ended("commit", 0)
    late = log.ended("rollback", 3)
    expected = {
        0: (COMMITTED, committed),
        1: (ROLLED_BACK, rolled_back),
        2: (GIVEN_UP, given_up),
        3: (ROLLED_BACK, late),
    }
    assert ends(log.write()) == expected


# --- a broker's progress ---------------------------------------------------------------------------------------------


def test_halves_before_a_brokers_progress_have_ended(log: HalfLog) -> None:
    for name in "abc":
        log.half(name)
    log.op("1")
    root = log.write(half_progress=1, op_progress=1)
    assert opened(root) == [2]
    assert ends(root)[0] == (ENDED, 0)


def test_progress_beyond_a_shortened_log_does_not_count(log: HalfLog) -> None:
    log.half("a")
    log.half("b")
    log.op("0")
    assert opened(log.write(half_progress=3)) == [1]


def test_directory_without_half_messages_has_none(log: HalfLog) -> None:
    log.op("0")
    found = judged(log.write())
    assert found.open == []
    assert len(found.ended) == len(found.tags) == 0


@pytest.mark.parametrize("marked", [0, 1])
def test_marked_units_are_left_out(log: HalfLog, marked: int) -> None:
    log.half("a")
    log.half("b")
    root = log.write()
    state = read(root, LEVELS)
    ((_, units),) = state.queues[HALF_TOPIC, 0].made
    units["tags"][marked] = -(1 << 33) - 1 - (77 << 2 | ROLLED_BACK)
    found = halves.of_state(state)
    assert [half.offset for half in found.open] == [1 - marked]
    assert len(found.ended) == 0
