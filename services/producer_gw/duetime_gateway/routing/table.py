"""The routes that this gateway has read."""

from collections.abc import Iterable, Sequence

from duetime_format.names import is_system_topic

from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.shards.route import Route


class RouteTable:
    """Routes by topic, as they were last read. Those of system topics lie apart: senders must not find them."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        # Of topics that may be written to.
        self.writable: dict[str, Route] = {}
        self._system: dict[str, Route] = {}
        # Counts routes that were replaced or dropped: what others remember of them is outdated.
        self.edition = 0

    def get(self, name: str) -> Route | None:
        """None: it was not read, or there is none."""
        return self.writable.get(name) or self._system.get(name)

    def remember(
        self,
        name: str,
        places: Sequence[tuple[int, int]],
        max_delay_ms: int = 0,
        message_type: int = 0,
        generation: int = 0,
    ) -> Route:
        """The topic's route, which has at least these queues. `places`: shard and queue there, by queue."""
        shards, numbers = zip(*places, strict=True)
        routes = self._system if is_system_topic(name) else self.writable
        # Two look-ups of one topic may have run at once: the first one's turns go on.
        route = routes.get(name)
        if route is None or route.generation < generation or len(route.shards) < len(shards):
            self.edition += route is not None
            route = routes[name] = Route(name, shards, numbers, max_delay_ms, message_type, generation)
        self._metrics.topics.set(len(self.writable) + len(self._system))
        return route

    def drop(self, name: str, generation: int) -> None:
        """The topic of this generation was deleted."""
        route = self.writable.get(name)
        if route is not None and route.generation <= generation:
            del self.writable[name]
            self.edition += 1

    def forget_shard(self, shard: int) -> None:
        """The shard may have lost the topics: they are announced to it again before it is used."""
        for route in (*self.writable.values(), *self._system.values()):
            route.forget(shard)

    def drop_outdated(self, shard: int, names: Iterable[str]) -> None:
        """Drops the routes of these topics, which have queues on the shard, where a route does not lead there."""
        for name in names:
            for routes in (self.writable, self._system):
                if name in routes and shard not in routes[name].shards:
                    del routes[name]
                    self.edition += 1
