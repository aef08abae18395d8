"""Answers operators' calls to a copy (proto/duetime/v1/members.proto)."""

from dataclasses import dataclass, field
from typing import Any

import structlog
from duetime.v1 import members_pb2, members_pb2_grpc
from duetime_core.errors import FailedPrecondition, NotFound, Unavailable

from duetime_store.copies.clock import GroupClock
from duetime_store.copies.copy import BEHIND_MAX
from duetime_store.copies.directories import Progress
from duetime_store.copies.links import Identity
from duetime_store.copies.member import Member
from duetime_store.copies.roster import Newcomer, Roster, check_address
from duetime_store.copies.statefile import RaftState

log = structlog.get_logger()

SERVICE_NAME = "duetime.v1.Members"
NUMBER_MAX = 65_535


@dataclass(slots=True)
class Phase:
    """The progress of a copy's start: its state on the disk, the directory that it takes, the running copy."""

    state: RaftState | None = None
    member: Member | None = None
    progress: Progress = field(default_factory=Progress)


class MembersService(members_pb2_grpc.MembersServicer):
    """See the module."""

    def __init__(self, own: Identity, phase: Phase, clock: GroupClock) -> None:
        self._own, self._phase, self._clock = own, phase, clock

    @property
    def _member(self) -> Member:
        """Raises: Unavailable: the copy is not open yet."""
        if self._phase.member is None:
            raise Unavailable(f"copy {self._own.number} is not open yet", reason="COPY_UNAVAILABLE")
        return self._phase.member

    async def DescribeMembers(  # noqa: N802  named as in the contract
        self, request: members_pb2.DescribeMembersRequest, context: Any
    ) -> members_pb2.DescribeMembersResponse:
        state, member, progress = self._phase.state, self._phase.member, self._phase.progress
        if member is None:
            return members_pb2.DescribeMembersResponse(
                group=self._own.group,
                number=self._own.number,
                term=state.term if state else 0,
                last_entry=state.index if state else 0,
                is_founded=state is not None,
                taken_bytes=progress.taken_bytes,
                bytes_to_take=progress.all_bytes,
            )
        status, roster, ahead = member.status, member.roster, self._clock.deviations()
        members = []
        for number in sorted(roster.numbers):
            match, _, is_heard = status["peers"].get(number, (0, "", False))
            is_own = number == self._own.number
            members.append(
                members_pb2.CopyMember(
                    number=number,
                    address=member.address_of(number),
                    role=_role(roster, number),
                    matched_entry=match,
                    heard=is_heard or is_own,
                    clock_ahead_ms=0 if is_own else round(ahead[number]) if number in ahead else None,
                    replaces=roster.replaces.get(number, 0),
                )
            )
        return members_pb2.DescribeMembersResponse(
            group=self._own.group,
            number=self._own.number,
            leader=status["leader"],
            term=status["term"],
            last_entry=status["last"],
            committed_entry=status["commit"],
            members=members,
            is_founded=True,
            highest_number=roster.highest,
        )

    async def TransferLeadership(  # noqa: N802  named as in the contract
        self, request: members_pb2.TransferLeadershipRequest, context: Any
    ) -> members_pb2.TransferLeadershipResponse:
        self._check(request.group)
        status, roster, to = self._member.status, self._member.roster, request.to
        _check_known(roster, to)
        if to != self._own.number:
            match, _, is_heard = status["peers"].get(to, (0, "", False))
            if to not in roster.voters:
                raise FailedPrecondition(f"copy {to} does not vote", reason="COPY_BEHIND")
            if not is_heard:
                raise FailedPrecondition(f"copy {to} does not answer the leader", reason="COPY_BEHIND")
            if status["last"] - match > BEHIND_MAX:
                text = f"copy {to} lacks {status['last'] - match} entries, more than {BEHIND_MAX}"
                raise FailedPrecondition(text, reason="COPY_BEHIND")
            log.info("leadership is handed over", copy=to)
            self._member.transfer(to)
        return members_pb2.TransferLeadershipResponse()

    async def AddMember(  # noqa: N802  named as in the contract
        self, request: members_pb2.AddMemberRequest, context: Any
    ) -> members_pb2.AddMemberResponse:
        self._check(request.group)
        member, roster, number = self._member, self._member.roster, request.number
        if number in roster.numbers and member.address_of(number) == request.address:
            _check_replaces(roster, number, request.replaces)
            return members_pb2.AddMemberResponse()
        check_address(request.address)
        if not roster.highest < number <= NUMBER_MAX:
            raise _refused(f"copy {number} cannot be added: the next number is {roster.highest + 1}")
        others = sorted(roster.numbers - {request.replaces})
        if taken := [each for each in others if member.address_of(each) == request.address]:
            raise _refused(f"copy {taken[0]} has the address {request.address}")
        if request.replaces:
            _check_known(roster, request.replaces)
            self._check_follows(request.replaces)
        newcomer = Newcomer(number, request.address, request.replaces)
        if not member.change([(number, "learner")], newcomer):
            raise Unavailable("another change of members is under way", reason="COPY_CHANGING")
        return members_pb2.AddMemberResponse()

    async def RemoveMember(  # noqa: N802  named as in the contract
        self, request: members_pb2.RemoveMemberRequest, context: Any
    ) -> members_pb2.RemoveMemberResponse:
        self._check(request.group)
        member, roster, number = self._member, self._member.roster, request.number
        if roster.is_removed(number):
            return members_pb2.RemoveMemberResponse()
        _check_known(roster, number)
        self._check_follows(number)
        rest = [each for each in roster.voters if each != number]
        answering = [each for each in rest if each == self._own.number or member.status["peers"][each][2]]
        if number in roster.voters and 2 * len(answering) <= len(rest):
            raise _refused(f"copies {answering} alone answer, which are no majority of {rest}")
        if not member.change([(number, "removed")]):
            raise Unavailable("another change of members is under way", reason="COPY_CHANGING")
        return members_pb2.RemoveMemberResponse()

    async def RejoinMember(  # noqa: N802  named as in the contract
        self, request: members_pb2.RejoinMemberRequest, context: Any
    ) -> members_pb2.RejoinMemberResponse:
        self._check(request.group)
        check_address(request.address)
        member, roster, address = self._member, self._member.roster, request.address
        present = [number for number in sorted(roster.numbers) if member.address_of(number) == address]
        for number in present:
            if roster.lives.get(number) == request.life:
                return members_pb2.RejoinMemberResponse(number=number)
        if not present:
            raise NotFound(f"no copy of the group has the address {address}", reason="COPY_UNKNOWN")
        if answering := [each for each in present if each == self._own.number or member.status["peers"][each][2]]:
            raise _refused(f"copy {answering[0]} has the address {address}, and still answers")
        number = roster.highest + 1
        if number > NUMBER_MAX:
            raise _refused(f"all numbers up to {NUMBER_MAX} are used")
        learners = [each for each in present if each in roster.learners]
        if len(present) == 1:
            member.change([(number, "learner")], Newcomer(number, address, present[0], request.life))
        elif learners:
            # It is of an earlier attempt. The leader itself removes a voter that is replaced.
            member.change([(learners[0], "removed")])
        return members_pb2.RejoinMemberResponse()

    def _check_follows(self, number: int) -> None:
        """Raises: FailedPrecondition: the member leads."""
        if number == self._own.number:
            others = [each for each in self._member.roster.voters if each != number]
            way = f"transfer leadership to one of {others} first" if others else "it is the last voter"
            raise _refused(f"copy {number} leads: {way}")

    def _check(self, group: int) -> None:
        """Raises: FailedPrecondition, NotLeader: the call is for another group, or for the leader."""
        if group != self._own.group:
            text = f"this is a copy of group {self._own.group}, not of {group}"
            raise _refused(text)
        if not self._member.leads:
            raise self._member.not_leader()


def _check_known(roster: Roster, number: int) -> None:
    """Raises: NotFound: it is no member."""
    if number not in roster.numbers:
        text = f"the group has no copy {number}: its copies are {sorted(roster.numbers)}"
        raise NotFound(text, reason="COPY_UNKNOWN")


def _check_replaces(roster: Roster, number: int, replaces: int) -> None:
    """Raises: NotFound, FailedPrecondition: a member was added, but not to replace the other one; 0: none."""
    if roster.is_removed(replaces):
        return
    _check_known(roster, replaces)
    if roster.replaces.get(number) != replaces:
        way = "give a number that is new" if number == replaces else f"remove copy {replaces}"
        raise _refused(f"copy {number} is a member already, and does not replace copy {replaces}: {way}")


def _refused(text: str) -> FailedPrecondition:
    return FailedPrecondition(text, reason="COPY_REFUSED")


def _role(roster: Roster, number: int) -> members_pb2.CopyRole:
    if number in roster.voters:
        return members_pb2.COPY_ROLE_VOTER
    return members_pb2.COPY_ROLE_LEAVING if number in roster.voters_outgoing else members_pb2.COPY_ROLE_LEARNER
