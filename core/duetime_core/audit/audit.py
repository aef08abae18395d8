"""Audits a server's calls: admin acts with any outcome, and rejections of all calls."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf.message import DecodeError

from duetime_core.access import principal
from duetime_core.access.callers import host_of
from duetime_core.audit.events import REFUSED, Act, AuditedCall, plain
from duetime_core.audit.refusals import PERIOD_MS, Refusals
from duetime_core.clock import Clock, Timer
from duetime_core.errors import DueTimeError

log = structlog.get_logger()

# Target of the running call.
_resource: ContextVar[str] = ContextVar("duetime_audited_resource", default="")
# The running call, if users are on.
_call: ContextVar["tuple[MethodAudit, Any] | None"] = ContextVar("duetime_audited_call", default=None)


def name_resource(resource: str) -> None:
    """Names the target of the running call, if only its service can tell."""
    _resource.set(resource)


def tell_refused_part(resource: str, error: DueTimeError) -> None:
    """Records the rejection of a part of the running call; its status does not show it."""
    call = _call.get()
    if call is not None:
        method, context = call
        method.tell(context, resource, error.status.name, error.reason)


def _nowhere(event: AuditedCall) -> None:
    """Keeps nothing: processes without a database only log events."""


class Audit:
    """The events of one server: each is logged, and passed to `keep`."""

    def __init__(
        self,
        clock: Clock,
        acts: Mapping[str, Act | None] = MappingProxyType({}),
        keep: Callable[[AuditedCall], None] = _nowhere,
    ) -> None:
        """`acts`: the admin acts among the methods, by names such as `duetime.v1.Gateway/CreateTopic`."""
        self._clock = clock
        self._acts = acts
        self._keep = keep
        self._refusals = Refusals()
        self._period: Timer | None = None

    def of(self, method: str) -> "MethodAudit":
        """`method`: gRPC's name, `/service/method`."""
        name = method.lstrip("/")
        return MethodAudit(self, name, self._acts.get(name))

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def note(self, event: AuditedCall) -> None:
        """Records an event; only the first rejections of each host in a period are recorded one by one."""
        if event.is_refusal:
            if self._period is None:
                self._period = self._clock.call_later(PERIOD_MS, self._end_period)
            if not self._refusals.admit(event):
                return
        self._tell(event)

    def stop(self) -> None:
        """Records the remaining events."""
        if self._period is not None:
            self._period.cancel()
            self._end_period()

    def _end_period(self) -> None:
        self._period = None
        for event in self._refusals.end():
            self._tell(event)

    def _tell(self, event: AuditedCall) -> None:
        told = {key: value for key, value in event._asdict().items() if key != "at_ms" and (value or key == "user")}
        (log.warning if event.is_refusal else log.info)("audit", **told)
        self._keep(event)


class MethodAudit:
    """The events of one method."""

    def __init__(self, audit: Audit, method: str, act: Act | None) -> None:
        self._audit = audit
        self._method = method
        self._act = act
        # Whether its requests name their targets.
        self.is_read = act is not None and act.request is not None

    def read(self, data: bytes) -> None:
        """Reads the request of an act before it is served."""
        assert self._act is not None, "no act"
        # A request that cannot be decoded is rejected next.
        with suppress(DecodeError):
            name_resource(self._act.about(self._act.request.FromString(data)))

    def began(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        """Must be called in the call's task, where parts of it may be rejected."""
        _call.set((self, context))

    def ended(self, context: "grpc.aio.ServicerContext[Any, Any]", status: str, reason: str) -> None:
        """Must be called at the end of each call, in its task."""
        if self._act is None and status not in REFUSED:
            return
        resource = _resource.get() if self._act is not None else ""
        if not resource and status not in REFUSED:
            return
        self.tell(context, resource, status, reason)

    def tell(self, context: "grpc.aio.ServicerContext[Any, Any]", resource: str, status: str, reason: str) -> None:
        """Records an event in the name of a call."""
        # Strip the kind, such as `ipv4:`.
        peer = unquote(context.peer()).removeprefix("ipv4:").removeprefix("ipv6:")
        self._audit.note(
            AuditedCall(
                self._audit.now_ms(),
                plain(principal.current().name),
                plain(host_of(peer)),
                plain(peer),
                self._method,
                plain(resource),
                status,
                reason,
            )
        )
