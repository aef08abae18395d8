"""Ends connections: quiet ones when descriptors run short, and those of hosts with too many.

Others stay open indefinitely. gRPC itself rejects connections above `connections_max`; this module keeps the last tenth
free for hosts with few.
"""

import resource
from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from duetime_core.access.callers import host_of
from duetime_core.clock import Clock, Timer
from duetime_core.limits.shares import LITTLE
from duetime_core.limits.sockets import Sockets, open_files
from duetime_core.limits.traffic import PeerConnection, Traffic
from duetime_core.telemetry.logs import sparing

log = sparing()

CHECK_MS = 1_000
# Shares of the process's descriptors: above the first, quiet connections are ended, down to the second.
SHORT, ENOUGH = 0.8, 0.7
# Above this share of the connection limit, hosts with more than the LITTLEth part of it lose some.
SHARED = 0.9
OTHERS_CHECKS = 60
# Checks without a call after which a connection counts as quiet: without any call ever, and after calls. A long poll
# lasts half as long.
NEVER_CHECKS, QUIET_CHECKS = 5, 60


class ConnectionShedder(Collector):
    """Monitors the connections to one server."""

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
        # Number of checks that found a connection without any call so far, by peer.
        self._silent: dict[str, int] = {}
        self._timer: Timer | None = None
        self._ports: tuple[int, ...] = ()
        # Descriptors other than connections at the last scan, and checks since.
        self._others = self._unscanned_checks = 0
        if registry is not None:
            registry.register(self)

    def start(self, *ports: int) -> None:
        """Starts checking connections to these ports."""
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
        """Scans connections if the number of descriptors suggests too many. A store has as many files: descriptors
        other than connections are counted again after a minute, or if there seem to be too many."""
        shared = SHARED * self._traffic.connections_max
        self._unscanned_checks += 1
        if used - self._others > shared or (used > shared and self._unscanned_checks > OTHERS_CHECKS):
            self._others, self._unscanned_checks = used - self.share(), 0

    def share(self) -> int:
        """Ends connections until the share for others is free: of the host with the most, those never used first, then
        the newest. Returns their number before."""
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
            log.warning("connections ended: too many per host", count=len(chosen), hosts=hosts, most=most)
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
        # A separate instance, because scrapes run on another thread.
        sockets = Sockets()
        sockets.scan()
        yield GaugeMetricFamily("duetime_connections", "Connections to the gRPC port", len(self._peers_in(sockets)))
        yield GaugeMetricFamily("duetime_connections_max", "Limit of the connections", self._traffic.connections_max)


def _some(known: Mapping[str, PeerConnection], chosen: list[str]) -> dict[str, int]:
    return {"never_used": sum(peer not in known for peer in chosen)}
