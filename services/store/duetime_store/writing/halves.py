"""Half messages of transactions, and their ends. The steps of the writer.

a prepare     a record of the half topic
an end        the real record of a committed one, or the copy of an expired one; and a record of the op topic,
              one for all ends of a call with one decision
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from duetime_core.errors import AlreadyExists, DueTimeError
from duetime_format import halves
from duetime_format.halves import end_tag, half_of
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import as_text
from duetime_format.texts import shown

from duetime_store.log.intake import Intake, parse
from duetime_store.writing.faults import ended_faults
from duetime_store.writing.repeats import answer_twins, find_twins
from duetime_store.writing.staging import DUPLICATE, OK, PutOutcome
from duetime_store.writing.store import Store
from duetime_store.writing.visible import FirstCopy

_TOPIC = HALF_TOPIC.encode()
_UNKNOWN = -1


@dataclass(slots=True)
class HalfResolutions:
    """Ends of open half messages, as columns."""

    offsets: list[int]
    codes: list[int]
    # A commit's real record, or the copy of an expired transaction; empty: none.
    records: list[bytes]


@dataclass(slots=True)
class PlacedEnds:
    """Positions of the ends' stored records, as columns with one value per record."""

    # Indices of the ends.
    ends: list[int]
    # Topics and queues, and the index of each record's own.
    keys: list[tuple[bytes, int]]
    key_of: list[int]
    offsets: list[int]
    # 0 outside of lanes.
    due_at_ms: list[int]
    # Indices within these columns of records whose due time was past.
    past: list[int]
    # Reasons to reject the others, by index of the end.
    refused: dict[int, str]


def prepare(
    store: Store,
    intake: Intake,
    faults: Mapping[int, str | DueTimeError],
    take: Callable[[int], None],
) -> tuple[PutOutcome, list[int]]:
    """Stages half records without faults that were not prepared before. A repeat joins its transaction if that is open
    and is rejected if it has ended. Also returns each record's position; -1: rejected or unknown.

    Args:
        take: takes a seat for the record of this index, or raises its refusal.
    """
    outcome = PutOutcome.of_nothing(intake.count, OK, store.clock.now_ms())
    for index, fault in faults.items():
        outcome.refuse(index, fault)
    asked = store.repeats.among(intake)
    for index, first in store.first_copies(intake, [one for one in asked if outcome.statuses[one] == OK]).items():
        if first.topic == _TOPIC or half_of(first.properties) is not None:
            ended = store.repeats.ends.of_transaction(first)
            if ended is not None:
                outcome.refuse(index, ended)
            else:
                outcome.statuses[index], outcome.queue_offsets[index] = DUPLICATE, first.queue_offset
            continue
        outcome.refuse(index, store.repeats.ends.of(first) or _sent_before(first))
    twins = find_twins(intake, outcome, asked)
    for index in twins:
        outcome.statuses[index] = DUPLICATE
    chosen = [index for index, status in enumerate(outcome.statuses) if status == OK]
    for index in chosen:
        try:
            take(index)
        except DueTimeError as error:
            outcome.refuse(index, error)
    chosen = [index for index in chosen if outcome.statuses[index] == OK]
    stored = PutOutcome([], stored_at_ms=outcome.stored_at_ms)
    staged = store.stage_sent(intake if len(chosen) == intake.count else intake.only(chosen), stored).tolist()
    outcome.take_places(chosen, stored)
    answer_twins(intake, outcome, twins)
    for index, first_index in twins.items():
        if outcome.statuses[first_index] not in (OK, DUPLICATE):
            outcome.refuse(index, outcome.error_of(first_index))
    return outcome, _positions(store, outcome, chosen, staged)


def _sent_before(first: FirstCopy) -> AlreadyExists:
    topic, message_id = as_text(first.name.topic), as_text(first.name.message_id)
    text = f"id {shown(message_id)} of topic {topic} belongs to a message sent without a transaction"
    return AlreadyExists(text, reason="MESSAGE_SENT")


def _positions(store: Store, outcome: PutOutcome, chosen: Sequence[int], staged: Sequence[int]) -> list[int]:
    """Positions of the half records, both newly staged and existing ones."""
    positions = [_UNKNOWN] * len(outcome.statuses)
    for index, position in zip(chosen, staged, strict=True):
        positions[index] = position
    known = [index for index, status in enumerate(outcome.statuses) if status == DUPLICATE]
    places = store.halves.staged_positions([outcome.queue_offsets[index] for index in known])
    for index, position in zip(known, places, strict=True):
        positions[index] = position
    return positions


def end(store: Store, ends: HalfResolutions, ended: Callable[[Sequence[int]], None]) -> PlacedEnds:
    """Stages ends of half messages, at most one of each.

    Args:
        ended: called with the offsets of the staged ones, ascending, once their ends are durable.
    """
    placed, positions = _stage_records(store, ends)
    marks: dict[int, int] = {}
    for code in sorted(set(ends.codes)):
        offsets = sorted(
            offset
            for index, (offset, own) in enumerate(zip(ends.offsets, ends.codes, strict=True))
            if own == code and index not in placed.refused
        )
        at = 0
        for body in halves.op_bodies(offsets):
            op_position = store.stage_own(halves.op_record(body, code, store.clock.now_ms()))
            stop = at + body.count(b",")
            for offset in offsets[at:stop]:
                marks[offset] = end_tag(code, positions.get(offset, op_position))
            at = stop
    if marks:
        store.halves.stage(marks)
        store.staged.marks.append(partial(store.halves.publish, marks))
        store.staged.settles.append(lambda durable: ended(sorted(marks)) if durable else store.halves.undo())
    return placed


def _stage_records(store: Store, ends: HalfResolutions) -> tuple[PlacedEnds, dict[int, int]]:
    """Also returns the records' positions, by half offset."""
    owners = [index for index, record in enumerate(ends.records) if record]
    if not owners:
        return PlacedEnds([], [], [], [], [], [], {}), {}
    intake = parse(b"".join(ends.records))
    faults = ended_faults(intake, store.log.record_bytes_max) | store.closing.deleted_faults(intake)
    refused = {owners[index]: fault for index, fault in faults.items()}
    if faults:
        chosen = [index for index in range(intake.count) if index not in faults]
        owners, intake = [owners[index] for index in chosen], intake.only(chosen)
    stored = PutOutcome([], stored_at_ms=store.clock.now_ms())
    positions = store.stage_sent(intake, stored).tolist()
    offsets = [ends.offsets[index] for index in owners]
    columns = stored.queue_offsets, stored.due_at_ms, stored.past
    placed = PlacedEnds(owners, list(intake.keys), intake.key_of.tolist(), *columns, refused)
    return placed, dict(zip(offsets, positions, strict=True))
