"""The four services as nodes of one process: `python -m duetime_core.together`, which `duetime up` runs.

    schema ┐
           ├─▶ retry, scheduler, gateway ─▶ serving ─▶ stop gateway ─▶ scheduler ─▶ retry ─▶ store
    store  ┘

Each node is the same as in its own process, with the same settings; their calls stay within the process
(duetime_core.within). They share one event loop, collector, log, and page of metrics. Services are found by the entry
points of the group "duetime.nodes", so that this package imports none of them.
"""

if __name__ == "__main__":
    # First, so that all others load faster.
    import duetime_core.starting  # noqa: F401

import argparse
import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Self, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from duetime_core.access.certificates import HttpCertificates
from duetime_core.access.exposure import NodeListener
from duetime_core.clock import Clock
from duetime_core.errors import StartupError
from duetime_core.metadata import upgrade
from duetime_core.node.life import Node, main
from duetime_core.node.settings import NodeSettings
from duetime_core.rpc.fronts import FrontKind
from duetime_core.rpc.probes import WorstCondition
from duetime_core.within.places import places

log = structlog.get_logger()

PROCESS = "cluster"
# Callees come before callers; the last one stops first, so that no last call fails.
NAMES = ("store", "retry", "scheduler", "gateway")
STORE, GATEWAY = NAMES[0], NAMES[-1]

T = TypeVar("T")


def node_class(name: str) -> Any:
    """The class of a service's node."""
    return next(iter(entry_points(group="duetime.nodes", name=name))).load()


@dataclass(frozen=True)
class TogetherSettings:
    """The settings of all nodes, from the same variables as in separate processes. Settings of the process come from
    the gateway; the log has the most verbose of their levels."""

    nodes: Mapping[str, NodeSettings]
    # Whether the nodes behind the gateway also listen on their ports, for other processes.
    inner_ports: bool

    @classmethod
    def read(cls) -> Self:
        """Raises: StartupError: the faults of the first faulty node."""
        parser = argparse.ArgumentParser(prog="python -m duetime_core.together", description=__doc__.splitlines()[0])
        parser.add_argument("--inner-ports", action="store_true", help="store, scheduler and retry listen as well")
        options = parser.parse_args()
        return cls({name: _read(name) for name in NAMES}, options.inner_ports)

    @property
    def gateway(self) -> Any:
        return self.nodes[GATEWAY]

    @property
    def metrics_at(self) -> str:
        return str(self.gateway.metrics_at)

    def metrics_certificates(self) -> HttpCertificates | None:
        found: HttpCertificates | None = self.gateway.metrics_certificates()
        return found

    @property
    def metrics_port(self) -> int:
        return int(self.gateway.metrics_port)

    @property
    def front(self) -> FrontKind:
        return FrontKind(self.gateway.front)

    @property
    def log_level(self) -> str:
        return min((node.log_level for node in self.nodes.values()), key=logging.getLevelNamesMapping().__getitem__)

    @property
    def log_format(self) -> str:
        return str(self.gateway.log_format)

    @property
    def otlp_endpoint(self) -> str:
        return str(self.gateway.otlp_endpoint)

    @property
    def listeners(self) -> list[NodeListener]:
        """The listeners of the nodes that listen."""
        nodes = self.nodes.values() if self.inner_ports else [self.gateway]
        return [listener for node in nodes for listener in node.listeners]

    @property
    def metrics_listener(self) -> list[NodeListener]:
        return list(self.gateway.metrics_listener)

    @property
    def insecure(self) -> bool:
        return bool(self.gateway.insecure)

    @property
    def inner_addresses(self) -> list[str]:
        """The addresses of nodes called within the process."""
        return [f"{node.host}:{node.port}" for name, node in self.nodes.items() if name != GATEWAY]


def _read(name: str) -> NodeSettings:
    try:
        settings: NodeSettings = node_class(name).settings_class.read([])
    except StartupError as error:
        error.node = name
        raise
    return settings


class _Member:
    """A node; its tasks and log lines have its name."""

    def __init__(self, name: str, settings: NodeSettings, clock: Clock) -> None:
        self.name = name
        self._variables = copy_context()
        self._variables.run(structlog.contextvars.bind_contextvars, process=name)
        self.node: Node = self._variables.run(node_class(name), settings, clock)

    async def start(self) -> None:
        """Raises: StartupError: with the node's name."""
        try:
            await self._run(self.node.start())
        except StartupError as error:
            error.node = self.name
            raise

    async def stop(self) -> None:
        await self._run(self.node.stop())

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.get_running_loop().create_task(work, context=self._variables)


class MembersMetrics(Collector):
    """The metrics of several nodes on one page, distinguished by the label `process`."""

    def __init__(self, registries: Mapping[str, CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for name, registry in self._registries.items():
            for metric in registry.collect():
                family = families.get(metric.name)
                if family is None:
                    family = families[metric.name] = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                family.samples += [one._replace(labels={"process": name, **one.labels}) for one in metric.samples]
        return families.values()


class TogetherNode:
    """All nodes as one; see duetime_core.node.life.Node. If one of them fails, all end."""

    def __init__(self, settings: TogetherSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._members: dict[str, _Member] = {}
        # Stops the started nodes, the latest first.
        self._started = contextlib.AsyncExitStack()
        self.registry = CollectorRegistry()

    @property
    def port(self) -> int:
        """The gateway's port."""
        return self._members[GATEWAY].node.port

    @property
    def health(self) -> WorstCondition:
        return WorstCondition({name: member.node.health for name, member in self._members.items()})

    async def start(self) -> None:
        settings = self._settings
        self._started.enter_context(places(settings.inner_addresses, listen=settings.inner_ports))
        await _all(asyncio.to_thread(upgrade, settings.gateway.database_url), self._start(STORE))
        await _all(*(self._start(name) for name in NAMES if name != STORE))
        self.registry.register(MembersMetrics({name: one.node.registry for name, one in self._members.items()}))

    def _start(self, name: str) -> Coroutine[Any, Any, None]:
        """Creates a node, to be stopped after those created later. Returns its start."""
        member = self._members[name] = _Member(name, self._settings.nodes[name], self._clock)
        self._started.push_async_callback(member.stop)
        return member.start()

    async def failed(self) -> None:
        ends = {asyncio.create_task(member.node.failed()): name for name, member in self._members.items()}
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                log.error("node failed: all nodes end", node=ends[end])
                end.result()
        finally:
            for end in ends:
                end.cancel()

    async def stop(self) -> None:
        await self._started.aclose()


async def _all(*works: Coroutine[Any, Any, Any]) -> None:
    """Waits for all, even if one fails: a start cancelled halfway is harder to undo. Raises the first failure."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


if __name__ == "__main__":
    # Before `main`, where a spare waits.
    for name in NAMES:
        node_class(name)
    main(PROCESS, TogetherSettings, TogetherNode)
