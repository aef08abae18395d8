"""Somebody makes topics by the thousand: they are made, and others' sends do not wait for it."""

import time
from collections import Counter
from collections.abc import Callable

import grpc
import pytest
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2

from tests.hostile.bystander import Bystander, ratio
from tests.hostile.rig import Rig, told

TOPICS_AT_ONCE = 4_096


def send_to_new(rig: Rig, count: int, at_once: int = TOPICS_AT_ONCE) -> Counter[str]:
    """One message to each of `count` topics; outcomes."""
    outcomes: Counter[str] = Counter()
    with grpc.insecure_channel(rig.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        for first in range(0, count, at_once):
            numbers = range(first, min(first + at_once, count))
            messages = [message_pb2.Message(topic=f"new-{number}", body=b"x", id=f"id{number}") for number in numbers]
            answer = stub.Send(gateway_pb2.SendRequest(messages=messages), timeout=10)
            outcomes.update(one.fault.reason or "stored" for one in answer.results)
    return outcomes


@pytest.mark.proof
def test_one_send_to_two_thousand_new_topics(start: Callable[..., Rig]) -> None:
    rig = start()
    with Bystander(rig.address) as beside:
        outcomes = send_to_new(rig, 2_000)
        # A slow machine makes fewer in the time of one call, and says so.
        assert outcomes.keys() <= {"stored", "TOPIC_NOT_MADE"}
        assert outcomes["stored"] > 500
        again = send_to_new(rig, 2_000)
        assert again == {"stored": 2_000}
        assert beside.phase().errors == {}


@pytest.mark.proof
def test_ten_thousand_new_topics_beside_others(start: Callable[..., Rig]) -> None:
    rig = start()
    with Bystander(rig.address) as beside:
        alone = beside.measure(5.0)
        spent = {node.name: node.cpu_s for node in rig.nodes}
        started = time.monotonic()
        outcomes = send_to_new(rig, 10_000)
        took_s = time.monotonic() - started
        during = beside.phase()
    cpu = {node.name: node.cpu_s - spent[node.name] for node in rig.nodes}
    told(seconds=took_s, outcomes=dict(outcomes), **{name.replace("-", "_"): value for name, value in cpu.items()})
    told(alone=alone, during=during, ratio=ratio(during, alone))
    assert outcomes == {"stored": 10_000}
    assert during.errors == {}
    assert took_s < 10
