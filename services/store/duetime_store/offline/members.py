"""`duetime store members`: commands on the copies of a shard."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

import grpc
import typer
from duetime.cli.options import show_help
from duetime.cli.output import print_json, print_table
from duetime.v1 import members_pb2, members_pb2_grpc
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.clock import SystemClock
from duetime_core.errors import DueTimeError, Unavailable
from duetime_core.node.settings import credentials_of_commands, parse_stores
from duetime_core.rpc.calls import translate
from duetime_core.rpc.channels import make_channel
from duetime_format.printing import echo

_HELP = """List, add, remove and replace the copies of a shard.

Groups of copies are experimental. Copies answer on the ports for each other, whether they lead or not. Commands may be
repeated: those that are done do nothing.

\b
Examples:
  duetime store members list --copies 1=10.0.0.1:9821,2=10.0.0.2:9821
  duetime store members transfer 2 --copies 1=10.0.0.1:9821,2=10.0.0.2:9821
  duetime store members replace 3 4 10.0.0.4:9821 --copies 1=10.0.0.1:9821,2=10.0.0.2:9821
"""
# Deadline of one call, and longest wait for a leader, or for another one.
CALL_S, LEADER_S = 5.0, 30.0
_PAUSE_MS = 100
# Reasons that pass: the leader has changed, or has to end another change first.
_PASSING = frozenset(("NOT_LEADER", "COPY_UNAVAILABLE", "COPY_CHANGING"))
# Time between two lines about the progress of a new copy.
_NEWS_MS = 5_000
_ROLES = {
    members_pb2.COPY_ROLE_VOTER: "voter",
    members_pb2.COPY_ROLE_LEARNER: "learner",
    members_pb2.COPY_ROLE_LEAVING: "leaving",
}
Answer = TypeVar("Answer")
Group = members_pb2.DescribeMembersResponse

app = typer.Typer(name="members", help=_HELP, rich_markup_mode=None, add_completion=False, invoke_without_command=True)
app.callback()(show_help)

Copies = Annotated[
    str,
    typer.Option(
        "--copies",
        envvar="DUETIME_STORE_COPIES",
        metavar="1=HOST:PORT,...",
        help="Copies with their addresses for each other; those that answer name the others.",
    ),
]
Number = Annotated[int, typer.Argument(metavar="NUMBER", help="The copy's number in the group.", min=1, max=65_535)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Operator:
    """Calls the copies of one group."""

    def __init__(self, addresses: Mapping[int, str], credentials: ClusterCredentials) -> None:
        self._addresses, self._credentials = addresses, credentials
        self._clock = SystemClock()

    async def call(
        self, number: int, address: str, make: Callable[[members_pb2_grpc.MembersStub], Awaitable[Answer]]
    ) -> Answer:
        """One call of a copy. Raises: DueTimeError."""
        async with make_channel(address, self._credentials) as channel:
            try:
                return await make(members_pb2_grpc.MembersStub(channel))  # type: ignore[no-untyped-call]
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    text = f"{address} is not a copy's port for the others"
                    raise Unavailable(text, reason="COPY_UNAVAILABLE") from error
                raise translate(error, f"copy {number} at {address}", "COPY_UNAVAILABLE") from error

    async def describe(self) -> Group:
        """The group as its leader knows it, or else as any copy that answers. Raises: Unavailable: none does."""
        faults: list[str] = []
        asked: set[int] = set()
        best: Group | None = None
        todo = dict(self._addresses)
        while todo:
            number = best.leader if best is not None and best.leader in todo else min(todo)
            address = todo.pop(number)
            asked.add(number)
            try:
                found: Group = await self.call(number, address, _describe)
            except DueTimeError as error:
                faults.append(error.text)
                continue
            if found.leader == found.number:
                return found
            best = found if best is None or found.term > best.term else best
            todo |= {member.number: member.address for member in found.members if member.number not in asked}
        if best is None:
            raise Unavailable("; ".join(faults), reason="COPY_UNAVAILABLE")
        return best

    async def leader(self, to: int = 0) -> Group:
        """The group as its leader knows it; waits for one, or for `to` to lead, up to LEADER_S.

        Raises:
            Unavailable: none does, or not that copy.
        """
        until_ms = self._clock.monotonic_ms() + LEADER_S * 1000
        while True:
            group = await self.describe()
            if group.leader == group.number and to in (0, group.leader):
                return group
            if self._clock.monotonic_ms() >= until_ms:
                found = f"copy {group.leader} leads" if group.leader else "no copy is known to lead"
                raise Unavailable(f"{found} after {LEADER_S:.0f} s", reason="COPY_UNAVAILABLE")
            await self._clock.sleep(_PAUSE_MS)

    async def transfer(self, to: int) -> Group:
        """Gives leadership to a copy, and returns once it leads. Raises: DueTimeError."""
        group = await self.leader()
        if group.leader != to:
            request = members_pb2.TransferLeadershipRequest(group=group.group, to=to)
            await self._ask(group, lambda stub: stub.TransferLeadership(request, timeout=CALL_S))
        return await self.leader(to)

    async def add(self, number: int, address: str, replaces: int, tell: Callable[[str], None]) -> Group:
        """Adds a copy, in place of another one unless that is 0; returns once it votes. `tell` takes news.

        Raises:
            DueTimeError
        """
        told_ms = self._clock.monotonic_ms()
        while True:
            group = await self.leader()
            # Also for a member: the leader knows whether it replaces that one.
            await self._ask(group, partial(_add, group, number, address, replaces))
            found = _member(group, number)
            is_there = found is not None and found.address == address and found.role == members_pb2.COPY_ROLE_VOTER
            if is_there and _member(group, replaces) is None:
                return group
            if self._clock.monotonic_ms() - told_ms >= _NEWS_MS:
                tell(await self._news(group, number, address))
                told_ms = self._clock.monotonic_ms()
            await self._clock.sleep(_PAUSE_MS)

    async def remove(self, number: int) -> Group:
        """Removes a copy; returns once it has left. Raises: DueTimeError."""
        while True:
            group = await self.leader()
            if _member(group, number) is None and number <= group.highest_number:
                return group
            await self._ask(group, partial(_remove, group, number))
            await self._clock.sleep(_PAUSE_MS)

    async def _ask(self, group: Group, make: Callable[[members_pb2_grpc.MembersStub], Awaitable[object]]) -> None:
        """One call of the group's leader, which may have to be repeated: the group shows its effect.

        Raises:
            DueTimeError: the leader refuses it.
        """
        leader = _member(group, group.leader)
        try:
            await self.call(group.leader, leader.address if leader else "", make)
        except DueTimeError as error:
            if error.reason not in _PASSING:
                raise

    async def _news(self, group: Group, number: int, address: str) -> str:
        """The progress of a new copy, in words."""
        try:
            own = await self.call(number, address, _describe)
        except DueTimeError:
            return f"copy {number} does not answer at {address}: start it with --copies-join true"
        if own.bytes_to_take:
            return f"copy {number} has taken {own.taken_bytes:,} of {own.bytes_to_take:,} bytes"
        found = _member(group, number)
        behind = group.last_entry - found.matched_entry if found else 0
        return f"copy {number} lacks {behind:,} entries"


def _member(group: Group, number: int) -> members_pb2.CopyMember | None:
    return next((member for member in group.members if member.number == number), None)


def _add(
    group: Group, number: int, address: str, replaces: int, stub: members_pb2_grpc.MembersStub
) -> Awaitable[members_pb2.AddMemberResponse]:
    request = members_pb2.AddMemberRequest(group=group.group, number=number, address=address, replaces=replaces)
    answer: Awaitable[members_pb2.AddMemberResponse] = stub.AddMember(request, timeout=CALL_S)
    return answer


def _remove(
    group: Group, number: int, stub: members_pb2_grpc.MembersStub
) -> Awaitable[members_pb2.RemoveMemberResponse]:
    request = members_pb2.RemoveMemberRequest(group=group.group, number=number)
    answer: Awaitable[members_pb2.RemoveMemberResponse] = stub.RemoveMember(request, timeout=CALL_S)
    return answer


async def _describe(stub: members_pb2_grpc.MembersStub) -> Group:
    found: Group = await stub.DescribeMembers(members_pb2.DescribeMembersRequest(), timeout=CALL_S)
    return found


def _run(copies: str, act: Callable[[Operator], Awaitable[Group]], *, as_json: bool) -> None:
    """Runs a command and prints the group, or an error as the command does."""

    try:
        addresses = parse_stores(copies)
    except ValueError:
        raise typer.BadParameter(f"{copies!r} is not 1=HOST:PORT,2=HOST:PORT", param_hint="--copies") from None

    async def run() -> Group:
        return await act(Operator(addresses, credentials_of_commands()))

    try:
        group = asyncio.run(run())
    except DueTimeError as error:
        echo(f"duetime: {error.text}", err=True)
        raise typer.Exit(1) from None
    print_json(group_object(group)) if as_json else print_group(group)


@app.command("list")
def list_members(copies: Copies, as_json: Json = False) -> None:
    """Show the copies of a shard, and which one leads.

    The leader answers, or else a copy that knows neither the entries of the others nor whether they answer. `behind` is
    the number of entries that are not known to be on a copy's disk; `ahead ms`, how far its clock is ahead of that of
    the answering copy.

    \b
    Examples:
      duetime store members list --copies 1=10.0.0.1:9821
      DUETIME_STORE_COPIES=1=10.0.0.1:9821 duetime store members list --json
    """
    _run(copies, Operator.describe, as_json=as_json)


@app.command()
def transfer(number: Number, copies: Copies, as_json: Json = False) -> None:
    """Give the leadership of a shard to another copy.

    Waits up to 30 s until it leads. The former leader's process ends, and follows after its restart. Rejected for a
    copy that does not vote, does not answer or lacks more than 1,024 entries.

    \b
    Examples:
      duetime store members transfer 2 --copies 1=10.0.0.1:9821
    """
    _run(copies, lambda operator: operator.transfer(number), as_json=as_json)


Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="Its address for the other copies.")]


def _tell(text: str) -> None:
    echo(text, err=True)


@app.command()
def add(number: Number, address: Address, copies: Copies, as_json: Json = False) -> None:
    """Add a copy to a shard.

    NUMBER must be higher than all numbers that the group has ever had. Start the copy on an empty directory with
    --copies-join true, before or after this command: it takes the directory of another copy, then the latest entries,
    and becomes a voter. Waits until it votes; an interrupted command loses nothing, and may be repeated.

    \b
    Examples:
      duetime store members add 4 10.0.0.4:9821 --copies 1=10.0.0.1:9821
    """
    _run(copies, lambda operator: operator.add(number, address, 0, _tell), as_json=as_json)


@app.command()
def remove(number: Number, copies: Copies, as_json: Json = False) -> None:
    """Remove a copy from a shard. Its process ends, and its number is not used again.

    Rejected for the copy that leads, and if the remaining copies that answer are no majority.

    \b
    Examples:
      duetime store members remove 4 --copies 1=10.0.0.1:9821
    """
    _run(copies, lambda operator: operator.remove(number), as_json=as_json)


@app.command()
def replace(
    number: Annotated[int, typer.Argument(metavar="OLD", help="The copy that leaves.", min=1, max=65_535)],
    new: Annotated[int, typer.Argument(metavar="NEW", help="The number of the new copy.", min=1, max=65_535)],
    address: Address,
    copies: Copies,
    as_json: Json = False,
) -> None:
    """Replace a copy by a new one.

    As `add`. The old copy may be lost; it leaves when the new one begins to vote.

    \b
    Examples:
      duetime store members replace 3 4 10.0.0.4:9821 --copies 1=10.0.0.1:9821
    """
    _run(copies, lambda operator: operator.add(new, address, number, _tell), as_json=as_json)


def group_object(group: Group) -> dict[str, Any]:
    """The group as JSON; `null`: not known to the answering copy."""
    leads = group.leader == group.number
    return {
        "group": group.group,
        "leader": group.leader or None,
        "term": group.term,
        "answered_by": group.number,
        "last_entry": group.last_entry,
        "committed_entry": group.committed_entry,
        "members": [
            {
                "number": member.number,
                "address": member.address,
                "role": _role(group, member),
                "heard": member.heard if leads else None,
                "matched_entry": member.matched_entry if leads else None,
                "behind": max(group.last_entry - member.matched_entry, 0) if leads else None,
                "clock_ahead_ms": member.clock_ahead_ms if member.HasField("clock_ahead_ms") else None,
                "replaces": member.replaces or None,
            }
            for member in group.members
        ],
    }


def print_group(group: Group) -> None:
    """Prints the group as a line and a table."""
    leads = f"copy {group.leader} leads" if group.leader else "no leader is known"
    echo(
        f"group {group.group}: {leads}, term {group.term}, entry {group.committed_entry:,} of {group.last_entry:,} "
        f"committed, as copy {group.number} knows"
    )
    rows = []
    for member in group_object(group)["members"]:
        heard = {None: "-", True: "yes", False: "no"}[member["heard"]]
        behind = "-" if member["behind"] is None else f"{member['behind']:,}"
        ahead = "-" if member["clock_ahead_ms"] is None else f"{member['clock_ahead_ms']:,}"
        rows.append((str(member["number"]), member["address"], member["role"], heard, behind, ahead))
    print_table(["#copy", "address", "role", "answers", "#behind", "#ahead ms"], rows)


def _role(group: Group, member: members_pb2.CopyMember) -> str:
    return "leader" if member.number == group.leader else _ROLES.get(member.role, "unknown")
