"""`duetime_raft.Node` alone: three nodes in a dict, and their messages."""

import importlib.metadata
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.group import Disk, Group, Member, members, raft


def kinds(work: dict[str, Any]) -> tuple[int, int]:
    return len(work["messages"]), len(work["messages_flushed"])


def test_proposal_commits_at_all_members_in_one_order() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    places = [group[1].node.propose(data) for data in (b"a", b"b")]
    assert places == [(2, 1), (3, 1)]
    group.settle()
    expected = [(1, 1, 0, b""), (2, 1, 0, b"a"), (3, 1, 0, b"b")]
    assert [member.committed for member in group.members.values()] == [expected] * 3


def test_first_member_to_lose_patience_leads() -> None:
    group = Group(1, 2, 3)
    for _ in range(9):
        for member in group.members.values():
            member.node.tick()
    group.settle()
    assert {member.node.status()["leader"] for member in group.members.values()} == {0}
    for member in group.members.values():
        member.node.tick()
    group.settle()
    assert {member.node.status()["leader"] for member in group.members.values()} == {1}


def test_leader_sends_an_entry_before_its_own_flush() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    group[1].node.propose(b"a")
    group[1].flushing = False
    group[1].work()
    assert {to for to, _ in group[1].sent} == {2, 3}
    assert [raft.entries(message) for _, message in group[1].sent] == [[(2, 1, 0, b"a")]] * 2
    # Both followers are a majority without the leader's disk, but it publishes nothing that it could lose itself.
    group.settle()
    assert group[1].node.status()["commit"] == 2
    assert group[2].committed[-1][0] == 2
    assert group[1].committed[-1][0] == 1
    group[1].flush()
    group.settle()
    assert group[1].committed[-1] == (2, 1, 0, b"a")


def test_follower_acknowledges_only_after_its_flush() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    group[1].node.propose(b"a")
    group[1].work()
    (message,) = [message for to, message in group[1].sent if to == 2]
    group[2].flushing = False
    group[2].node.step(message)
    group[2].work()
    assert group[2].sent == []
    group[2].flush()
    assert [to for to, _ in group[2].sent] == [1]


def test_vote_leaves_only_after_its_flush() -> None:
    group = Group(1, 2, 3)
    group[2].flushing = False
    group[1].node.campaign()
    for turn in range(2):  # pre-vote and vote
        group[1].work()
        requests, group[1].sent = group[1].sent, []
        group[2].node.step(next(message for to, message in requests if to == 2))
        group[2].work()
        assert group[2].sent == []
        assert [work["flush"] for work in group[2].unflushed] == [turn == 1]
        group[2].flush()
        ((to, answer),) = group[2].sent
        group[2].sent = []
        group[to].node.step(answer)
    assert group[2].disk.hard == (1, 1, 0)
    assert group[1].node.status()["role"] == "leader"


def test_sole_voter_sends_nothing_before_its_vote_is_flushed() -> None:
    """It leads in the step of its own vote: a crash would let it lead the same term twice."""
    disk = Disk(members=members(1, learners=[2]))
    node = disk.start(1)
    node.campaign()
    work = node.ready()
    assert work["hard"] == (1, 1, 0)
    assert kinds(work)[0] == 0
    assert kinds(work)[1] > 0
    node.propose(b"a")
    second = node.ready()
    assert second["entries"] == [(2, 1, 0, b"a")]
    assert kinds(second)[0] == 0
    node.persisted(second["number"])
    node.propose(b"b")
    assert kinds(node.ready())[1] == 0


def test_several_works_share_a_flush() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    group[1].flushing = False
    for data in (b"a", b"b", b"c"):
        group[1].node.propose(data)
        group[1].work()
    group.settle(cut=[3])
    assert len(group[1].unflushed) >= 3
    group[1].flush()
    group.settle(cut=[3])
    assert [data for *_, data in group[1].committed] == [b"", b"a", b"b", b"c"]


def test_restart_from_descriptors_keeps_votes_and_entries() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    group[1].node.propose(b"a")
    group.settle()
    for member in group.members.values():
        member.restart()
    status = group[2].node.status()
    assert (status["term"], status["vote"], status["last"], status["applied"]) == (1, 1, 2, 2)
    group.elect(2)
    group.settle()
    assert group[3].committed == [(1, 1, 0, b""), (2, 1, 0, b"a"), (3, 2, 0, b"")]


def test_new_leader_overrules_a_tail_that_no_majority_has() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    group[1].node.propose(b"lost")
    group.settle(cut=[1])
    for member in group.members.values():
        member.restart()
    group.elect(2, cut=[1])
    group[2].node.propose(b"kept")
    group.settle(cut=[1])
    assert group[1].disk.entries[-1] == (2, 1, 0, b"lost")
    for _ in range(3):
        group[2].node.tick()
        group.settle()
    assert group[1].disk.entries == group[2].disk.entries
    assert [data for *_, data in group[1].committed] == [b"", b"", b"kept"]


def test_leader_without_a_majority_steps_down() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    for _ in range(20):
        group[1].node.tick()
        group.settle(cut=[1])
    assert group[1].node.status()["role"] == "follower"
    with pytest.raises(raft.NotLeader, match="knows no leader"):
        group[1].node.propose(b"a")


def test_pre_votes_do_not_raise_terms() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    for _ in range(50):
        group[3].node.tick()
        group.settle(cut=[3])
    assert group[3].node.status()["term"] == 1
    group[1].node.tick()
    group.settle()
    assert group[1].node.status()["role"] == "leader"


def test_transfer_hands_leadership_over() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    group[1].node.transfer(3)
    with pytest.raises(raft.ProposalDropped):
        group[1].node.propose(b"a")
    group.settle()
    assert [member.node.status()["leader"] for member in group.members.values()] == [3, 3, 3]
    with pytest.raises(raft.NotLeader, match="node 3 leads"):
        group[1].node.transfer(2)


def test_read_index_waits_for_a_majority() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    group[1].node.propose(b"a")
    group.settle()
    group[1].node.read_index(b"r1")
    group.settle(cut=[1])
    assert group[1].reads == []
    group[1].node.read_index(b"r2")
    group[2].node.read_index(b"r3")
    group.settle()
    assert sorted(group[1].reads) == [(b"r1", 2), (b"r2", 2)]
    assert group[2].reads == [(b"r3", 2)]


def test_compaction_forgets_descriptors_and_sends_a_snapshot_behind_them() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    for number in range(5):
        group[1].node.propose(b"%d" % number)
    group.settle(cut=[3])
    with pytest.raises(ValueError, match="above the last applied"):
        group[1].node.compact(7)
    group[1].node.compact(6)
    assert group[1].node.status()["first"] == 7
    # The snapshot stands for the directory; the test has none to send.
    group[1].node.tick()
    group.settle()
    group[1].node.tick()
    group.settle()
    assert group[3].disk.base == (6, 1)
    assert group[3].disk.members == members(1, 2, 3)
    group[1].node.snapshot_sent(3, arrived=True)
    group[1].node.propose(b"tail")
    group.settle()
    assert group[3].disk.entries == [(7, 1, 0, b"tail")]
    assert group[1].node.status()["peers"][3][0] == 7


def test_learner_gets_entries_and_becomes_a_voter() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    group[1].node.propose_conf([(4, "learner")])
    group.members[4] = Member(4, Disk(members=members(1, 2, 3, learners=[4])), 30)
    group.settle()
    assert group[2].disk.members == members(1, 2, 3, learners=[4])
    assert [index for index, *_ in group[4].disk.entries] == [1, 2]
    # A replacement is a joint change of two steps, the second by the core itself.
    group[1].node.propose_conf([(4, "voter"), (3, "removed")])
    group[1].node.propose(b"a")
    group.settle()
    assert group[1].disk.members["voters_outgoing"] == []
    assert sorted(group[1].disk.members["voters"]) == [1, 2, 4]
    group.settle(cut=[2, 3])
    group[1].node.propose(b"b")
    group.settle(cut=[2, 3])
    assert group[4].node.status()["persisted"] == group[1].node.status()["commit"]


def test_second_change_of_members_waits_for_the_first() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    group[1].node.propose_conf([(4, "learner")])
    with pytest.raises(raft.ProposalDropped, match="another change"):
        group[1].node.propose_conf([(5, "learner")])
    group.settle()
    assert [(kind, bool(data)) for _, _, kind, data in group[2].committed] == [(0, False), (1, True), (0, False)]


def test_bad_input_is_rejected_and_leaves_the_node_usable() -> None:
    group = Group(1, 2, 3)
    group.elect(1)
    node = group[1].node
    with pytest.raises(raft.MessageRejected, match="not a message of Raft"):
        node.step(b"\xff\xff\xff")
    node.propose(b"a")
    group[1].work()
    to_two = next(message for to, message in group[1].sent if to == 2)
    with pytest.raises(raft.MessageRejected, match="from 1 to 2 at node 3"):
        group[3].node.step(to_two)
    with pytest.raises(ValueError, match="empty data"):
        node.propose(b"")
    with pytest.raises(ValueError, match="not voter, learner or removed"):
        node.propose_conf([(4, "king")])
    with pytest.raises(ValueError, match="is not within"):
        node.applied(99)
    with pytest.raises(ValueError, match="above the last number"):
        node.persisted(1_000)
    group.settle()
    assert group[1].committed[-1] == (2, 1, 0, b"a")


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ({"entries": [(2, 1, 0, b"a")], "term": 1}, "does not follow 0/0"),
        ({"entries": [(1, 2, 0, b"a"), (2, 1, 0, b"b")], "term": 2}, "does not follow 1/2"),
        ({"entries": [(1, 2, 0, b"a")], "term": 1}, "must hold"),
        ({"commit": 1}, "must hold"),
        ({"applied": 1}, "must hold"),
        ({"timeout_ticks": (5, 4)}, "election tick"),
    ],
)
def test_restart_rejects_a_state_that_contradicts_itself(state: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        raft.Node(1, members(1, 2, 3), **state)


def test_panic_of_the_core_fails_the_node_and_not_the_process() -> None:
    """A follower that lost flushed entries hears of a commit above its log: the core panics, as it should."""
    group = Group(1, 2, 3)
    group.elect(1)
    group[1].node.propose(b"a")
    group.settle()
    group[2].disk.entries.clear()
    group[2].disk.applied = 0
    group[2].restart()
    group[1].node.tick()
    group[1].work()
    heartbeat = next(message for to, message in group[1].sent if to == 2)
    with pytest.raises(raft.CoreFailed, match="to_commit 2 is out of range"):
        group[2].node.step(heartbeat)
    with pytest.raises(raft.CoreFailed, match="to_commit 2 is out of range"):
        group[2].node.status()


@given(st.integers(0, 2**32), st.integers(0, 30), st.integers(0, 30), st.integers(0, 40))
def test_any_schedule_of_messages_keeps_one_log(seed: int, loss: int, double: int, crash: int) -> None:
    """Loss, duplication, reordering and crashes: committed entries are equal everywhere, and never change."""
    chance = random.Random(seed)
    group = Group(1, 2, 3)
    log: dict[int, tuple[int, int, int, bytes]] = {}
    for step in range(600):
        member = group[chance.choice((1, 2, 3))]
        if chance.random() < 0.3:
            member.node.tick()
        if chance.random() < 0.2 and member.node.status()["role"] == "leader":
            member.node.propose(b"%d" % step)
        member.flushing = chance.random() < 0.7
        member.work()
        if member.flushing:
            member.flush()
        if chance.randrange(1_000) < crash:
            member.restart()
        group.mail += member.sent
        member.sent = []
        if group.mail:
            to, message = group.mail.pop(chance.randrange(len(group.mail)))
            if chance.randrange(100) < double:
                group.mail.append((to, message))
            if chance.randrange(100) >= loss:
                group[to].node.step(message)
        for each in group.members.values():
            for entry in each.committed:
                assert log.setdefault(entry[0], entry) == entry
    for _ in range(60):
        for each in group.members.values():
            each.flushing = True
            each.flush()
            each.node.tick()
        group.settle()
    assert [each.committed for each in group.members.values()] == [group[1].committed] * 3
    assert len(group[1].committed) >= max(log, default=0)
    assert group[1].committed


def test_wheel_lists_its_crates_and_their_licences() -> None:
    distribution = importlib.metadata.distribution("duetime-raft")
    (path,) = [path for path in distribution.files or () if path.name.endswith(".cyclonedx.json")]
    components = json.loads(path.read_text())["components"]
    assert {"raft", "pyo3", "prost"} <= {each["name"] for each in components}
    free = ("MIT", "Apache-2.0", "BSD-2-Clause")
    texts = {licence["expression"] for each in components for licence in each["licenses"]}
    assert [text for text in texts if not any(name in text for name in free)] == []
