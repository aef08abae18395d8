"""The shop on a real cluster, whose clock the test moves."""

import threading
import time
from collections.abc import Iterator

import pytest
import shop
from duetime import Finder
from duetime.outbox import Relay
from duetime_core.pytest_plugin import RunningCluster
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session


@pytest.fixture
def client(duetime_cluster: RunningCluster) -> Iterator[TestClient]:
    consumer = shop.tasks.consumer()
    working = threading.Thread(target=consumer.run)
    working.start()
    with TestClient(shop.api) as client:
        yield client
    consumer.stop()
    working.join()
    shop.engine.dispose()


def relay() -> None:
    """Sends the time-outs of committed orders: `duetime outbox relay`."""
    Relay(shop.engine, outbox=shop.outbox).run(drain=True)


def state(client: TestClient, number: int) -> str:
    return next(one["state"] for one in client.get("/orders").json() if one["id"] == number)


def place(client: TestClient) -> int:
    answer = client.post("/orders", json={"item": "tea"})
    assert answer.status_code == 201
    return int(answer.json()["id"])


def test_unpaid_order_is_cancelled_after_30_minutes(client: TestClient, duetime_cluster: RunningCluster) -> None:
    number = place(client)
    relay()
    duetime_cluster.advance("29m")
    assert state(client, number) == "open"
    # A rest: the delay counts from the order, by the database's clock.
    duetime_cluster.advance("2m")
    deadline = time.monotonic() + 60
    while state(client, number) == "open":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert state(client, number) == "cancelled"
    assert client.post(f"/orders/{number}/pay").status_code == 409


def test_paid_order_has_no_timeout(client: TestClient, duetime_cluster: RunningCluster) -> None:
    number = place(client)
    relay()
    assert client.post(f"/orders/{number}/pay").json()["state"] == "paid"
    with Session(shop.engine) as session, Finder() as finder:
        order = session.get(shop.Order, number)
        assert order is not None
        assert finder.get(order.timeout_id).state == "cancelled"
    assert client.post("/orders/0/pay").status_code == 404
    assert client.post("/orders", json={"item": ""}).status_code == 422
