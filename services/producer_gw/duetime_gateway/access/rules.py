"""The rule of a method: its permitted callers and the rights needed. `face.permissions` has the table. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from duetime_gateway.access.grants import Access, Kind, Right, denied

Names = Callable[[Any], Iterable[str]]


class AllowedCallers(Enum):
    """The callers permitted to use a method."""

    # Including unauthenticated callers.
    ANYBODY = "anybody"
    # Any user with the rights of the rule.
    USERS = "users"
    ADMINS = "admins"


@dataclass(frozen=True, slots=True)
class Need:
    """Takes one of these rights on each topic or group named by a request."""

    rights: Right
    kind: Kind
    # Reads the names of a request; an empty name: all topics or groups. None: checked deeper, where names are known.
    names: Names | None


@dataclass(frozen=True, slots=True)
class Rule:
    """The permitted callers of a method and its needs, which must all be met."""

    who: AllowedCallers = AllowedCallers.USERS
    needs: tuple[Need, ...] = ()
    # Decodes requests of methods that take bytes.
    read: Callable[[bytes], Any] | None = None
    # Callers sign their calls (RocketMQ's) and receive rejections in the response instead of a status.
    signed: bool = False

    def check_method(self, access: Access, method: str) -> None:
        """Called before the request is read. Raises: PermissionDenied: the user's rights permit no request of this
        method."""
        if method in access.methods:
            return
        if self.who is AllowedCallers.ADMINS and not access.is_admin:
            raise denied(f"user {access.name} is not an admin; {method.rpartition('/')[2]} requires one")
        for need in self.needs:
            if not access.has(need.rights, need.kind):
                raise access.lacks(need.rights, need.kind)
        access.methods.add(method)

    def check(self, access: Access, request: Any) -> None:
        """Called with the decoded request. Raises: PermissionDenied."""
        if access.is_admin:
            return
        for need in self.needs:
            if need.names is not None:
                for name in need.names(request):
                    access.check(need.rights, need.kind, name)

    @property
    def names_in_requests(self) -> bool:
        """Whether the rights depend on names in the requests."""
        return any(need.names is not None for need in self.needs)


# Methods missing from the table, such as one just added, are for admins.
UNNAMED = Rule(AllowedCallers.ADMINS)
Rules = Mapping[str, Rule]
