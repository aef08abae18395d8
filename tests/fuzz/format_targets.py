"""The book of bytes: records in every reader of them, in Python and compiled, and the bodies of our own records."""

from functools import partial

import numpy as np
from duetime.client import errors as sdk_errors
from duetime.client.record import split_records
from duetime.v1 import gateway_pb2
from duetime_format import (
    attempts,
    changes,
    checks,
    columns,
    ends,
    events,
    halves,
    keys,
    placing,
    plans,
    properties,
    receipts,
    record,
    replacing,
    restore,
    timers,
    view,
)
from duetime_format.errors import DamagedBytes
from duetime_format.halves import committed, given_up
from duetime_format.restore import PulledEntry, UnrestorableEntry
from duetime_spark.decoding import decode as spark
from duetime_store.reading import messages

from tests.fuzz.seeds import NAMES, NOW_MS, RECORDS, RUNS, sealed_record, sealed_run
from tests.fuzz.target import in_python, outcome, target

FACE = [name for name in vars(view.PythonView) if not name.startswith("_") and name != "text_of"]
OWN = ("body", "properties", "born_at", "stored_at", "due_at", "delay_level", "lane")
# A time of day that no datetime has.
TOO_FAR = (OverflowError, ValueError, OSError)
VALUES = (b"TAGS", b"UNIQ_KEY", b"KEYS", b"DT_ENTRY", b"")
PROPERTIES = [one.properties for one in map(record.decode, RECORDS)]


@target(RECORDS, NAMES, sealed_record)
def one_record(data: bytes) -> None:
    found, _ = outcome(lambda: record.decode(data), DamagedBytes)
    if found is None:
        return
    again = record.decode(record.encode(found), check_crc=False)
    for name in ("topic", "queue", "body", "properties", "born_host", "queue_offset", "prepared_transaction_offset"):
        if name != "properties":
            assert getattr(again, name) == getattr(found, name), name
    assert record.without_crc_mark(again.properties) == record.without_crc_mark(found.properties)


@target(RUNS, NAMES, sealed_run)
def runs_of_records(data: bytes) -> None:
    for read in (lambda: columns.take(data, 0, 0), lambda: columns.parse(data)):
        run, refused = outcome(read, DamagedBytes)
        other, refused_in_python = outcome(partial(in_python, columns, "_twin", read), DamagedBytes)
        assert refused == refused_in_python
        if run is not None and other is not None:
            _same_runs(run, other)


def _same_runs(run: columns.RecordRun, other: columns.RecordRun) -> None:
    assert run.columns.tolist() == other.columns.tolist()
    assert run.keys == other.keys
    sizes = run.sizes.tolist()
    read = partial(columns.values, run.data[: sum(sizes)], sizes, VALUES)
    assert read() == in_python(columns, "_twin", read)
    rows = partial(keys.rows_of, run)
    assert rows().tolist() == in_python(keys, "_twin", rows).tolist()
    if run.count:
        _same_places(run)


def _same_places(run: columns.RecordRun) -> None:
    positions = 1_000 + run.starts
    given = positions, [7] * len(run.keys), [0] * len(run.keys), NOW_MS
    placed = placing.place(run, *given)
    assert placed == in_python(placing, "_twin", lambda: placing.place(run, *given))
    indices = np.arange(run.count)
    agreed = timers.agree(run, indices)
    assert agreed.tolist() == in_python(timers, "_twin", lambda: timers.agree(run, indices)).tolist()
    assert timers.dues(run, indices).dtype == np.int64


@target(RECORDS, NAMES, sealed_record)
def views_of_the_sdk(data: bytes) -> None:
    found, refused = outcome(lambda: split_records(data), sdk_errors.Damaged)
    others, refused_in_python = outcome(lambda: view.views(view.PythonView, data), DamagedBytes)
    assert (refused is None) == (refused_in_python is None)
    for one, other in zip(found or [], others or [], strict=True):
        whole, _ = outcome(partial(record.decode, other._record, check_crc=False), DamagedBytes)
        if whole is None:
            # Stores give out whole records only.
            continue
        for name in FACE:
            if name != "body":
                assert getattr(one, name) == getattr(other, name), name
        for name in OWN:
            outcome(partial(getattr, one, name), sdk_errors.Damaged, *TOO_FAR)


@target(RUNS, NAMES, sealed_run)
def answers_of_a_store(data: bytes) -> None:
    sizes = columns.take(data, 0, 0).sizes.tolist()
    whole = data[: sum(sizes)]
    found, other = gateway_pb2.PullResponse(), gateway_pb2.PullResponse()
    messages.add_messages(found, whole, sizes)
    in_python(messages, "_compiled", lambda: messages.add_messages(other, whole, sizes))
    assert found == other


@target(RUNS, NAMES, sealed_run, cost=40)
def rows_of_spark(data: bytes) -> None:
    def read() -> object:
        batch, decoder, stopped_at = spark.decode(data, 0, len(data), len(data) + 8)
        return batch.to_pylist(), decoder.skipped, stopped_at

    assert read() == in_python(spark, "_twin", read)


@target(RECORDS, NAMES, sealed_record)
def restored_and_committed(data: bytes) -> None:
    entries = restore.PulledEntries(2, np.array([5]), data, [len(data)], [NOW_MS])
    run, count = restore.quickest_run(entries, 0)
    assert (run, count) == restore.restore_run(entries, 0)[:2] or not count
    outcome(lambda: restore.restore(PulledEntry(2, 5, NOW_MS, data)), UnrestorableEntry)
    restore.quarantine(PulledEntry(2, 5, NOW_MS, data), "why", keep_body=len(data) < 1 << 12)
    half, _ = outcome(lambda: record.decode(data), DamagedBytes)
    if half is None:
        return
    outcome(lambda: committed(half, 18, 3), DamagedBytes)
    outcome(lambda: given_up(half, 3), DamagedBytes)
    given = data[: half.size], [half.size], [b"orders"], [1]
    found = halves.quickest_run(*given)
    assert found in (halves.committed_run(*given), [None])


@target(PROPERTIES, NAMES)
def properties_of_a_record(data: bytes) -> None:
    told = properties.decode_properties(data)
    for name in (b"TAGS", b"UNIQ_KEY", b"DELAY"):
        assert properties.as_text(properties.value_of(data, name)) == told.get(name.decode(), "")
        properties.value_at(data, name)
    assert properties.decode_properties(properties.encode_properties(told)) == told
    record.find_lane_entry(data)
    record.find_timer_out(data)
    timers.due_by(data, NOW_MS)
    timers.agrees(data)
    replacing.asked_by(data)
    replacing.latest_of(data)
    replacing.request_of(data)
    halves.immunity_ms(data, 6_000)
    for read in (halves.decision_of, halves.group_of, halves.half_of, halves.checks_of):
        read(data)
    halves.commits(12, data)
    outcome(lambda: restore.target_of(data), UnrestorableEntry)


@target(receipts.pack(3, 1 << 40, [0, 7, (1 << 63) - 1]))
def receipts_of_receivers(data: bytes) -> None:
    found = receipts.parse(data)
    if found is not None:
        assert receipts.pack(found.shard, found.lease, [found.offset]) == [data]
    lease = receipts.parse_lease(data)
    assert lease is None or receipts.lease_name(*lease) == data


BODIES = [
    ends.encode(1, np.array([3, 4]), np.array([5, 6])),
    b"3,4,17,",
    b"\1\0\0\0\1\0\1\0\0\0\0\6orders" + bytes(18),
    (5).to_bytes(8, "big") * 2 + b"\0\3",
]


@target(BODIES)
def bodies_of_our_records(data: bytes) -> None:
    for read in (ends.decode, halves.ended_by, checks.decode, plans.decode):
        outcome(partial(read, data), DamagedBytes)
    plan, _ = outcome(lambda: plans.decode(data), DamagedBytes)
    assert plan is None or plan.encode() == data


STATE = [
    b'[["offsets","orders@billing",{"0":5,"3":7}],["offsets","a@b",null]]',
    b'[["topics","orders",[8,"FIFO"]],["groups","billing",[15,false]],["pauses","@billing",[1,0]],["later",[],{}]]',
]


@target(STATE)
def changes_of_state(data: bytes) -> None:
    found, _ = outcome(lambda: changes.decode(data), DamagedBytes)
    for body in changes.bodies(changes.StateChanges(found or ())):
        assert changes.decode(body) == list(changes.StateChanges(found or ()))


JOURNAL = events.begin_body({1: events.PlaceKey("g", "orders", "orders", 2)}) + b"".join(
    events.framed(event.kind, event.payload())
    for event in (
        events.EndEvent(1, 7, b"\0" * 7 + b"\5" + b"\0\0\0\2"),
        events.ScanEvent(1, 5, 9),
        events.DeleteEvent("g"),
    )
)


@target([JOURNAL])
def journal_of_groups(data: bytes) -> None:
    def read() -> list[events.GroupEvent]:
        with events.reading():
            _, at = events.keys_of(data)
            list(events.events_near(data, at, {1: (0, 10)}))
            return [events.read(kind, payload) for kind, payload in events.events_in(data, at)]

    found, _ = outcome(read, DamagedBytes)
    for event in found or []:
        assert events.read(event.kind, event.payload()) == event


@target(
    [b'{"attempts":[[1,2,3,"E","m","t"],[2,2,3,"E",null,null,1]],"shortened":1,"left_out":4}'],
    [b"Infinity", b"[", b"{"],
)
def histories_of_attempts(data: bytes) -> None:
    found = attempts.decode(data.decode(errors="surrogateescape"))
    text, _ = outcome(lambda: attempts.encode(found), UnicodeEncodeError)
    assert text is None or len(text.encode()) <= attempts.HISTORY_BYTES_MAX
