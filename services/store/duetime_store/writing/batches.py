"""The batches of a put: runs of records that are stored together or not at all."""

from collections.abc import Sequence

import numpy as np
from duetime_core.errors import DueTimeError, FailedPrecondition, InvalidArgument, Violation
from duetime_format import batches
from duetime_format.columns import Ints
from duetime_format.lanes import LANE_TOPIC_NAMES
from duetime_format.limits import BATCH_BYTES_MAX

from duetime_store.log.intake import Intake
from duetime_store.writing.staging import DUPLICATE, OK, REFUSED, PutOutcome

PARTLY_STORED = "BATCH_PARTLY_STORED"


def runs_of(flat: Sequence[int], count: int) -> Ints:
    """[first, stop) of each batch of a put of `count` records.

    Raises:
        InvalidArgument: the numbers are not consecutive runs within the put.
    """
    runs, at = [], 0
    for first, size in zip(flat[::2], flat[1::2], strict=False):
        if not at <= first < first + size <= count:
            text = f"{size} records from {first} on are not a batch of a put of {count} records after {at}"
            raise InvalidArgument([Violation("batches", text)], reason="RECORDS_INVALID")
        at = first + size
        runs.append((first, at))
    if len(flat) % 2:
        raise InvalidArgument([Violation("batches", "its last batch has no count")], reason="RECORDS_INVALID")
    return np.array(runs, np.int64).reshape(-1, 2)


def faults_of(intake: Intake, room: int) -> dict[int, str]:
    """Faults of whole batches, by index of the first record. `room`: the bytes that fit in one segment."""
    faults = {}
    most = min(room, BATCH_BYTES_MAX)
    for first, stop in intake.batches.tolist():
        keys = {intake.keys[number] for number in set(intake.key_of[first:stop].tolist())}
        queues = [key for key in keys if key[0] not in LANE_TOPIC_NAMES]
        size = span_bytes(intake, first, stop)
        if len(queues) > 1:
            faults[first] = f"begins a batch of {len(queues)} queues; a batch has one"
        elif size > most:
            faults[first] = f"begins a batch of {size} bytes; the limit is {most}"
    return faults


def span_bytes(intake: Intake, first: int, stop: int) -> int:
    """The size of the records [first, stop)."""
    return int(intake.starts[stop - 1] + intake.sizes[stop - 1] - intake.starts[first])


def refuse_whole(intake: Intake, outcome: PutOutcome) -> None:
    """Rejects all records of a batch that has a rejected one."""
    for first, stop in intake.batches.tolist():
        refused = [index for index in range(first, stop) if outcome.statuses[index] == REFUSED]
        if refused and len(refused) < stop - first:
            text = f"record {refused[0] - first} of its batch {outcome.faults[refused[0]]}"
            error = outcome.errors.get(refused[0])
            _refuse(outcome, first, stop, text if error is None else error)


def refuse_partly_stored(intake: Intake, outcome: PutOutcome, twins: dict[int, int]) -> None:
    """Rejects batches that are stored in part: their ids belong to another set of messages. Removes the rejected
    records from `twins`, the records that repeat others of the put."""
    changed = True
    while changed:
        changed = False
        for first, stop in intake.batches.tolist():
            duplicates = sum(status == DUPLICATE for status in outcome.statuses[first:stop])
            stored = sum(status == OK for status in outcome.statuses[first:stop])
            if duplicates and stored:
                text = f"{duplicates} of the {stop - first} messages of the batch are stored, the others are not"
                _refuse(outcome, first, stop, FailedPrecondition(text, reason=PARTLY_STORED))
                changed = True
        for index, original in list(twins.items()):
            if outcome.statuses[index] == REFUSED:
                del twins[index]
            elif outcome.statuses[original] == REFUSED:
                outcome.refuse(index, outcome.error_of(original))
                del twins[index]
                changed = True
        refuse_whole(intake, outcome)


def _refuse(outcome: PutOutcome, first: int, stop: int, fault: str | DueTimeError) -> None:
    for index in range(first, stop):
        if outcome.statuses[index] != REFUSED:
            outcome.refuse(index, fault)


def among(intake: Intake, chosen: Sequence[int]) -> Ints:
    """The batches among the `chosen` records, which are whole batches and single records."""
    place = {index: at for at, index in enumerate(chosen)}
    bounds = [(place[first], place[first] + stop - first) for first, stop in intake.batches.tolist() if first in place]
    return np.array(bounds, np.int64).reshape(-1, 2)


def marks_of(intake: Intake, positions: Ints) -> Ints | None:
    """The batch marks in the records' heads (duetime_format.batches). None: there is no batch."""
    if not len(intake.batches):
        return None
    firsts, stops = intake.batches.T
    counts, lasts = stops - firsts, stops - 1
    sizes = intake.starts[lasts] + intake.sizes[lasts] - intake.starts[firsts]
    marks = np.zeros(intake.count, np.int64)
    inner = np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    marks[inner] = np.repeat(batches.marks(positions[firsts], sizes), counts)
    return marks
