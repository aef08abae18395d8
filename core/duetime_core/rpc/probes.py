"""A process's health, by gRPC and by HTTP.

    gRPC health service          HTTP, on the metrics port    meaning
    "" and duetime.v1.NAME /readyz ready for calls: SERVING from the first answered call until the start of a stop
    "liveness"                   /healthz                     alive: NOT_SERVING if a restart may help; SERVING during a
                                                              stop

Nothing is polled inside: the event loop answers each probe at once, so a loop that hangs answers none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import structlog
from grpc_health.v1 import health, health_pb2

log = structlog.get_logger()

LIVENESS = "liveness"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

# Returns the reason to restart a process; empty: none.
Stuck = Callable[[], Awaitable[str]]


async def never_stuck() -> str:
    """For processes without reasons to restart while they answer."""
    return ""


class Health(health.aio.HealthServicer):  # type: ignore[misc]
    """grpc.health.v1 with the service "liveness", which is evaluated on request."""

    def __init__(self, names: list[str], stuck: Stuck) -> None:
        super().__init__()
        self._names = ["", *names]
        self._stuck = stuck
        self._logged = ""
        self.ready = False
        self._server_status = {LIVENESS: SERVING, **dict.fromkeys(self._names, NOT_SERVING)}

    async def report(self, *, serving: bool) -> None:
        """Sets whether the process is ready for calls."""
        self.ready = serving
        for name in self._names:
            await self.set(name, SERVING if serving else NOT_SERVING)

    async def why_stuck(self) -> str:
        """The reason to restart the process, empty: none; each change is logged."""
        why = await self._stuck()
        if why != self._logged:
            if why:
                log.error("stuck", why=why)
            else:
                log.info("no longer stuck")
            self._logged = why
        return why

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  named as in the contract
        if request.service == LIVENESS:
            return health_pb2.HealthCheckResponse(status=NOT_SERVING if await self.why_stuck() else SERVING)
        return await super().Check(request, context)


class NodeCondition(Protocol):
    """The interface for the pages."""

    @property
    def ready(self) -> bool:
        """Whether it is ready for calls."""
        ...

    async def why_stuck(self) -> str:
        """See Health.why_stuck."""
        ...


class WorstCondition:
    """The condition of several nodes: the worst of them."""

    def __init__(self, conditions: Mapping[str, NodeCondition]) -> None:
        """`conditions`: by name."""
        self._conditions = conditions

    @property
    def ready(self) -> bool:
        return all(condition.ready for condition in self._conditions.values())

    async def why_stuck(self) -> str:
        whys = [(name, await condition.why_stuck()) for name, condition in self._conditions.items()]
        return "; ".join(f"{name}: {why}" for name, why in whys if why)


class ProbePages:
    """`/healthz` and `/readyz` for a thread that serves HTTP: each queries the event loop."""

    # A loop that does not answer within this time is considered dead.
    ANSWER_S = 5.0

    def __init__(self, health_of_process: NodeCondition, loop: asyncio.AbstractEventLoop) -> None:
        self._health = health_of_process
        self._loop = loop

    def answer(self, path: str) -> tuple[int, str] | None:
        """Status and text; None: there is no such page."""
        if path not in ("/healthz", "/readyz"):
            return None
        future = asyncio.run_coroutine_threadsafe(self._state_of(path), self._loop)
        try:
            return future.result(self.ANSWER_S)
        except TimeoutError:
            future.cancel()
            return 503, f"the event loop does not answer within {self.ANSWER_S:g} s\n"

    async def _state_of(self, path: str) -> tuple[int, str]:
        if path == "/readyz":
            text = "ready\n" if self._health.ready else "not ready: it is stopping, or its disk does not answer\n"
            return (200 if self._health.ready else 503), text
        why = await self._health.why_stuck()
        return (503, f"stuck: {why}\n") if why else (200, "alive\n")
