"""Answers operators' calls to a copy (proto/duetime/v1/members.proto)."""

from typing import Any

import structlog
from duetime.v1 import members_pb2, members_pb2_grpc
from duetime_core.errors import FailedPrecondition, NotFound, NotLeader

from duetime_store.copies.clock import GroupClock
from duetime_store.copies.links import Identity
from duetime_store.copies.member import Member
from duetime_store.copies.roster import Roster

log = structlog.get_logger()

SERVICE_NAME = "duetime.v1.Members"
# Entries that a member may lack when it is given leadership, or a vote.
BEHIND_MAX = 1_024


class MembersService(members_pb2_grpc.MembersServicer):
    """See the module."""

    def __init__(self, own: Identity, member: Member, clock: GroupClock) -> None:
        self._own, self._member, self._clock = own, member, clock

    async def DescribeMembers(  # noqa: N802  named as in the contract
        self, request: members_pb2.DescribeMembersRequest, context: Any
    ) -> members_pb2.DescribeMembersResponse:
        status, roster, ahead = self._member.status, self._member.roster, self._clock.deviations()
        members = []
        for number in sorted(roster.numbers):
            match, _, is_heard = status["peers"].get(number, (0, "", False))
            is_own = number == self._own.number
            members.append(
                members_pb2.CopyMember(
                    number=number,
                    address=self._member.address_of(number),
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
        )

    async def TransferLeadership(  # noqa: N802  named as in the contract
        self, request: members_pb2.TransferLeadershipRequest, context: Any
    ) -> members_pb2.TransferLeadershipResponse:
        self._check(request.group)
        status, roster, to = self._member.status, self._member.roster, request.to
        if to not in roster.numbers:
            raise NotFound(
                f"the group has no copy {to}: its copies are {sorted(roster.numbers)}", reason="COPY_UNKNOWN"
            )
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

    def _check(self, group: int) -> None:
        """Raises: FailedPrecondition, NotLeader: the call is for another group, or for the leader."""
        if group != self._own.group:
            text = f"this is a copy of group {self._own.group}, not of {group}"
            raise FailedPrecondition(text, reason="COPY_REFUSED")
        if not self._member.leads:
            raise NotLeader(self._member.status["leader"], self._member.status["term"])


def _role(roster: Roster, number: int) -> members_pb2.CopyRole:
    if number in roster.voters:
        return members_pb2.COPY_ROLE_VOTER
    return members_pb2.COPY_ROLE_LEAVING if number in roster.voters_outgoing else members_pb2.COPY_ROLE_LEARNER
