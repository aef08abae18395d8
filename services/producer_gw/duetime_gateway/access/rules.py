"""What a call takes: the form of the table that the face has of all its methods. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from duetime_gateway.access.grants import Access, Kind, Right, denied

Names = Callable[[Any], Iterable[str]]


class Who(Enum):
    """Whom a method is for."""

    # Also callers that are not known.
    ANYBODY = "anybody"
    # Any user, with the rights that the rule names.
    USERS = "users"
    ADMINS = "admins"


@dataclass(frozen=True, slots=True)
class Need:
    """One of these rights on each topic or group that a request names."""

    rights: Right
    kind: Kind
    # Of a request; an empty name: all that there are. None: where the names are known, deeper, it is asked.
    names: Names | None


@dataclass(frozen=True, slots=True)
class Rule:
    """What a method takes: all of the needs."""

    who: Who = Who.USERS
    needs: tuple[Need, ...] = ()
    # Decodes requests, where the method takes them as bytes.
    read: Callable[[bytes], Any] | None = None
    # Its callers sign (RocketMQ's), and are told by its answers, not by a status, that they may not call.
    signed: bool = False

    def check_method(self, access: Access, method: str) -> None:
        """Before the request is read. Raises: PermissionDenied: no request of this method is within the rights."""
        if method in access.methods:
            return
        if self.who is Who.ADMINS and not access.is_admin:
            raise denied(f"user {access.name} is no admin, as {method.rpartition('/')[2]} takes")
        for need in self.needs:
            if not access.has(need.rights, need.kind):
                raise access.lacks(need.rights, need.kind)
        access.methods.add(method)

    def check(self, access: Access, request: Any) -> None:
        """Once the request is decoded. Raises: PermissionDenied."""
        if access.is_admin:
            return
        for need in self.needs:
            if need.names is not None:
                for name in need.names(request):
                    access.check(need.rights, need.kind, name)

    @property
    def names_in_requests(self) -> bool:
        """Whether requests have to be looked at."""
        return any(need.names is not None for need in self.needs)


# What is not in the table, such as a method that was just added, is for admins.
UNNAMED = Rule(Who.ADMINS)
Rules = Mapping[str, Rule]
