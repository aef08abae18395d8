"""duetime.fastapi: the lifespan, dependencies and responses of errors, by requests."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from duetime import Admin, App, GroupLimit, InvalidArgument, Schedules, Unavailable
from duetime.fastapi import ProducerDependency, TasksDependency, add_error_handlers, lifespan
from duetime_core.testing import FakeClock, LocalCluster
from fastapi import FastAPI
from fastapi.testclient import TestClient

packed: list[str] = []
counted = threading.Event()


async def place(item: str, producer: ProducerDependency) -> str:
    receipt = await producer.send("stall", {"item": item}, tags="pack", delay="1h")
    return receipt.message_id


async def pack_later(item: str, delay: str, tasks: TasksDependency) -> str:
    return (await tasks.tasks["pack"].alater(delay, item)).message_id


def fail(kind: str) -> None:
    raise Unavailable("away") if kind == "away" else InvalidArgument("wrong")


def make(server: str, *, works: bool = False) -> tuple[FastAPI, App]:
    tasks = App("stall", server)

    @tasks.task
    def pack(item: str) -> None:
        packed.append(item)

    @tasks.task(topic="parcels", per_key=1)
    def ship(order_id: int) -> None: ...

    @tasks.every("30m")
    def count() -> None:
        counted.set()

    api = FastAPI(lifespan=lifespan(tasks, works=works))
    api.post("/place")(place)
    api.post("/pack")(pack_later)
    api.post("/fail")(fail)
    add_error_handlers(api)
    return api, tasks


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(clock=FakeClock()) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def empty() -> None:
    packed.clear()


def test_application_sends_and_works_in_one_process(cluster: LocalCluster) -> None:
    api, _ = make(cluster.address, works=True)
    with TestClient(api) as client:
        assert client.post("/place", params={"item": "tea"}).json()
        assert client.post("/pack", params={"item": "milk", "delay": "1h"}).json()
        with Schedules(cluster.address) as schedules:
            until(lambda: [one.name for one in schedules.list("stall")] == ["count"])
        cluster.advance("1h")
        # The cluster has a call of another test, too.
        until(lambda: {"milk", "tea"} <= set(packed))
        assert counted.wait(60)
        with Admin(cluster.address) as admin:
            assert admin.group("stall").group.limits == [GroupLimit("parcels", None, 1, declared=True)]


def test_eager_mode_needs_no_server() -> None:
    api, tasks = make("127.0.0.1:1")
    with tasks.eager() as eager, TestClient(api) as client:
        client.post("/pack", params={"item": "tea", "delay": "1h"})
        assert packed == []
        eager.advance("1h")
    assert packed == ["tea"]


def test_errors_are_responses() -> None:
    api, tasks = make("127.0.0.1:1")
    with tasks.eager(), TestClient(api) as client:
        wrong = client.post("/pack", params={"item": "tea", "delay": "soon"})
        assert wrong.status_code == 422
        assert wrong.json()["detail"][0]["loc"] == ["body", "delay"]
        plain = client.post("/fail", params={"kind": "wrong"})
        assert plain.json() == {"detail": [{"type": "value_error", "loc": ["body"], "msg": "wrong"}]}
        away = client.post("/fail", params={"kind": "away"})
        assert (away.status_code, away.headers["Retry-After"]) == (503, "1")


def test_lifespan_fits_in_another_one(cluster: LocalCluster) -> None:
    _, tasks = make(cluster.address)
    steps: list[str] = []

    @asynccontextmanager
    async def own(api: FastAPI):  # type: ignore[no-untyped-def]
        steps.append("begin")
        async with lifespan(tasks)(api):
            yield
        steps.append("end")

    api = FastAPI(lifespan=own)
    api.post("/place")(place)
    with TestClient(api) as client:
        assert client.post("/place", params={"item": "tea"}).status_code == 200
    assert steps == ["begin", "end"]


def test_dependency_without_a_lifespan_says_so() -> None:
    api, _ = make("127.0.0.1:1")
    with pytest.raises(RuntimeError, match="the lifespan has not run"):
        TestClient(api).post("/place", params={"item": "tea"})
