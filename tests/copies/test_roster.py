"""The members of a group through changes."""

import json
from dataclasses import asdict

from duetime_store.copies.roster import Newcomer, Roster

FOUNDED = Roster.founding({1: "a:1", 2: "b:1", 3: "c:1"})


def core(*voters: int, learners: tuple[int, ...] = (), outgoing: tuple[int, ...] = ()) -> dict[str, object]:
    return {
        "voters": list(voters),
        "learners": list(learners),
        "voters_outgoing": list(outgoing),
        "learners_next": [],
        "auto_leave": bool(outgoing),
    }


def test_replacement_takes_its_address_and_leaves_no_trace_of_the_former_but_its_number() -> None:
    added = FOUNDED.after(core(1, 2, 3, learners=(5,)), Newcomer.decode(Newcomer(5, "d:1", 2).encode()))  # type: ignore[arg-type]
    assert (added.addresses[5], added.replaces, added.highest) == ("d:1", {5: 2}, 5)
    joint = added.after(core(1, 3, 5, outgoing=(1, 2, 3)), None)  # type: ignore[arg-type]
    assert joint.voters_outgoing
    assert not joint.is_removed(2)
    assert joint.replaces == {5: 2}
    left = joint.after(core(1, 3, 5), Newcomer.decode(b""))  # type: ignore[arg-type]
    assert left.replaces == {}
    assert left.addresses == {1: "a:1", 3: "c:1", 5: "d:1"}
    # Number 4 was never a member's, and is below one that was: it is not given either.
    assert [number for number in range(1, 8) if left.is_removed(number)] == [2, 4]


def test_number_that_a_process_asked_for_has_its_life_until_it_leaves() -> None:
    added = FOUNDED.after(core(1, 2, 3, learners=(5,)), Newcomer.decode(Newcomer(5, "b:1", 2, 2**63).encode()))  # type: ignore[arg-type]
    assert added.lives == {5: 2**63}
    assert added.after(core(1, 2, 3), None).lives == {}  # type: ignore[arg-type]


def test_roster_of_an_earlier_version_has_no_lives() -> None:
    found = {name: value for name, value in asdict(FOUNDED).items() if name != "lives"}
    assert Roster.of_json(json.loads(json.dumps(found))) == FOUNDED


def test_roster_survives_json() -> None:
    added = FOUNDED.after(core(1, 2, 3, learners=(5,)), Newcomer(5, "d:1", 2, 7))  # type: ignore[arg-type]
    for roster in (FOUNDED, added, Roster((1,))):
        assert Roster.of_json(json.loads(json.dumps(asdict(roster)))) == roster
