"""The routes that this gateway has read."""

from collections.abc import Iterable, Sequence

from duetime_format.names import is_system_topic

from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.shards.route import Route


class RouteTable:
    """Routes by topic, as last read. Those of system topics are separate: senders must not find them."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        # Routes of writable topics.
        self.writable: dict[str, Route] = {}
        self._system: dict[str, Route] = {}
        # Number of replaced and dropped routes: a change makes cached ones outdated.
        self.edition = 0

    def get(self, name: str) -> Route | None:
        """The route; None: not read yet, or there is none."""
        return self.writable.get(name) or self._system.get(name)

    def remember(
        self,
        name: str,
        places: Sequence[tuple[int, int]],
        max_delay_ms: int = 0,
        message_type: int = 0,
        generation: int = 0,
    ) -> Route:
        """The topic's route, which has at least these queues. `places`: shard and its queue, by queue."""
        shards, numbers = zip(*places, strict=True)
        routes = self._system if is_system_topic(name) else self.writable
        # Concurrent look-ups of one topic keep the first one's turns.
        route = routes.get(name)
        if route is None or route.generation < generation or len(route.shards) < len(shards):
            self.edition += route is not None
            route = routes[name] = Route(name, shards, numbers, max_delay_ms, message_type, generation)
        self._metrics.topics.set(len(self.writable) + len(self._system))
        return route

    def drop(self, name: str, generation: int) -> None:
        """Removes the deleted topic of this generation."""
        route = self.writable.get(name)
        if route is not None and route.generation <= generation:
            del self.writable[name]
            self.edition += 1

    def forget_shard(self, shard: int) -> None:
        """Marks the topics to be announced again to the shard, which may have lost them."""
        for route in (*self.writable.values(), *self._system.values()):
            route.forget(shard)

    def drop_outdated(self, shard: int, names: Iterable[str]) -> None:
        """Drops routes of these topics without the shard, which has queues of them."""
        for name in names:
            for routes in (self.writable, self._system):
                if name in routes and shard not in routes[name].shards:
                    del routes[name]
                    self.edition += 1
