"""Limits the recorded rejections per host: the first ones of a period, then a count of the rest. Pure."""

from duetime_core.audit.events import AuditedCall

PERIOD_MS = 10_000
# Rejections per host and period, and hosts with a count of their own; all others share one.
REFUSALS_MAX = 10
HOSTS_MAX = 64
_OTHERS = ""


class _HostRefusals:
    """The rejections of one host in this period."""

    __slots__ = ("count", "last", "left_out_count")

    def __init__(self) -> None:
        self.count = 0
        self.left_out_count = 0
        self.last: AuditedCall | None = None


class Refusals:
    """The rejections of this period."""

    def __init__(self) -> None:
        self._hosts: dict[str, _HostRefusals] = {}

    def admit(self, event: AuditedCall) -> bool:
        """Whether to record the event; otherwise it is counted."""
        host = event.host if event.host in self._hosts or len(self._hosts) < HOSTS_MAX else _OTHERS
        told = self._hosts.setdefault(host, _HostRefusals())
        if told.count < REFUSALS_MAX:
            told.count += 1
            return True
        told.left_out_count += 1
        told.last = event
        return False

    def end(self) -> list[AuditedCall]:
        """Ends the period. Returns an event for each host with unrecorded rejections."""
        hosts, self._hosts = self._hosts, {}
        return [
            told.last._replace(host=host or "others", peer="", left_out_count=told.left_out_count)
            for host, told in hosts.items()
            if told.last is not None
        ]
