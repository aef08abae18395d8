"""Finds the live members of a group of processes, by counters that each increments in the metadata database. Pure."""

from collections.abc import Mapping


class MemberWatch:
    """Finds the live members: their heartbeats increase while this member's clock advances.

    Times of other machines are never compared. A late tick (this process was stopped, the machine slept) counts as
    `tick_ms_max` of silence, so that a resumed member does not consider all others dead.
    """

    def __init__(self, me: str, *, lease_ms: float, tick_ms_max: float) -> None:
        self._me = me
        self._lease_ms = lease_ms
        self._tick_ms_max = tick_ms_max
        self._heartbeats: dict[str, int] = {}
        self._silent_ms: dict[str, float] = {}
        self._last_ms: float | None = None

    def observe(self, heartbeats: Mapping[str, int], now_ms: float) -> tuple[set[str], set[str]]:
        """(live members, dead members) at a tick at `now_ms` of this member's monotonic clock.

        A new member counts as alive.
        """
        passed_ms = min(now_ms - (self._last_ms if self._last_ms is not None else now_ms), self._tick_ms_max)
        self._last_ms = now_ms
        self._silent_ms = {
            member: self._silent_ms.get(member, 0.0) + passed_ms if self._heartbeats.get(member) == heartbeat else 0.0
            for member, heartbeat in heartbeats.items()
        }
        self._heartbeats = dict(heartbeats)
        dead = {member for member, silent_ms in self._silent_ms.items() if silent_ms >= self._lease_ms} - {self._me}
        return (set(heartbeats) | {self._me}) - dead, dead
