"""The members of a group, as the changes in its log give them: numbers, roles, addresses.

    founding, or a copied directory ──▶ Roster in duetimeRaft ──▶ changes of members in the log ──▶ Roster of a Copy

Numbers only rise. A removed number is never given again: another directory has its votes.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from duetime_core.errors import FailedPrecondition

if TYPE_CHECKING:
    from duetime_raft import Members

_ADDRESS = re.compile(r"[^\s,=|]+:[0-9]{1,5}")


def check_address(address: str) -> None:
    """Raises: FailedPrecondition: the setting `copies` cannot have this address of a copy."""
    if not _ADDRESS.fullmatch(address):
        raise FailedPrecondition(f"{address!r} is not HOST:PORT", reason="COPY_REFUSED")


@dataclass(frozen=True, slots=True)
class Newcomer:
    """The learner that a change of members adds. Once it has the log it becomes a voter; then the member `replaces`
    leaves, unless that is 0. `life`: of the process that asked for its number; 0: an operator gave it."""

    number: int
    address: str
    replaces: int = 0
    life: int = 0

    def encode(self) -> bytes:
        """The context of the change."""
        life = [self.life] if self.life else []
        return json.dumps([self.number, self.address, self.replaces, *life], separators=(",", ":")).encode()

    @classmethod
    def decode(cls, context: bytes) -> "Newcomer | None":
        """The newcomer in a change's context; None: the change adds none."""
        return cls(*json.loads(context)) if context else None


@dataclass(frozen=True, slots=True)
class Roster:
    """Members by role; `voters_outgoing` is not empty during a joint change. `highest`: of all numbers so far."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    auto_leave: bool = False
    addresses: Mapping[int, str] = field(default_factory=dict)
    # The members that others are to replace, by the numbers of these.
    replaces: Mapping[int, int] = field(default_factory=dict)
    highest: int = 0
    # The processes that asked for their numbers, by these: no other directory may use the number.
    lives: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def founding(cls, addresses: Mapping[int, str]) -> "Roster":
        """The members of a new group."""
        return cls(tuple(sorted(addresses)), addresses=addresses, highest=max(addresses))

    @property
    def numbers(self) -> frozenset[int]:
        """All members."""
        return frozenset((*self.voters, *self.learners, *self.voters_outgoing, *self.learners_next))

    def is_removed(self, number: int) -> bool:
        """Whether the number was a member's once, and is no more."""
        return number <= self.highest and number not in self.numbers

    def core(self) -> "Members":
        """For Raft's core."""
        return {
            "voters": list(self.voters),
            "learners": list(self.learners),
            "voters_outgoing": list(self.voters_outgoing),
            "learners_next": list(self.learners_next),
            "auto_leave": self.auto_leave,
        }

    def after(self, members: "Members", newcomer: Newcomer | None) -> "Roster":
        """The roster after a change to these members."""
        addresses, replaces, lives = dict(self.addresses), dict(self.replaces), dict(self.lives)
        if newcomer is not None:
            addresses[newcomer.number] = newcomer.address
            replaces[newcomer.number] = newcomer.replaces
            if newcomer.life:
                lives[newcomer.number] = newcomer.life
        after = Roster(
            tuple(sorted(members["voters"])),
            tuple(sorted(members["learners"])),
            tuple(sorted(members["voters_outgoing"])),
            tuple(sorted(members["learners_next"])),
            members["auto_leave"],
        )
        return replace(
            after,
            addresses={number: address for number, address in addresses.items() if number in after.numbers},
            replaces={new: old for new, old in replaces.items() if {new, old} <= after.numbers},
            highest=max(self.highest, *after.numbers),
            lives={number: life for number, life in lives.items() if number in after.numbers},
        )

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> "Roster":
        """From `dataclasses.asdict`, after JSON."""
        # Versions before `copies_rejoin` wrote no lives.
        maps = {name: found.get(name, {}) for name in ("addresses", "replaces", "lives")}
        texts = {name: {int(key): value for key, value in each.items()} for name, each in maps.items()}
        roles = {name: tuple(found[name]) for name in ("voters", "learners", "voters_outgoing", "learners_next")}
        return cls(**{**found, **roles, **texts})
