"""One copy, step by step: the order of writes and messages, and restarts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from duetime_core.errors import StartupError
from duetime_format.marks import GROUP, MEMBERS, OWN
from duetime_format.record import Record, encode
from duetime_store.copies.roster import Newcomer, Roster
from duetime_store.copies.statefile import RaftState, StateFile
from duetime_store.files.disk import Disk
from duetime_store.log.commitlog import CommitLog

from tests.twins import native

raft = native("duetime_raft")
from duetime_store.copies.copy import ENTRIES_MAX, BehindCopy, Copy  # noqa: E402 - needs the wheel


class Host:
    """A directory, and the copy that is open on it."""

    def __init__(self, root: Path, number: int, *voters: int, entries_max: int = ENTRIES_MAX) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.state, self.entries_max = root, RaftState(7, number, Roster(voters)), entries_max
        self.open()

    def open(self) -> None:
        self.log = CommitLog(Disk(), self.root / "commitlog", 64 * 1024)
        self.file = StateFile(Disk(), self.root, self.state)
        patience = 7 + 3 * self.state.id
        ticks = patience, patience + 1
        self.copy = Copy(self.log, self.file, timeout_ticks=ticks, entries_max=self.entries_max)

    def close(self) -> None:
        self.log.close()
        self.file.close()

    def write_all(self) -> None:
        while (write := self.copy.next_write) is not None:
            if write.run is not None:
                write.run()
            self.copy.wrote(write)

    def lead(self) -> None:
        for _ in range(11):
            self.copy.tick()
            self.write_all()
        assert self.copy.node.status()["role"] == "leader"

    def propose(self, body: bytes) -> None:
        position = self.copy.last.end
        data = encode(Record("orders", 0, body, b"", position=position))
        self.copy.propose([(position, [data])], 9)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[int, Host]]:
    hosts = {number: Host(tmp_path / str(number), number, 1, 2, 3) for number in (1, 2, 3)}
    yield hosts
    for host in hosts.values():
        host.close()


def exchange(hosts: dict[int, Host], *silent: int) -> None:
    """Runs all writes and delivers all messages, except those of and to silent members."""
    while True:
        for host in hosts.values():
            host.write_all()
        sendings = [(number, each) for number, host in hosts.items() for each in host.copy.sendings]
        for host in hosts.values():
            host.copy.sendings = []
        if not sendings:
            return
        for sender, each in sendings:
            if sender not in silent and each.to not in silent and each.to in hosts:
                receiver = hosts[each.to].copy
                # The core knows no removed member.
                assert receiver.receive(each.message, each.payload) or receiver.roster.is_removed(sender)


def elect(hosts: dict[int, Host], number: int, *silent: int) -> None:
    """Lets time pass until the most impatient member that is heard leads."""
    while not any(host.copy.node.status()["role"] == "leader" for key, host in hosts.items() if key not in silent):
        for key, host in hosts.items():
            if key not in silent:
                host.copy.tick()
        exchange(hosts, *silent)
    assert hosts[number].copy.node.status()["role"] == "leader"


def test_vote_is_on_the_disk_before_its_answer_leaves(hosts: dict[int, Host]) -> None:
    one, two = hosts[1], hosts[2]
    one.copy.node.campaign()
    for _ in range(2):  # pre-vote and vote
        one.copy.tick()
        one.write_all()
        requests, one.copy.sendings = one.copy.sendings, []
        two.copy.receive(next(each.message for each in requests if each.to == 2), b"")
        assert two.copy.sendings == []
        two.write_all()
        (answer,) = two.copy.sendings
        two.copy.sendings = []
        one.copy.receive(answer.message, b"")
    written = StateFile(Disk(), two.root)
    assert (written.state.term, written.state.vote) == (1, 1)
    written.close()


def test_entry_is_sent_before_the_leaders_flush_and_acknowledged_after_the_followers(hosts: dict[int, Host]) -> None:
    elect(hosts, 1)
    one, two = hosts[1], hosts[2]
    one.propose(b"a")
    (sent,) = [each for each in one.copy.sendings if each.to == 2]
    assert one.copy.flushed.index == 1
    assert two.copy.receive(sent.message, sent.payload)
    assert (two.copy.last.index, two.copy.flushed.index, two.copy.sendings) == (2, 1, [])
    two.write_all()
    assert (two.copy.flushed.index, [each.to for each in two.copy.sendings]) == (2, [1])
    assert two.log.read(two.copy.last.position, 8) == sent.payload[:8]


@pytest.mark.parametrize("change", [lambda payload: payload[:-1], lambda payload: b"x" + payload[1:], lambda _: b""])
def test_message_with_other_bytes_is_refused(hosts: dict[int, Host], change: Any) -> None:
    elect(hosts, 1)
    hosts[1].propose(b"a")
    (sent,) = [each for each in hosts[1].copy.sendings if each.to == 2]
    assert not hosts[2].copy.receive(sent.message, change(sent.payload))
    assert not hosts[2].copy.receive(b"\xff\xff", b"")
    assert hosts[2].copy.last.index == 1
    assert hosts[2].copy.receive(sent.message, sent.payload)


def test_overruled_tail_is_zeroed_and_the_log_ends_after_the_empty_entry(hosts: dict[int, Host]) -> None:
    elect(hosts, 1)
    for body in (b"lost " * 100, b"lost too"):
        hosts[1].propose(body)
    exchange(hosts, 1)
    tail = hosts[1].copy.last.end
    elect(hosts, 2, 1)
    assert hosts[1].copy.flushed.index == 3
    for _ in range(3):
        hosts[2].copy.tick()
        exchange(hosts)
    last = hosts[1].copy.last
    assert (last.index, last.term, last.kind, hosts[1].log.end) == (2, 2, OWN, last.end)
    assert hosts[1].log.read(last.end, tail - last.end).strip(b"\0") == b""
    assert [host.copy.entries for host in hosts.values()] == [hosts[2].copy.entries] * 3


def test_followers_refuse_proposals(hosts: dict[int, Host]) -> None:
    elect(hosts, 1)
    with pytest.raises(raft.NotLeader, match="node 1 leads"):
        hosts[2].propose(b"a")
    assert hosts[2].copy.last.index == 1
    hosts[1].copy.transfer(2)
    with pytest.raises(raft.ProposalDropped):
        hosts[1].propose(b"a")
    exchange(hosts)
    hosts[2].propose(b"b")
    exchange(hosts)
    assert [entry.kind for entry in hosts[3].copy.committed] == [OWN, OWN, GROUP]


def test_change_of_members_is_a_mark_and_survives_a_restart(tmp_path: Path) -> None:
    host = Host(tmp_path / "one", 1, 1)
    host.lead()
    host.copy.change([(2, "learner")])
    host.write_all()
    assert [entry.kind for entry in host.copy.committed] == [OWN, MEMBERS]
    entries = host.copy.entries
    host.close()
    host.open()
    assert host.copy.entries == entries
    host.lead()
    assert host.copy.node.status()["members"]["learners"] == [2]
    host.close()


def test_committed_change_of_members_is_in_the_state_file(hosts: dict[int, Host]) -> None:
    """A restart that forgot it would count votes by the members before it."""
    elect(hosts, 1)
    hosts[1].copy.change([(4, "learner")], Newcomer(4, "10.0.0.4:9821"))
    exchange(hosts)
    for host in hosts.values():
        assert host.copy.roster.learners == (4,)
        assert host.copy.roster.addresses[4] == "10.0.0.4:9821"
        assert host.file.state.commit == 2
        host.close()
        host.open()
        assert host.copy.node.status()["members"]["learners"] == [4]


def test_nobody_hears_of_a_removal_before_the_leader_has_it_on_its_disk(tmp_path: Path) -> None:
    """Otherwise the removed member leaves, a power cut makes the leader forget, and one of two elects nobody."""
    hosts = {number: Host(tmp_path / str(number), number, 1, 2) for number in (1, 2)}
    elect(hosts, 1)
    leader = hosts[1].copy
    assert leader.change([(2, "removed")])
    hosts[1].write_all()
    (append,) = leader.sendings
    leader.sendings = []
    hosts[2].copy.receive(append.message, append.payload)
    hosts[2].write_all()
    (acknowledged,) = hosts[2].copy.sendings
    leader.receive(acknowledged.message, b"")
    assert leader.node.status()["commit"] == 2
    for _ in range(3):
        leader.tick()
    assert (leader.sendings, leader.roster.voters, hosts[1].file.state.commit) == ([], (1, 2), 0)
    hosts[1].write_all()
    assert (leader.roster.voters, hosts[1].file.state.commit) == ((1,), 2)
    hosts[1].close()
    hosts[1].open()
    hosts[1].lead()
    for host in hosts.values():
        host.close()


def test_learner_gets_a_vote_once_it_has_the_log(hosts: dict[int, Host], tmp_path: Path) -> None:
    elect(hosts, 1)
    leader = hosts[1].copy
    assert leader.change([(4, "learner")], Newcomer(4, "10.0.0.4:9821", replaces=2))
    exchange(hosts)
    assert leader.next_change == []
    hosts[4] = Host(tmp_path / "4", 4, 1, 2, 3)
    leader.tick()
    exchange(hosts)
    assert leader.next_change == [(4, "voter")]
    assert leader.change(leader.next_change)
    assert not leader.can_change
    exchange(hosts)
    assert leader.next_change == [(2, "removed")]


def test_leader_changes_no_members_before_it_knows_the_changes_of_the_last_one(hosts: dict[int, Host]) -> None:
    """It could give the same number to another copy."""
    elect(hosts, 1)
    assert hosts[1].copy.change([(4, "learner")], Newcomer(4, "10.0.0.4:9821"))
    # The others have the change, and the leader does not hear of it.
    deliver(hosts, 1)
    deliver(hosts)
    two = hosts[2].copy
    while two.node.status()["role"] != "leader":
        for number in (2, 3):
            hosts[number].copy.tick()
            deliver(hosts, number)
    assert (two.roster.learners, two.can_change) == ((), False)
    exchange(hosts, 1)
    assert (two.roster.learners, two.can_change) == ((4,), True)


def deliver(hosts: dict[int, Host], *senders: int) -> None:
    """Runs all writes, and delivers one round of messages: those of the senders."""
    for host in hosts.values():
        host.write_all()
    sendings = [(number, each) for number, host in hosts.items() for each in host.copy.sendings]
    for host in hosts.values():
        host.copy.sendings = []
    for number, each in sendings:
        if number in senders and each.to != 1:
            hosts[each.to].copy.receive(each.message, each.payload)


def test_joint_change_replaces_a_voter(hosts: dict[int, Host], tmp_path: Path) -> None:
    elect(hosts, 1)
    hosts[1].copy.change([(2, "removed"), (4, "voter")])
    hosts[4] = Host(tmp_path / "4", 4, 1, 2, 3)
    exchange(hosts)
    # The core sends the end of a joint change with the next heartbeat.
    hosts[1].copy.tick()
    exchange(hosts)
    rosters = [hosts[number].copy.roster for number in (1, 3, 4)]
    assert [(each.voters, bool(each.voters_outgoing), each.is_removed(2)) for each in rosters] == [
        ((1, 3, 4), False, True)
    ] * 3


def test_old_entries_are_forgotten_and_a_start_reads_the_others(tmp_path: Path) -> None:
    host = Host(tmp_path / "one", 1, 1, entries_max=8)
    host.lead()
    for number in range(20):
        host.propose(b"%d" % number)
        host.write_all()
        host.copy.tick()
        assert len(host.copy.entries) <= 9
    host.write_all()
    entries = host.copy.entries
    status = host.copy.node.status()
    assert (entries[-1].index, status["first"], status["applied"]) == (21, entries[0].index + 1, 21)
    # 13 entries too many: five steps of 3, each in both slots, after the first state and a vote.
    assert (host.file.state.base.index, host.file.state.serial) == (15, 12)
    assert host.file.state.base.end == entries[0].end
    host.close()
    host.open()
    assert host.copy.entries[1:] == entries[1:]
    assert host.copy.committed == []
    host.lead()
    assert [entry.index for entry in host.copy.committed] == [*range(16, 23)]
    host.close()


def test_entries_that_a_heard_member_lacks_are_kept_within_the_limit(hosts: dict[int, Host]) -> None:
    elect(hosts, 1)
    leader, bases = hosts[1].copy, []
    leader._entries_max = 12
    for number in range(19):
        hosts[1].propose(b"%d" % number)
        exchange(hosts, *[3] if number >= 4 else [])
        if number >= 13:
            leader.tick()
            bases.append(leader.entries[0].index)
    match, _, is_heard = leader.node.status()["peers"][3]
    assert (leader.last.index, match, is_heard) == (20, 5, True)
    # The base would be 6 at entry 15, and 9 at entry 18, which is 12 entries behind 6.
    assert bases == [5, 5, 5, 9, 9, 9]


def test_member_that_lacks_forgotten_entries_has_to_take_a_directory(hosts: dict[int, Host]) -> None:
    elect(hosts, 1)
    leader = hosts[1].copy
    for number in range(10):
        hosts[1].propose(b"%d" % number)
        exchange(hosts, 3)
    leader.compact(8)

    def rounds() -> None:
        for _ in range(3):
            leader.tick()
            exchange(hosts)

    with pytest.raises(BehindCopy) as raised:
        rounds()
    assert raised.value.index == 11


def test_position_before_which_no_start_needs_the_log_is_durable(hosts: dict[int, Host]) -> None:
    elect(hosts, 1)
    host = hosts[2]
    for number in range(4):
        hosts[1].propose(b"%d" % number)
        exchange(hosts)
    hosts[1].copy.tick()
    exchange(hosts)
    entry = host.copy.entries[3]
    host.copy.shorten(entry.position + 1)
    assert (host.copy.entries[0], host.copy.begin, host.file.state.position) == (entry, 0, 0)
    host.write_all()
    assert (host.copy.begin, host.file.state.position) == (entry.end, entry.end)
    host.copy.shorten(entry.end)
    host.write_all()
    assert host.copy.begin == entry.end
    host.close()
    host.open()
    assert (host.copy.begin, host.copy.entries[1].index) == (entry.end, entry.index + 1)


def test_base_has_the_members_as_of_it(hosts: dict[int, Host]) -> None:
    elect(hosts, 1)
    host = hosts[1]
    host.propose(b"a")
    assert host.copy.change([(4, "learner")], Newcomer(4, "10.0.0.4:9821"))
    host.propose(b"b")
    exchange(hosts)
    assert [entry.kind for entry in host.copy.entries[1:]] == [OWN, GROUP, MEMBERS, GROUP]
    for base, learners in ((2, ()), (3, (4,))):
        host.copy.compact(base)
        host.write_all()
        state = host.file.state
        assert (state.base.index, state.roster.learners, state.commit) == (base, learners, 3)
        host.close()
        host.open()
        assert host.copy.roster.learners == (4,)


def test_lost_state_does_not_vote_twice_in_the_terms_of_the_log(hosts: dict[int, Host]) -> None:
    """The newer slot is damaged, and the log has an entry of its term: the copy counts as its own voter there."""
    elect(hosts, 1)
    host = hosts[3]
    assert (host.copy.flushed.term, host.file.state.vote) == (1, 1)
    host.close()
    with (host.root / "duetimeRaft").open("r+b") as file:
        file.seek((host.file.state.serial - 1) % 2 * 4_096 + 20)
        file.write(b"\xff")
    host.open()
    assert host.file.state.term == 0
    status = host.copy.node.status()
    assert (status["term"], status["vote"]) == (1, 3)


def test_directory_of_another_group_is_refused(tmp_path: Path) -> None:
    Host(tmp_path / "one", 1, 1).close()
    host = Host(tmp_path / "two", 1, 1)
    host.close()
    host.root, host.state = tmp_path / "one", RaftState(8, 1, Roster((1,)))
    with pytest.raises(StartupError, match="belongs to copy 1 of group 7"):
        host.open()


def test_reads_share_the_next_round_of_heartbeats(hosts: dict[int, Host]) -> None:
    elect(hosts, 1)
    one = hosts[1].copy
    moment = one.moment
    assert moment is not None
    first = one.ask()
    # The round has begun: calls that come now need the next one, and share it.
    assert (first, one.ask(), one.ask()) == (1, 2, 2)
    assert not one.is_proven(moment, first)
    exchange(hosts, 3)
    assert one.is_proven(moment, first)
    assert one.is_proven(moment, 2)
    assert not one.is_proven(moment, 3)
    assert not one.is_proven(moment)


def test_later_entry_proves_a_read_and_an_earlier_one_does_not(hosts: dict[int, Host]) -> None:
    elect(hosts, 1)
    one = hosts[1].copy
    hosts[1].propose(b"a")
    moment = one.moment
    assert moment is not None
    exchange(hosts)
    assert not one.is_proven(moment)
    hosts[1].propose(b"b")
    exchange(hosts)
    assert one.is_proven(moment)


def test_deposed_leader_proves_nothing(hosts: dict[int, Host]) -> None:
    elect(hosts, 1)
    one = hosts[1].copy
    moment = one.moment
    assert moment is not None
    asked = one.ask()
    exchange(hosts, 1)
    elect(hosts, 2, 1)
    assert not one.is_proven(moment, asked)
    exchange(hosts)
    hosts[2].copy.tick()
    exchange(hosts)
    assert one.moment is None
    assert not one.is_proven(moment, asked)
