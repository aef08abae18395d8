"""Several nodes as one: their order, their ends, their one page of metrics."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from duetime_core import together
from duetime_core.clock import SystemClock
from duetime_core.errors import StartupError
from duetime_core.rpc.probes import WorstCondition
from duetime_core.together import NAMES, MembersMetrics, TogetherNode, TogetherSettings
from duetime_core.within.places import place_of
from prometheus_client import CollectorRegistry, Gauge, generate_latest

NODES_START = {"store": 1, "retry": 2, "scheduler": 3, "gateway": 4}


class Settings:
    """The part of a node's settings that Together reads."""

    database_url = "sqlite://"
    host = "127.0.0.1"
    log_format = "json"
    otlp_endpoint = ""

    def __init__(self, name: str, log_level: str = "INFO") -> None:
        self.name, self.log_level, self.port = name, log_level, NODES_START[name]


class Health:
    def __init__(self) -> None:
        self.ready, self.why = True, ""

    async def why_stuck(self) -> str:
        return self.why


class Story:
    """The nodes' actions, in order, and their faults."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.faults: dict[str, Exception] = {}
        self.ends: dict[str, asyncio.Future[None]] = {}

    def node_class(self, name: str) -> Callable[..., Any]:
        return lambda settings, clock: Node(self, name)


class Node:
    def __init__(self, story: Story, name: str) -> None:
        self._story, self._name = story, name
        self.registry, self.health, self.port = CollectorRegistry(), Health(), NODES_START[name]
        story.ends[name] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        self._story.told.append(f"start {self._name}")
        # As tasks of a node do it, whose log lines must name it.
        assert structlog.contextvars.get_contextvars()["process"] == self._name
        if self._name in self._story.faults:
            raise self._story.faults[self._name]

    async def failed(self) -> None:
        await asyncio.shield(self._story.ends[self._name])

    async def stop(self) -> None:
        self._story.told.append(f"stop {self._name}")


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Story:
    story = Story()
    monkeypatch.setattr(together, "node_class", story.node_class)
    monkeypatch.setattr(together, "upgrade", lambda url: story.told.append("upgrade"))
    return story


def make(**levels: str) -> TogetherNode:
    settings: Any = {name: Settings(name, levels.get(name, "INFO")) for name in NAMES}
    return TogetherNode(TogetherSettings(settings, inner_ports=False), SystemClock())


STOPPED = ["stop gateway", "stop scheduler", "stop retry", "stop store"]


async def test_callers_start_after_those_that_they_call_and_stop_before_them(story: Story) -> None:
    nodes = make()
    await nodes.start()
    assert {*story.told[:2]} == {"upgrade", "start store"}
    assert {*story.told[2:]} == {"start retry", "start scheduler", "start gateway"}
    assert nodes.port == NODES_START["gateway"]
    assert place_of("127.0.0.1:1") is not None
    assert place_of("127.0.0.1:4") is None, "the gateway is called from outside"
    story.told.clear()
    await nodes.stop()
    assert story.told == STOPPED
    assert place_of("127.0.0.1:1") is None


@pytest.mark.parametrize("name", NAMES)
async def test_a_start_that_fails_names_its_node_and_leaves_nothing_started(story: Story, name: str) -> None:
    story.faults[name] = StartupError("the table is missing")
    nodes = make()
    with pytest.raises(StartupError, match="the table is missing") as caught:
        await nodes.start()
    assert caught.value.node == name
    await nodes.stop()
    started = [one.removeprefix("start ") for one in story.told if one.startswith("start ")]
    stopped = [one.removeprefix("stop ") for one in story.told if one.startswith("stop ")]
    assert sorted(stopped) == sorted(started)


@pytest.mark.parametrize("name", NAMES)
async def test_if_one_node_cannot_continue_all_end(story: Story, name: str) -> None:
    nodes = make()
    await nodes.start()
    failed = asyncio.create_task(nodes.failed())
    await asyncio.sleep(0)
    assert not failed.done()
    story.ends[name].set_exception(ZeroDivisionError("a loop died"))
    with pytest.raises(ZeroDivisionError, match="a loop died"):
        await failed
    await nodes.stop()
    assert story.told[-4:] == STOPPED


async def test_the_log_has_the_finest_of_all_levels(story: Story) -> None:
    settings: Any = {name: Settings(name, "DEBUG" if name == "retry" else "WARNING") for name in NAMES}
    assert TogetherSettings(settings, inner_ports=False).log_level == "DEBUG"


async def test_all_are_as_well_as_the_worst() -> None:
    one, other = Health(), Health()
    both = WorstCondition({"one": one, "other": other})
    assert (both.ready, await both.why_stuck()) == (True, "")
    other.ready, other.why = False, "lane 0/1 does not move"
    assert (both.ready, await both.why_stuck()) == (False, "other: lane 0/1 does not move")


def test_samples_of_one_family_are_grouped_with_their_node() -> None:
    registries = {name: CollectorRegistry() for name in ("one", "other")}
    for name, registry in registries.items():
        Gauge("calls", "Running calls", ["method"], registry=registry).labels("Send").set(len(name))
        Gauge(f"of_{name}", "Its own", registry=registry).set(1)
    page = CollectorRegistry()
    page.register(MembersMetrics(registries))
    lines = [line for line in generate_latest(page).decode().splitlines() if not line.startswith("# HELP")]
    assert lines == [
        "# TYPE calls gauge",
        'calls{method="Send",process="one"} 3.0',
        'calls{method="Send",process="other"} 5.0',
        "# TYPE of_one gauge",
        'of_one{process="one"} 1.0',
        "# TYPE of_other gauge",
        'of_other{process="other"} 1.0',
    ]
