"""RocketMQ's clients, by the names that they give themselves: which of them live, and what each one is given.

A client lives as long as it calls: heartbeats come every 10 s (of some clients every 30). Its stream of Telemetry alone
says nothing, since that stays open when an application hangs.
"""

from collections import OrderedDict
from collections.abc import Sequence

from duetime_core.clock import Clock

# Without a call for so long it is taken for dead.
ALIVE_MS = 30_000
# And forgotten after so long, unless it has a stream.
FORGOTTEN_MS = 600_000
# Clients that are remembered; those that have been silent longest go first.
CLIENTS_MAX = 16_384
# Receives of one client that may still be repeated: push consumers run some loops, each with an id of its own.
ATTEMPTS_MAX = 64


class Client:
    """One client of one user."""

    __slots__ = ("_attempts", "id", "seen_ms", "stream_count")

    def __init__(self, client_id: str) -> None:
        self.id = client_id
        self.seen_ms = 0.0
        # Its streams of Telemetry.
        self.stream_count = 0
        # Receipts that receives gave, by their ids.
        self._attempts: OrderedDict[str, Sequence[bytes]] = OrderedDict()

    def attempted(self, attempt_id: str, receipts: Sequence[bytes]) -> None:
        """Notes what a receive gave."""
        self._attempts[attempt_id] = receipts
        if len(self._attempts) > ATTEMPTS_MAX:
            self._attempts.popitem(last=False)

    def repeated(self, attempt_id: str) -> Sequence[bytes]:
        """What the receive with this id gave, and its client never got."""
        return self._attempts.pop(attempt_id, ())


class Clients:
    """All that are known here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By user and name; the one that called last at the end.
        self._clients: OrderedDict[tuple[str, str], Client] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def called(self, user: str, client_id: str) -> Client:
        """The client of a call that just came."""
        key = user, client_id
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = Client(client_id)
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(key)
        found.seen_ms = self._clock.monotonic_ms()
        return found

    def forget_silent(self) -> None:
        """Those that have not called for long."""
        now_ms = self._clock.monotonic_ms()
        for key, client in list(self._clients.items()):
            if now_ms - client.seen_ms <= FORGOTTEN_MS:
                break
            if not client.stream_count:
                del self._clients[key]

    def is_alive(self, client: Client) -> bool:
        return self._clock.monotonic_ms() - client.seen_ms <= ALIVE_MS

    def gone(self, user: str, client: Client) -> None:
        """It has said so: what is its own is no longer kept for it."""
        self._clients.pop((user, client.id), None)
        client.seen_ms = float("-inf")
