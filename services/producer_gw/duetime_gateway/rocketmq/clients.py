"""RocketMQ's clients by their own names: their liveness, and their recent receives.

A client is alive while it makes calls: heartbeats come every 10 s (30 s from some clients). An open Telemetry stream
proves nothing, since it stays open when an application hangs.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from duetime_core.clock import Clock

# Time without a call after which a client is considered dead.
ALIVE_MS = 30_000
# Time after which it is forgotten, unless it has a stream.
FORGOTTEN_MS = 600_000
# Cached clients; those silent for longest are evicted first.
CLIENTS_MAX = 16_384
# Receives of one client that may still be repeated: push consumers run several loops, each with an id of its own.
ATTEMPTS_MAX = 64


class Client:
    """One client of one user."""

    __slots__ = ("_attempts", "id", "seen_ms", "stream_count")

    def __init__(self, client_id: str) -> None:
        self.id = client_id
        self.seen_ms = 0.0
        # Number of its Telemetry streams.
        self.stream_count = 0
        # Receipts by the id of their receive.
        self._attempts: OrderedDict[str, Sequence[bytes]] = OrderedDict()

    def attempted(self, attempt_id: str, receipts: Sequence[bytes]) -> None:
        """Records the receipts of a receive."""
        self._attempts[attempt_id] = receipts
        if len(self._attempts) > ATTEMPTS_MAX:
            self._attempts.popitem(last=False)

    def repeated(self, attempt_id: str) -> Sequence[bytes]:
        """The receipts of a repeated receive, whose answer the client did not get."""
        return self._attempts.pop(attempt_id, ())


class Clients:
    """All known clients."""

    def __init__(self, clock: Clock, forgot: Callable[[Client], None] = lambda client: None) -> None:
        """`forgot`: called with each client that is forgotten."""
        self._clock = clock
        self.forgot = forgot
        # Clients by user and name, in order of their last calls.
        self._clients: OrderedDict[tuple[str, str], Client] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def called(self, user: str, client_id: str) -> Client:
        """The client of a new call."""
        key = user, client_id
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = Client(client_id)
            if len(self._clients) > CLIENTS_MAX:
                self.forgot(self._clients.popitem(last=False)[1])
        else:
            self._clients.move_to_end(key)
        found.seen_ms = self._clock.monotonic_ms()
        return found

    def forget_silent(self) -> None:
        """Forgets clients without recent calls."""
        now_ms = self._clock.monotonic_ms()
        for key, client in list(self._clients.items()):
            if now_ms - client.seen_ms <= FORGOTTEN_MS:
                break
            if not client.stream_count:
                self.forgot(self._clients.pop(key))

    def is_alive(self, client: Client) -> bool:
        return self._clock.monotonic_ms() - client.seen_ms <= ALIVE_MS

    def gone(self, user: str, client: Client) -> None:
        """Forgets a client that has announced its end."""
        if self._clients.pop((user, client.id), None) is not None:
            self.forgot(client)
        client.seen_ms = float("-inf")
