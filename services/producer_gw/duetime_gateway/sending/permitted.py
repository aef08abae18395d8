"""The routes that a caller may send by: those that are known, less those of topics that are not theirs to write to.

A whole request is packed by a dict of routes, so that no message is looked at for its topic: each caller without the
right to send everywhere has a dict of their own, which grows by the topics that they send to.
"""

from collections.abc import Collection

from duetime_core.errors import DueTimeError

from duetime_gateway.access.grants import Access, Kind, Right
from duetime_gateway.routing.topics import Topics
from duetime_gateway.shards.route import Route

# Topics of one caller that are remembered.
ROUTES_MAX = 10_000
# Callers whose topics are.
CALLERS_MAX = 1_024


class _Own:
    """Of one caller."""

    __slots__ = ("edition", "routes")

    def __init__(self) -> None:
        self.edition = -1
        self.routes: dict[str, Route] = {}


class Permitted:
    """See the module."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._own: dict[Access, _Own] = {}

    def routes(self, access: Access) -> dict[str, Route]:
        """Of topics that the caller may send to; not all of them need be there."""
        if access.sends_everywhere:
            return self._topics.routes
        own = self._own.get(access)
        if own is None:
            if len(self._own) >= CALLERS_MAX:
                self._own.clear()
            own = self._own[access] = _Own()
        if own.edition != self._topics.routes_edition or len(own.routes) > ROUTES_MAX:
            own.routes, own.edition = {}, self._topics.routes_edition
        return own.routes

    def learn(self, access: Access, names: Collection[str]) -> None:
        """Adds topics that a caller sends to to the routes of theirs, as far as they may."""
        routes, known = self.routes(access), self._topics.routes
        if routes is not known:
            allowed = (name for name in names if access.may(Right.SEND, Kind.TOPIC, name))
            routes.update((name, known[name]) for name in allowed if name in known)

    def faults(self, access: Access, names: Collection[str]) -> dict[str, DueTimeError]:
        """The topics among these that the caller may not send to, and why."""
        found: dict[str, DueTimeError] = {
            name: access.refusal(Right.SEND, Kind.TOPIC, name)
            for name in names
            if not access.may(Right.SEND, Kind.TOPIC, name)
        }
        return found
