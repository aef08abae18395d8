"""Half messages of transactions, and their ends. The steps of the writer.

a prepare     a record of the half topic
an end        the real record of a committed one, or the copy of one that is given up; and a record of the op topic,
              one for all ends of a call with one decision
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from duetime_core.bounds import shown
from duetime_core.errors import AlreadyExists, DueTimeError
from duetime_format import halves
from duetime_format.halves import half_of
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import as_text

from duetime_store.log.intake import Intake, parse
from duetime_store.queues.halfqueue import End
from duetime_store.writing.faults import ended_faults
from duetime_store.writing.repeats import FirstCopy, answer_twins, find_twins
from duetime_store.writing.staging import DUPLICATE, OK, Outcome
from duetime_store.writing.store import Store

_TOPIC = HALF_TOPIC.encode()
_UNKNOWN = -1


class Decided(NamedTuple):
    """The end of an open half message. `record`: of a commit the real one, of a give-up the copy."""

    offset: int
    code: int
    record: bytes = b""


class Placed(NamedTuple):
    """Where the record of an end lies, and when it falls due; 0 outside of lanes."""

    topic: bytes
    queue: int
    offset: int
    due_at_ms: int
    # The time that it asks for was past.
    was_past: bool


def prepare(
    store: Store,
    intake: Intake,
    faults: Mapping[int, str | DueTimeError],
    room: int,
    full: DueTimeError,
) -> tuple[Outcome, list[int]]:
    """Stages half records that have no fault and were not prepared before. Returns also where each lies; -1: it is
    refused, or unknown.

    Args:
        room: how many more may be open; others are refused with `full`.
    """
    outcome = Outcome.of_nothing(intake.count, OK, store.clock.now_ms())
    for index, fault in faults.items():
        outcome.refuse(index, fault)
    asked = store.repeats.among(intake)
    for index, first in store.first_copies(intake, [one for one in asked if outcome.statuses[one] == OK]).items():
        if (offset := _half_offset(first)) is not None:
            outcome.statuses[index], outcome.queue_offsets[index] = DUPLICATE, offset
            continue
        topic, message_id = as_text(first.name[0]), as_text(first.name[1])
        text = f"id {shown(message_id)} of topic {topic} is that of a message that was sent without a transaction"
        outcome.refuse(index, AlreadyExists(text, reason="MESSAGE_SENT"))
    twins = find_twins(intake, outcome, asked)
    for index in twins:
        outcome.statuses[index] = DUPLICATE
    chosen = [index for index, status in enumerate(outcome.statuses) if status == OK]
    for index in chosen[room:]:
        outcome.refuse(index, full)
    chosen = chosen[:room]
    stored = Outcome([], stored_at_ms=outcome.stored_at_ms)
    staged = store.stage_sent(intake if len(chosen) == intake.count else intake.only(chosen), stored).tolist()
    outcome.take_places(chosen, stored)
    answer_twins(intake, outcome, twins)
    for index, first_index in twins.items():
        if outcome.statuses[first_index] not in (OK, DUPLICATE):
            outcome.refuse(index, outcome.error_of(first_index))
    return outcome, _positions(store, outcome, chosen, staged)


def _positions(store: Store, outcome: Outcome, chosen: Sequence[int], staged: Sequence[int]) -> list[int]:
    """Where the half records lie: those that were staged now, and those that were there."""
    positions = [_UNKNOWN] * len(outcome.statuses)
    for index, position in zip(chosen, staged, strict=True):
        positions[index] = position
    known = [index for index, status in enumerate(outcome.statuses) if status == DUPLICATE]
    places = store.halves.staged_positions([outcome.queue_offsets[index] for index in known])
    for index, position in zip(known, places, strict=True):
        positions[index] = position
    return positions


def _half_offset(first: FirstCopy) -> int | None:
    """Of the half message that a first copy is, or commits; None: it has none."""
    return first.queue_offset if first.topic == _TOPIC else half_of(first.properties)


def end(store: Store, ends: Sequence[Decided], ended: Callable[[Sequence[int]], None]) -> dict[int, Placed | str]:
    """Stages ends of half messages, each of which is there once. Returns by index of `ends` where the record of a
    commit or give-up lies, or why it can't be stored.

    Args:
        ended: called with the offsets of those that are staged, once their ends are durable.
    """
    placed, positions = _stage_records(store, ends)
    marks: dict[int, End] = {}
    for code in sorted({one.code for one in ends}):
        offsets = sorted(
            one.offset for index, one in enumerate(ends) if one.code == code and type(placed.get(index)) is not str
        )
        at = 0
        for body in halves.op_bodies(offsets):
            op_position = store.stage_own(halves.op_record(body, code, store.clock.now_ms()))
            stop = at + body.count(b",")
            marks |= {offset: End(code, positions.get(offset, op_position)) for offset in offsets[at:stop]}
            at = stop
    if marks:
        store.halves.stage(marks)
        store.staged.marks.append(partial(store.halves.publish, marks))
        store.staged.settles.append(lambda durable: ended(sorted(marks)) if durable else store.halves.undo())
    return placed


def _stage_records(store: Store, ends: Sequence[Decided]) -> tuple[dict[int, Placed | str], dict[int, int]]:
    """By index what `end` returns, and by half offset where the records lie."""
    owners = [index for index, one in enumerate(ends) if one.record]
    if not owners:
        return {}, {}
    intake = parse(b"".join([ends[index].record for index in owners]))
    faults = ended_faults(intake, store.log.record_bytes_max)
    placed: dict[int, Placed | str] = {owners[index]: fault for index, fault in faults.items()}
    if faults:
        chosen = [index for index in range(intake.count) if index not in faults]
        owners, intake = [owners[index] for index in chosen], intake.only(chosen)
    stored = Outcome([], stored_at_ms=store.clock.now_ms())
    positions = store.stage_sent(intake, stored).tolist()
    past = set(stored.past)
    places = zip(intake.key_of.tolist(), stored.queue_offsets, stored.due_at_ms, strict=True)
    for row, (key, offset, due_at_ms) in enumerate(places):
        topic, queue = intake.keys[key]
        placed[owners[row]] = Placed(topic, queue, offset, due_at_ms, row in past)
    return placed, {ends[owner].offset: position for owner, position in zip(owners, positions, strict=True)}
