"""Ends connections: those that make no calls when descriptors run short, and those of a host that has too many.

The others stay as long as they like. gRPC itself lets no connection in beyond `connections_max`; this keeps the last
tenth of them free for hosts that have few.
"""

import resource
from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from duetime_core.callers import host_of
from duetime_core.clock import Clock, Timer
from duetime_core.logs import sparing
from duetime_core.shares import LITTLE
from duetime_core.sockets import Sockets, open_files
from duetime_core.traffic import Connection, Traffic

log = sparing()

CHECK_MS = 1_000
# Shares of the process's descriptors: above the first, quiet connections are ended down to the second.
SHORT, ENOUGH = 0.8, 0.7
# Above this share of the connections that may be, hosts with more than the LITTLEth part of them give some up.
SHARED = 0.9
OTHERS_CHECKS = 60
# Checks without a call after which a connection counts as quiet: one that never made a call, and one that did. A long
# poll lasts half as long.
NEVER_CHECKS, QUIET_CHECKS = 5, 60


class Shedding(Collector):
    """Watches over the connections to one server."""

    def __init__(
        self,
        traffic: Traffic,
        clock: Clock,
        sockets: Sockets | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._traffic = traffic
        self._clock = clock
        self._sockets = sockets or Sockets()
        # By peer: the number of checks at which its connection was there without ever having made a call.
        self._silent: dict[str, int] = {}
        self._timer: Timer | None = None
        self._ports: tuple[int, ...] = ()
        # Descriptors that were no connections at the last look, and checks since.
        self._others = self._unscanned_checks = 0
        if registry is not None:
            registry.register(self)

    def start(self, *ports: int) -> None:
        """Checks connections to these ports from now on."""
        self._ports = ports
        self._check()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = self._clock.call_later(CHECK_MS, self._check)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        used = sum(1 for _ in open_files())
        if used > SHORT * most:
            self.shed(used - int(ENOUGH * most))
        else:
            self._silent.clear()
        self._check_shares(used)

    def _check_shares(self, used: int) -> None:
        """Looks at connections where so many descriptors may be too many of them. A store has as many files: what is
        none of connections is counted anew after a minute, or when there seem to be too many."""
        shared = SHARED * self._traffic.connections_max
        self._unscanned_checks += 1
        if used - self._others > shared or (used > shared and self._unscanned_checks > OTHERS_CHECKS):
            self._others, self._unscanned_checks = used - self.share(), 0

    def share(self) -> int:
        """Ends connections until what is left for others is free: of the host that has most, those never used first,
        then the newest. How many there were."""
        self._sockets.scan()
        peers = self._peers_in(self._sockets)
        most, known, counts = self._traffic.connections_max, self._traffic.connections, Counter(map(host_of, peers))
        surplus = max(len(peers) - int(SHARED * most), 0)
        order = sorted(enumerate(peers), key=lambda one: (-counts[host_of(one[1])], one[1] in known, -one[0]))
        chosen = [peer for _, peer in order if counts[host_of(peer)] > max(most // LITTLE, 1)][:surplus]
        for peer in chosen:
            self._sockets.cut(peer)
        if chosen:
            self._traffic.cut_count += len(chosen)
            hosts = len(set(map(host_of, chosen)))
            log.warning("connections ended: their hosts have too many", count=len(chosen), hosts=hosts, most=most)
        return len(peers)

    def shed(self, count: int) -> None:
        """Ends up to `count` quiet connections, those never used first."""
        self._sockets.scan()
        known = self._traffic.connections
        peers = self._peers_in(self._sockets)
        self._silent = {peer: self._silent.get(peer, 0) + 1 for peer in peers if peer not in known}
        for peer, quiet in known.items():
            quiet.quiet_checks += 1
            if peer in peers and quiet.quiet_checks > QUIET_CHECKS and self._traffic.is_idle(quiet):
                self._silent[peer] = 0
        never = [peer for peer, checks in self._silent.items() if checks > NEVER_CHECKS]
        used = [peer for peer, checks in self._silent.items() if not checks]
        chosen = (never + used)[:count]
        for peer in chosen:
            self._sockets.cut(peer)
        if chosen:
            self._traffic.cut_count += len(chosen)
            log.warning("quiet connections ended: descriptors run short", count=len(chosen), **_some(known, chosen))

    def _peers_in(self, sockets: Sockets) -> list[str]:
        return [peer for port in self._ports for peer in sockets.peers_of(port)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        # A scrape's thread has sockets of its own to look at.
        sockets = Sockets()
        sockets.scan()
        yield GaugeMetricFamily("duetime_connections", "Connections to the gRPC port", len(self._peers_in(sockets)))
        yield GaugeMetricFamily("duetime_connections_max", "The most that are let in", self._traffic.connections_max)


def _some(known: Mapping[str, Connection], chosen: list[str]) -> dict[str, int]:
    return {"never_used": sum(peer not in known for peer in chosen)}
