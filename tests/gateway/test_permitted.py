"""The routes that a caller may send by follow those of the gateway."""

from dataclasses import dataclass, field
from typing import Any

from duetime_gateway.access.grants import Access
from duetime_gateway.sending.permitted import ROUTES_MAX, PermittedRoutes

from tests.gateway.people import grant


@dataclass
class FakeTopics:
    """Routes of topics, and their edition."""

    routes: dict[str, Any] = field(default_factory=dict)
    routes_edition: int = 0


def access(*grants: str) -> Access:
    return Access("shop", map(grant, grants))


def made(topics: FakeTopics) -> PermittedRoutes:
    return PermittedRoutes(topics)  # type: ignore[arg-type]


def test_caller_with_a_right_to_all_topics_has_all_routes() -> None:
    topics = FakeTopics({"orders": object()})
    for one in (access("admin"), access("send topic *")):
        assert made(topics).routes(one) is topics.routes


def test_caller_sees_only_permitted_topics() -> None:
    topics = FakeTopics({name: object() for name in ("orders", "orders-eu", "secrets")})
    permitted, user, other = made(topics), access("send topic orders*"), access("send topic orders*")
    assert permitted.routes(user) == {}
    permitted.learn(user, ["orders", "secrets", "orders.unknown"])
    assert permitted.routes(user) == {"orders": topics.routes["orders"]}
    assert permitted.routes(other) == {}
    permitted.learn(access("admin"), ["secrets"])
    assert len(topics.routes) == 3


def test_route_that_was_replaced_or_dropped_is_learned_again() -> None:
    topics = FakeTopics({"orders": object()})
    permitted, user = made(topics), access("send topic orders")
    permitted.learn(user, ["orders"])
    topics.routes["orders"], topics.routes_edition = object(), 1
    assert permitted.routes(user) == {}
    permitted.learn(user, ["orders"])
    assert permitted.routes(user) == topics.routes


def test_one_callers_topics_are_bounded() -> None:
    names = [f"orders{number}" for number in range(ROUTES_MAX + 1)]
    topics = FakeTopics({name: object() for name in names})
    permitted, user = made(topics), access("send topic orders*")
    permitted.learn(user, names)
    assert permitted.routes(user) == {}
