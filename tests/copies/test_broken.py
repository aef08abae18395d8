"""Each rule of a copy, broken once on purpose: the simulator finds it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from duetime_format.marks import EntryMark
from duetime_store.copies import scanning
from duetime_store.copies.copy import Copy
from duetime_store.copies.entries import Entry
from duetime_store.copies.reads import LeaderMoment, LeaderRounds
from duetime_store.copies.roster import Roster
from duetime_store.copies.writes import Write, Writer
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.segment import Segment

from tests.copies.lives import live
from tests.copies.simulator import Violation

LIVES_MAX = 400


def no_flush_of_entries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "flush", lambda segment: None)


def acknowledged_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    def next_write(copy: Copy) -> Write | None:
        for write in copy._writes:
            copy.sendings += write.sendings
            write.sendings = []
        return copy._writes[0] if copy._writes else None

    patch.setattr(Copy, "next_write", property(next_write))


def votes_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writer, "vote", lambda *_: None)


def previous_term_unchecked(patch: pytest.MonkeyPatch) -> None:
    """Zeroing protects from the same fault, so that is off too."""
    patch.setattr(CommitLog, "take_back", lambda log, position: setattr(log, "end", position))

    def continues(mark: EntryMark, crc: int, group: int, last: Entry) -> bool:
        found, expected = (mark.index, mark.position, mark.crc), (last.index + 1, last.end, crc)
        return found == expected and mark.term >= last.term

    patch.setattr(scanning, "_continues", continues)


def crc_of_marks_unchecked(patch: pytest.MonkeyPatch) -> None:
    checked = scanning._continues
    patch.setattr(scanning, "_continues", lambda mark, crc, *rest: checked(mark, mark.crc, *rest))


def old_end_after_an_empty_entry(patch: pytest.MonkeyPatch) -> None:
    write_entry: Callable[..., None] = Copy._write_entry

    def broken(copy: Copy, index: int, term: int, kind: int, data: bytes) -> None:
        end = copy.last.end if index <= copy.last.index and not data else 0
        write_entry(copy, index, term, kind, data)
        copy.entries[-1] = replace(copy.last, end=max(end, copy.last.end))

    patch.setattr(Copy, "_write_entry", broken)


def damage_taken_for_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scanning, "_damage_behind", lambda *_: None)


def members_of_the_base_not_written(patch: pytest.MonkeyPatch) -> None:
    def broken(writer: Writer, base: Entry, _: Roster) -> None:
        writer._file.write_both(writer._file.state.after(base))

    patch.setattr(Writer, "begin_after", broken)


def reads_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Copy, "is_proven", lambda *_: True)


def reads_that_join_the_round_under_way(patch: pytest.MonkeyPatch) -> None:
    ask = LeaderRounds.ask

    def broken(rounds: LeaderRounds) -> int:
        is_under_way = rounds.done < rounds._begun and rounds._node.status()["term"] == rounds._term
        return rounds._begun if is_under_way else ask(rounds)

    patch.setattr(LeaderRounds, "ask", broken)


def reads_before_an_entry_of_the_term(patch: pytest.MonkeyPatch) -> None:
    """A new leader has all answered entries, and may not know that they are committed."""

    def moment(copy: Copy) -> LeaderMoment | None:
        status = copy.node.status()
        return LeaderMoment(status["term"], copy.last.index) if status["role"] == "leader" else None

    patch.setattr(Copy, "moment", property(moment))


def segments_deleted_before_the_base_is_written(patch: pytest.MonkeyPatch) -> None:
    shorten = Copy.shorten

    def broken(copy: Copy, position: int) -> None:
        shorten(copy, position)
        copy.begin = position

    patch.setattr(Copy, "shorten", broken)


# The rules, each with a seed from which on few lives are needed.
RULES: list[tuple[Callable[[pytest.MonkeyPatch], None], int]] = [
    (no_flush_of_entries, 0),
    (acknowledged_before_the_flush, 0),
    (votes_not_written, 11),
    (previous_term_unchecked, 65),
    (crc_of_marks_unchecked, 0),
    (old_end_after_an_empty_entry, 0),
    (damage_taken_for_the_end, 0),
    (members_of_the_base_not_written, 0),
    (reads_without_a_proof, 0),
    (reads_that_join_the_round_under_way, 0),
    (reads_before_an_entry_of_the_term, 0),
    (segments_deleted_before_the_base_is_written, 30),
]


@pytest.mark.parametrize(("break_rule", "first"), RULES, ids=[rule.__name__ for rule, _ in RULES])
def test_simulator_finds_a_broken_rule(
    break_rule: Callable[[pytest.MonkeyPatch], None], first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    for seed in range(first, first + LIVES_MAX):
        try:
            live(seed, tmp_path)
        except Violation as error:
            print(f"{error}")
            return
    pytest.fail(f"{LIVES_MAX} lives found nothing")
