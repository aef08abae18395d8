"""`duetime store verify` of lanes: marks of ended entries, orders of timer lanes, counts. And a transferred shard."""

import re
from pathlib import Path

import pytest
from duetime.v1 import pending_pb2, store_pb2
from duetime_format.levels import DelayLevels
from duetime_format.properties import decode_properties
from duetime_format.units import UNIT
from duetime_shard import pending
from duetime_shard.records import message
from duetime_shard.shard import read
from duetime_store.counting import countfile
from duetime_store.offline.export import export_directory
from duetime_store.offline.summary import summary
from duetime_store.offline.verify import verify

from tests.store.conftest import flip, sent, timer
from tests.store.running import Running

LEVELS = DelayLevels.parse("1s 1h")
LEVEL, TIMER = "SCHEDULE_TOPIC_XXXX/1", "rmq_sys_wheel_timer/0"
FIRST = "0" * 20
CANCELLED, RESCHEDULED = pending_pb2.CANCEL_STATUS_CANCELLED, pending_pb2.RESCHEDULE_STATUS_RESCHEDULED


def ref(message_id: str) -> pending_pb2.PendingRef:
    return pending_pb2.PendingRef(message_id=message_id)


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """Of a shard that stopped cleanly: messages for 1 h and for any time; 1 and 3 of each are cancelled, 4 of each is
    rescheduled: entries 6 and 7 of the timer lane."""
    async with Running(tmp_path / "store") as store:
        for number in range(6):
            await store.put(sent(f"level{number}", level=2), timer(f"timer{number}", 60_000 + number))
        refs = [ref(f"{kind}{number}") for kind in ("level", "timer") for number in (1, 3)]
        answer = await store.stub.Cancel(pending_pb2.CancelRequest(messages=refs), timeout=60)
        assert [one.status for one in answer.results] == [CANCELLED] * 4
        later = [pending_pb2.Reschedule(message=ref(f"{kind}4"), delay_ms=7_200_000) for kind in ("level", "timer")]
        changes = [store_pb2.Replacement(message=one.message, reschedule=one) for one in later]
        changed = await store.stub.Replace(store_pb2.ReplaceRequest(replacements=changes), timeout=60)
        assert [one.status for one in changed.results] == [RESCHEDULED] * 2
    return tmp_path / "store"


def damages(root: Path) -> list[str]:
    return [str(damage) for damage in verify(root, LEVELS).damages]


def ids(root: Path) -> list[str]:
    """Of all pending messages."""
    state, found = read(root, LEVELS), []
    for lane in pending.lanes(state).values():
        for _, units in lane.pending():
            for position in units["position"].tolist():
                one = message(state, position)
                assert one is not None
                found.append(decode_properties(one.properties)["UNIQ_KEY"])
    return sorted(found)


def mark(root: Path, queue: str, entry: int, *, add: int = 0) -> None:
    """Changes the sign of a unit's due time, and the time."""
    path = root / "consumequeue" / queue / FIRST
    data = bytearray(path.read_bytes())
    position, size, due_at_ms = UNIT.unpack_from(data, entry * UNIT.size)
    UNIT.pack_into(data, entry * UNIT.size, position, size, -due_at_ms + add)
    path.write_bytes(data)


def test_shard_with_ended_entries_is_sound(root: Path) -> None:
    assert damages(root) == []
    left = [f"{kind}{number}" for kind in ("level", "timer") for number in (0, 2, 4, 5)]
    assert ids(root) == left
    told = summary(read(root, LEVELS))
    assert told["pendingPerDelayLevel"] == {"1": 0, "2": 3}
    assert told["endedPerDelayLevel"] == {"2": 3}
    lane = told["timerLanes"]["1000"]
    assert (lane["pending"], lane["ended"], lane["max"]) == (5, 3, 8)


@pytest.mark.parametrize(("queue", "entry"), [(LEVEL, 0), (TIMER, 5)])
def test_mark_without_a_matching_record_is_damage(root: Path, queue: str, entry: int) -> None:
    mark(root, queue, entry)
    assert f"consumequeue/{queue}/{FIRST} at {entry * 20}: unit says the entry has ended, but no record" in "\n".join(
        damages(root)
    )


@pytest.mark.parametrize(
    ("queue", "entry", "how"),
    [(LEVEL, 1, "cancelled"), (TIMER, 3, "cancelled"), (LEVEL, 4, "replaced"), (TIMER, 4, "replaced")],
)  # fmt: skip
def test_record_without_its_mark_is_damage(root: Path, queue: str, entry: int, how: str) -> None:
    mark(root, queue, entry)
    assert any(
        re.search(rf"{queue}/{FIRST} at {entry * 20}: the record at \d+ has {how} the entry, but its unit is not", one)
        for one in damages(root)
    )


def test_unmarked_entry_of_a_killed_store_is_none(root: Path) -> None:
    """The next start marks it: its record is after the checkpoint."""
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    mark(root, TIMER, 3)
    mark(root, LEVEL, 1)
    assert damages(root) == []


def test_other_due_time_than_the_ended_entrys_is_damage(root: Path) -> None:
    mark(root, TIMER, 1, add=7)
    mark(root, TIMER, 1, add=0)
    assert any("the entry was cancelled with due time" in one for one in damages(root))


def test_damaged_manifest_and_run_are_found(root: Path) -> None:
    runs = sorted(path for path in (root / "timers" / "0").iterdir() if path.name.isdigit())
    flip(runs[0], 40)
    assert any(one.startswith(f"timers/0/{runs[0].name} at 0: block 0") for one in damages(root))
    flip(root / "timers" / "0" / "manifest", 9)
    assert "timers/0/manifest at 0: it does not match its CRC" in damages(root)


def test_missing_run_is_found(root: Path) -> None:
    run = next(path for path in (root / "timers" / "0").iterdir() if path.name.isdigit())
    run.unlink()
    assert damages(root) == [f"timers/0/{run.name} at 0: the manifest names it, but it is missing"]


def test_counts_that_are_damaged_or_wrong_are_found(root: Path) -> None:
    path = root / countfile.FILE
    flip(path, 30)
    assert f"{countfile.FILE} at 0: its CRC does not match" in damages(root)
    flip(path, 30)
    # One more entry has ended than the file counts.
    mark(root, TIMER, 5)
    assert f"{countfile.FILE} at 0: it counts 5 pending messages of lane 1000, there are 4" in damages(root)


def test_ended_messages_stay_ended_with_a_broker_and_back(root: Path, tmp_path: Path) -> None:
    left = ids(root)
    exported = export_directory(root, tmp_path / "made", LEVELS, accept_damage=False)
    # Timers 0 and 2 are appended, so that a broker begins after all ended ones; those are silenced too, since the
    # broker may lose its progress.
    assert (exported.timers, exported.silenced) == (5, 6)
    assert ids(tmp_path / "made") == left
    assert not (tmp_path / "made" / "timers").exists()
    assert not (tmp_path / "made" / countfile.FILE).exists()
