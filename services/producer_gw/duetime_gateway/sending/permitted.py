"""The routes available to a caller: known topics with the right to send.

A whole request is packed with a dict of routes, so rights are not checked per message. Each caller without the right to
send everywhere has its own dict, which grows with the topics in use.
"""

from collections.abc import Collection, Mapping

from duetime_core.audit.audit import tell_refused_part
from duetime_core.errors import DueTimeError, PermissionDenied

from duetime_gateway.access.grants import Access, Kind, Right
from duetime_gateway.routing.topics import TopicRegistry
from duetime_gateway.shards.route import Route

# Cached topics of one caller.
ROUTES_MAX = 10_000
# Callers with cached topics.
CALLERS_MAX = 1_024


def faults_of(access: Access, names: Collection[str]) -> dict[str, DueTimeError]:
    """Errors of the topics among these that the caller may not send to."""
    found: dict[str, DueTimeError] = {
        name: access.refusal(Right.SEND, Kind.TOPIC, name)
        for name in names
        if not access.may(Right.SEND, Kind.TOPIC, name)
    }
    return found


def tell_refused(faults: Mapping[str, object]) -> None:
    """Writes one event per request to the audit log, regardless of its other messages. `faults`: by topic; only those
    of missing rights count."""
    refused = {name: error for name, error in faults.items() if isinstance(error, PermissionDenied)}
    if refused:
        name, more = min(refused), f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        tell_refused_part(f"topic {name}{more}", refused[name])


class _CallerRoutes:
    """The routes of one caller."""

    __slots__ = ("edition", "routes")

    def __init__(self) -> None:
        self.edition = -1
        self.routes: dict[str, Route] = {}


class PermittedRoutes:
    """See the module."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics
        self._own: dict[Access, _CallerRoutes] = {}

    def routes(self, access: Access) -> dict[str, Route]:
        """Routes of permitted topics; some may be missing."""
        if access.sends_everywhere:
            return self._topics.routes
        own = self._own.get(access)
        if own is None:
            if len(self._own) >= CALLERS_MAX:
                self._own.clear()
            own = self._own[access] = _CallerRoutes()
        if own.edition != self._topics.routes_edition or len(own.routes) > ROUTES_MAX:
            own.routes, own.edition = {}, self._topics.routes_edition
        return own.routes

    def learn(self, access: Access, names: Collection[str]) -> None:
        """Adds the permitted topics among these to the caller's routes."""
        routes, known = self.routes(access), self._topics.routes
        if routes is not known:
            allowed = (name for name in names if access.may(Right.SEND, Kind.TOPIC, name))
            routes.update((name, known[name]) for name in allowed if name in known)
