"""Clients that fill the memory of a gateway and a store: uploads that stop, answers nobody takes, large requests."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from duetime import Message, Producer
from duetime.v1 import gateway_pb2, message_pb2, subscriptions_pb2

from bench.processes import wait_until
from tests.hostile.bystander import Bystander, Phase
from tests.hostile.raw import Raw, many, request
from tests.hostile.rig import Peaks, Rig, told

GATEWAY_MB_MAX = 512
STORE_MB_MAX = 768
# After the connections are closed: 150 MB, of which 80 are the gateway's own.
RELEASED_MB_MAX = 256
CONNECTIONS = 1_500
WAIT_S = 60
MIB = 1024 * 1024
SEND, PULL = "/duetime.v1.Gateway/Send", "/duetime.v1.Gateway/Pull"
SUBSCRIBE = "/duetime.v1.Gateway/Subscribe"


@contextmanager
def measured(rig: Rig, what: str, seconds: float) -> Iterator[None]:
    """Tells memory and a bystander's latencies, before and while the body runs; the memory has to stay within goals."""
    with Bystander(rig.address) as beside:
        before, gateway, store = beside.measure(seconds), rig.gateways[0].pid, rig.stores[0].pid
        with Peaks(gateway, store) as peaks:
            yield
            after = beside.phase()
        told(what=what, gateway_mb=peaks.mb[gateway], store_mb=peaks.mb[store])
        _tell(before, after)
        assert peaks.mb[gateway] < GATEWAY_MB_MAX
        assert peaks.mb[store] < STORE_MB_MAX
        assert after.errors == {}


def _tell(before: Phase, after: Phase) -> None:
    told(before=before)
    told(during=after)


@pytest.mark.proof
def test_uploads_that_stop_in_the_middle_take_little_memory_and_are_cut_off(start: Callable[..., Rig]) -> None:
    rig = start()
    with measured(rig, "100 half messages", 3.0):
        with ThreadPoolExecutor(20) as threads:
            raws = list(threads.map(lambda _: _half(rig.address), range(100)))
        time.sleep(5.0)
        metrics = rig.gateways[0].metrics()
        told(refused=metrics['duetime_traffic_refused_total{what="uploads"}'])
        assert metrics['duetime_traffic_refused_total{what="uploads"}'] > 50
        for raw in raws:
            raw.close()


def _half(address: str) -> Raw:
    raw = Raw(address)
    raw.greet()
    raw.upload(28 * MIB, 32 * MIB, SEND, 5.0)
    return raw


@pytest.mark.proof
def test_unread_answers_take_little_memory_and_are_cut_off(start: Callable[..., Rig]) -> None:
    rig = start()
    with Producer(rig.address, timeout="30s") as producer:
        for _ in range(4):
            producer.send_many([Message("large", bytes(1 * MIB), queue=0)] * 5)
    pull = gateway_pb2.PullRequest(topic="large", queue=0, max_count=1_024, max_bytes=16 * MIB).SerializeToString()
    with measured(rig, "150 unread pulls", 3.0):
        raws = many(rig.address, 150, lambda raw: raw.send(request(PULL, 1, pull)))
        time.sleep(3.0)
        assert rig.gateways[0].metrics()["duetime_answer_bytes"] > MIB
        # Taken by nobody, they end with their connections.
        assert sum(raw.socket.fileno() >= 0 for raw in raws) == 150
        deadline = time.monotonic() + 30
        while (left := rig.gateways[0].metrics()["duetime_answer_bytes"]) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert left == 0
        for raw in raws:
            raw.close()


@pytest.mark.proof
def test_a_gateway_releases_the_memory_of_many_connections_that_read_nothing(start: Callable[..., Rig]) -> None:
    rig = start(descriptors=4_096)
    gateway = rig.gateways[0]
    with Producer(rig.address, timeout="30s") as producer:
        for _ in range(4):
            producer.send_many([Message("large", bytes(1 * MIB), queue=0)] * 5)
    pull = gateway_pb2.PullRequest(topic="large", queue=0, max_count=1_024, max_bytes=16 * MIB).SerializeToString()
    with measured(rig, f"{CONNECTIONS} unread pulls", 3.0):
        raws = many(rig.address, CONNECTIONS, lambda raw: raw.send(request(PULL, 1, pull)))
        wait_until(lambda: gateway.metrics()["duetime_answer_bytes"] > MIB, WAIT_S, "answers are made")
        wait_until(lambda: not gateway.metrics()["duetime_answer_bytes"], WAIT_S, "unread answers are cut off")
        for raw in raws:
            raw.close()
    wait_until(lambda: gateway.rss_mb < RELEASED_MB_MAX, WAIT_S, "the memory is released")
    told(released_mb=gateway.rss_mb)
    assert "Traceback" not in gateway.log.read_text()
    assert "exception" not in gateway.log.read_text()


@pytest.mark.proof
def test_unread_subscriptions_take_little_memory_and_are_ended(start: Callable[..., Rig]) -> None:
    rig = start()
    with Producer(rig.address, timeout="30s") as producer:
        for _ in range(4):
            producer.send_many([Message("large", bytes(1 * MIB // 2), queue=0)] * 10)
    subscribe = subscriptions_pb2.SubscribeRequest(credit_bytes=16 * MIB, topic="large")
    subscribe.queues.add(queue=0)
    with measured(rig, "150 unread subscriptions", 3.0):
        raws = many(rig.address, 150, lambda raw: raw.send(request(SUBSCRIBE, 1, subscribe.SerializeToString())))
        time.sleep(3.0)
        assert rig.gateways[0].metrics()["duetime_gateway_subscriptions"] > 10
        deadline = time.monotonic() + 60
        while (left := rig.gateways[0].metrics()["duetime_gateway_subscriptions"] - 1) > 0:
            assert time.monotonic() < deadline, f"{left} subscriptions are left"
            time.sleep(0.5)
        assert rig.gateways[0].metrics()["duetime_answer_bytes"] < MIB
        assert rig.stores[0].metrics()["duetime_answer_bytes"] < MIB
        for raw in raws:
            raw.close()


@pytest.mark.proof
def test_polite_producers_of_large_requests_take_turns(start: Callable[..., Rig]) -> None:
    rig = start()
    with measured(rig, "4 producers of 28 MiB", 3.0), ThreadPoolExecutor(4) as threads:
        stored = list(threads.map(lambda number: _produce(rig.address, number), range(4)))
        told(stored=sum(stored))
        assert sum(stored) >= 4 * 7


def _produce(address: str, number: int) -> int:
    """Messages stored of some requests of 28 MiB; one that is refused for now is repeated."""
    send = gateway_pb2.SendRequest(
        messages=[message_pb2.Message(topic=f"large-{number}", body=bytes(4 * MIB - 1))] * 7
    ).SerializeToString()
    stored = refused = 0
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(SEND, None, gateway_pb2.SendResponse.FromString)
        until = time.monotonic() + 12
        while time.monotonic() < until:
            try:
                response = call(send, timeout=30)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                refused += 1
                time.sleep(0.2)
            else:
                faults = {result.fault.reason for result in response.results if result.HasField("fault")}
                assert faults <= {"TOO_MANY_REQUESTS", "SHARD_OVERLOADED", "REQUESTS_EXHAUSTED"}, faults
                stored += sum(not result.HasField("fault") for result in response.results)
    told(producer=number, stored=stored, refused=refused)
    return stored
