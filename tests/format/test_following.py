"""Next occurrences made from the bytes of restored ones equal those made from their fields."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from duetime_format import following, record
from duetime_format.columns import RecordRun, parse, part
from duetime_format.following import (
    AT_INTERVAL,
    BY_RULE,
    KIND,
    MISSED,
    MISSED_POLICIES,
    NO_OCCURRENCE,
    ODD,
    PLANNED,
    RULE_AT,
    RULE_END,
    SAME_AS,
    follow,
    readings,
)
from duetime_format.properties import value_of
from duetime_format.replacing import LATEST_MAX, RequestedDueTime, replacing
from duetime_format.restore import PulledEntry, restore
from duetime_format.schedules import SERIES_CHARS, StoredSchedule, pending_schedule, planned_id, with_schedule
from duetime_store.writing.occurrences import occurrence
from hypothesis import example, given
from hypothesis import strategies as st

from tests.twins import compiled

LANE, NOW = 1_002, 1_800_000_000_000
OTHERS = [b"KEYS\x01report", b"TAGS\x01paid", b"a\x01", b"b", b"\x01c", b"U\x01" + "größe😀".encode()]
TIMES = st.integers(10**12 + 1, 10**13 - 1)


@st.composite
def schedules(draw: st.DrawFn) -> StoredSchedule:
    own: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"every_ms": 60_000, "start_at_ms": NOW},
                {"every_ms": 1_000},
                {"cron": "*/5 * * * *", "zone": "Europe/Berlin", "in_gap": "skip", "in_fold": "both"},
                {"cron": "0 0 * * *", "zone": "UTC"},
                {"at_ms": (NOW, NOW + 1)},
                {"at_ms": (NOW,), "start_at_ms": 1},
                {"at_ms": tuple(range(1, 200))},
                {"every_ms": 999},
                {"cron": 'a"b', "zone": "UTC"},
                {"cron": "0 0 * * *", "in_gap": "odd"},
                {},
            ]
        )
    )
    odd: dict[str, Any] = draw(st.sampled_from([{}, {}, {}, {"paused": True}, {"fault": "x"}, {"extra": True}]))
    return StoredSchedule(
        name=draw(
            st.sampled_from(["report", "größe", "a b", "", "\x7f", 'quote"', "back\\", "tab\t", '","every_ms":1'])
        ),
        missed=draw(st.sampled_from(["one", "all", "skip", "x"])),
        made_at_ms=draw(st.sampled_from([0, NOW])),
        seed=draw(st.sampled_from(["", "a1"])),
        version=draw(st.sampled_from([0, 1, 2, 13])),
        planned=draw(st.sampled_from([NOW, 10**12, 5])),
        **own,
        **odd,
    )


def restored_of(schedule: StoredSchedule, others: bytes = b"", *, body: bytes = b"body", **own: Any) -> bytes:
    """The restored record of an occurrence."""
    ending = b"REAL_TOPIC\x01orders\x02REAL_QID\x013"
    properties = b"\x02".join(part for part in (others, b"UNIQ_KEY\x01old", ending) if part)
    first = record.Record("orders", 3, body, properties, reconsume_times=2, **own)
    found = replace(first, properties=with_schedule(properties, schedule, planned_id("orders", schedule)))
    asked = RequestedDueTime(schedule.planned, is_delay=False)
    pending = replacing(found, "rmq_sys_wheel_timer", 2, asked, entry=(LANE, 7, NOW), latest=LATEST_MAX)
    return restore(PulledEntry(LANE, 8, NOW, pending))


def expected(data: bytes, planned: int) -> bytes:
    found = record.decode(data, check_crc=False)
    schedule = pending_schedule(found.properties)
    assert schedule is not None
    return occurrence(found, replace(schedule, planned=planned), 2, NOW)[0]


def id_of(data: bytes) -> bytes:
    return value_of(record.decode(data, check_crc=False).properties, b"UNIQ_KEY")


def agreed(run: RecordRun, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The readings, equal in Python and in compiled code."""
    compiled("duetime_format._following")
    found = readings(run)
    with monkeypatch.context() as patch:
        patch.setattr(following, "_twin", None)
        assert_same_readings(run, readings(run), found)
    return found


def assert_same_readings(run: RecordRun, expected: Any, found: Any) -> None:
    """Equal, except that SAME_AS may be any record with the same rule and planned time."""
    assert found[:SAME_AS].tolist() == expected[:SAME_AS].tolist()
    for index, same in enumerate(found[SAME_AS].tolist()):
        if found[KIND, index] in (AT_INTERVAL, BY_RULE):
            (begin, end), (other, other_end) = found[RULE_AT : RULE_END + 1, [index, same]].T.tolist()
            assert run.data[begin:end] == run.data[other:other_end]
            assert found[PLANNED, index] == found[PLANNED, same]
        else:
            assert same == 0


def fields(run: RecordRun) -> dict[str, Any]:
    """The fields of records, with names instead of the names' numbers."""
    rows = [row for row in range(run.columns.shape[0]) if row not in (2, 10)]
    return {
        "data": run.data,
        "columns": run.columns[rows].tolist(),
        "keys": [run.keys[number] for number in run.key_of.tolist()],
        "destinations": [run.destinations[number] if number >= 0 else None for number in run.real_of.tolist()],
        "entries": np.full((3, run.count), -1).tolist() if run.entries is None else run.entries.tolist(),
        "bounds": (run.position, run.end),
    }


def made(run: RecordRun, planned: list[int], monkeypatch: pytest.MonkeyPatch, **others: Any) -> following.Followed:
    """The records with the next ones, equal in Python and in compiled code."""
    arguments = run, np.array(planned), LANE, NOW, others.get("others", {})
    found = follow(*arguments)
    with monkeypatch.context() as patch:
        patch.setattr(following, "_twin", None)
        again = follow(*arguments)
    assert again.labels == found.labels
    assert fields(again.run) == fields(found.run)
    assert len(set(found.run.keys)) == len(found.run.keys)
    return found


@given(schedules(), st.lists(st.sampled_from(OTHERS)), TIMES, st.sampled_from([0, 4, 0xC, 0x10]))
@example(StoredSchedule("größe", every_ms=1_000, missed="all", planned=NOW), [], NOW + 1_000, 0x10)
def test_next_occurrences_equal_those_made_from_fields(
    schedule: StoredSchedule, others: list[bytes], planned: int, sys_flag: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        data = restored_of(
            schedule, b"\x02".join(others), sys_flag=sys_flag, born_host=bytes(20) if sys_flag & 0x10 else bytes(8)
        )
        run = parse(data)
        kind = agreed(run, patch)[KIND][0]
        if kind in (AT_INTERVAL, BY_RULE):
            (joined, labels) = made(run, [planned], patch)
            following_one = expected(data, planned)
            assert joined.data == following_one + data
            message_id = planned_id("orders", replace(schedule, planned=planned))
            assert labels.decode() == f"orders\x01{schedule.name}\x01{message_id}"
        else:
            assert kind == ODD


@pytest.mark.parametrize("own", [{"every_ms": 60_000, "start_at_ms": 5}, {"cron": "0 0 * * *", "zone": "UTC"}])
def test_an_occurrence_of_the_store_is_not_odd(own: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = StoredSchedule("report", missed="skip", seed="x", version=3, made_at_ms=NOW, planned=NOW, **own)
    run = parse(restored_of(schedule, b"KEYS\x01report"))
    found = agreed(run, monkeypatch)[:, 0].tolist()
    assert found[KIND] == (AT_INTERVAL if "every_ms" in own else BY_RULE)
    assert (found[PLANNED], MISSED_POLICIES[found[MISSED]]) == (NOW, "skip")
    if "cron" in own:
        assert run.data[found[RULE_AT] : found[RULE_END]] == b',"cron":"0 0 * * *","zone":"UTC"'


@given(st.data())
def test_twins_agree_on_any_bytes(draw: st.DataObject) -> None:
    """One byte of the properties is another one, or is missing."""
    with pytest.MonkeyPatch.context() as patch:
        own = record.decode(restored_of(draw.draw(schedules()), b"KEYS\x01report"), check_crc=False)
        properties = bytearray(own.properties)
        at = draw.draw(st.integers(0, len(properties) - 1))
        if draw.draw(st.booleans()):
            properties[at] = draw.draw(st.sampled_from([*b'\x01\x02"\\{}[],:019AFaZ', 0x1F, 0x7F, 0x80, 0xFF]))
        else:
            del properties[at]
        run = parse(record.encode(replace(own, properties=bytes(properties))))
        kind = agreed(run, patch)[KIND][0]
        if kind in (AT_INTERVAL, BY_RULE):
            planned = NOW + 60_000
            found = made(run, [planned], patch)
            hashed, kept = (id_of(one)[:SERIES_CHARS] for one in (expected(run.data, planned), run.data))
            # Both ids belong to one schedule in a record of the store; here the hashed part may have another topic.
            assert found.run.data == expected(run.data, planned).replace(hashed, kept, 1) + run.data


@given(st.lists(st.tuples(schedules(), st.sampled_from(OTHERS)), min_size=1, max_size=6), st.data())
def test_parts_equal_runs_of_their_own(ones: list[tuple[StoredSchedule, bytes]], draw: st.DataObject) -> None:
    """Also their readings, and the next occurrences of several records."""
    with pytest.MonkeyPatch.context() as patch:
        records = [restored_of(one, others) for one, others in ones]
        records.insert(draw.draw(st.integers(0, len(ones))), record.encode(record.Record("a", 1, b"x", b"KEYS\x01a")))
        run = parse(b"".join(records))
        start = draw.draw(st.integers(0, run.count - 1))
        stop = draw.draw(st.integers(start + 1, run.count))
        found, own = part(run, start, stop), parse(b"".join(records[start:stop]))
        assert fields(found) == fields(own)
        assert_same_readings(own, readings(own), following.part(readings(run), start, stop, int(run.starts[start])))
        planned = [NOW + 1 if kind in (AT_INTERVAL, BY_RULE) else 0 for kind in readings(own)[KIND]]
        made(found, planned, patch)


def test_parts_name_their_own_records_with_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    hourly, daily = (StoredSchedule("a", cron=rule, zone="UTC", planned=NOW) for rule in ("0 * * * *", "0 0 * * *"))
    ones = [hourly, daily, hourly, replace(hourly, planned=NOW + 1), StoredSchedule("b", every_ms=1_000, planned=NOW)]
    records = [restored_of(one) for one in (*ones, daily, hourly, replace(daily, paused=True), daily)]
    run = parse(b"".join(records))
    found = agreed(run, monkeypatch)
    assert found[SAME_AS, :6].tolist() == [0, 1, 0, 3, 4, 1]
    for start in range(run.count):
        own = part(run, start, run.count)
        assert_same_readings(own, readings(own), following.part(found, start, run.count, int(run.starts[start])))


def test_other_records_are_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain message, a last occurrence, and one with a next one of the caller."""
    one = restored_of(StoredSchedule("a", every_ms=1_000, planned=NOW))
    plain = record.encode(record.Record("orders", 3, b"x", b"UNIQ_KEY\x01plain"))
    run = parse(plain + one + one + one)
    assert agreed(run, monkeypatch)[KIND].tolist() == [NO_OCCURRENCE, *[AT_INTERVAL] * 3]
    other = expected(one, NOW + 5_000)
    found = made(run, [0, NOW + 1_000, 0, 0], monkeypatch, others={3: (other, b"label")})
    assert found.run.data == plain + expected(one, NOW + 1_000) + one + one + other + one
    assert found.labels.count(b"\x02") == 1
    assert found.labels.endswith(b"\x02label")


@pytest.mark.parametrize("python", [False, True])
def test_wrong_times_and_records_are_rejected(python: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if python:
        monkeypatch.setattr(following, "_twin", None)
    run = parse(restored_of(StoredSchedule("a", every_ms=1_000, planned=NOW)))
    for planned in (10**12, 10**13, -1):
        with pytest.raises(ValueError, match="13 digits"):
            follow(run, np.array([planned]), LANE, NOW, {})
    odd = parse(restored_of(StoredSchedule("a", every_ms=1_000, planned=NOW, paused=True)))
    with pytest.raises(ValueError, match="record 0 is no occurrence"):
        follow(odd, np.array([NOW]), LANE, NOW, {})


def test_wrong_columns_are_rejected() -> None:
    twin = compiled("duetime_format._following")
    run = parse(restored_of(StoredSchedule("a", every_ms=1_000, planned=NOW)))
    for row, value in ((0, -1), (0, 1), (1, len(run.data) + 1), (1, 10)):
        wrong = run.columns.copy()
        wrong[row] = value
        with pytest.raises(ValueError, match="record 0 is not within"):
            twin.readings(run.data, wrong)
    with pytest.raises(ValueError, match="2 times for 1 records"):
        follow(run, np.array([NOW, NOW]), LANE, NOW, {})
