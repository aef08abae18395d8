"""Somebody makes topics by the thousand: they are made, and others' sends do not wait for it."""

from collections import Counter
from collections.abc import Callable, Sequence

import grpc
import pytest
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2

from tests.hostile.bystander import Bystander, ratio
from tests.hostile.rig import Rig, told

MESSAGES_AT_ONCE = 4_096
CALL_TIMEOUT_S = 60
# A call makes as many topics as it has time for, and its repetition makes the others.
ATTEMPTS_MAX = 20
# Processor time of gateway and store for a message to a new topic, as a multiple of that for one to a known topic.
COST_MAX = 20


def messages_to(count: int, named: str) -> list[message_pb2.Message]:
    """One message to each of `count` topics."""
    return [message_pb2.Message(topic=f"new-{one}", body=b"x", id=f"{named}{one}") for one in range(count)]


def send(rig: Rig, messages: Sequence[message_pb2.Message]) -> Counter[str]:
    """Outcomes; a repetition may change each of them."""
    outcomes: Counter[str] = Counter()
    with grpc.insecure_channel(rig.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        for first in range(0, len(messages), MESSAGES_AT_ONCE):
            request = gateway_pb2.SendRequest(messages=messages[first : first + MESSAGES_AT_ONCE])
            answer = stub.Send(request, timeout=CALL_TIMEOUT_S)
            outcomes.update(one.fault.reason or "stored" for one in answer.results)
            assert all(one.fault.retriable for one in answer.results if one.HasField("fault"))
    return outcomes


def send_until_stored(rig: Rig, messages: Sequence[message_pb2.Message]) -> list[int]:
    """The number stored after each attempt, until all are."""
    stored: list[int] = []
    while len(stored) < ATTEMPTS_MAX and (not stored or stored[-1] < len(messages)):
        stored.append(send(rig, messages)["stored"])
    assert stored[-1] == len(messages)
    return stored


def cpu_s(rig: Rig) -> float:
    return sum(node.cpu_s for node in (*rig.stores, *rig.gateways))


@pytest.mark.proof
def test_ten_thousand_new_topics_beside_others(start: Callable[..., Rig]) -> None:
    rig = start()
    with Bystander(rig.address) as beside:
        alone = beside.measure(5.0)
        stored = send_until_stored(rig, messages_to(10_000, "first"))
        during = beside.phase()
    told(stored=stored, alone=alone, during=during, ratio=ratio(during, alone))
    assert during.errors == {}


@pytest.mark.proof
def test_cost_of_a_new_topic_is_a_small_multiple_of_a_send(start: Callable[..., Rig]) -> None:
    rig, costs_s = start(), list[float]()
    for named in ("first", "second"):
        began_s = cpu_s(rig)
        attempts = send_until_stored(rig, messages_to(10_000, named))
        costs_s.append((cpu_s(rig) - began_s) / len(attempts))
        told(named=named, stored=attempts, cost_s=costs_s[-1])
    assert costs_s[0] < COST_MAX * costs_s[1]
