"""Searches that find nothing, beside a polite client.

Filters of the dearest kind over wide messages, finds by keys whose hashes collide, traces, resets and lists: as fast as
they are answered.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest
from duetime import Message, Producer
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc

from tests.hostile.bystander import Bystander, Phase
from tests.hostile.rig import Rig, told

TOPIC = "wide"
PROPERTIES = 150
# As many comparisons as an expression may have, none of which is ever true.
SQL = " OR ".join(f"property_{number:03d} > {10**6 + number}" for number in range(64))
CALL_TIMEOUT_S = 60.0

Call = Callable[[], None]


def fill(address: str, count: int) -> None:
    """Messages with many properties, in one queue; their keys have one hash with `BBBB`."""
    wide = {f"property_{number:03d}": f"{number * 7}" for number in range(PROPERTIES)}
    with Producer(address, timeout=timedelta(seconds=CALL_TIMEOUT_S)) as producer:
        for first in range(0, count, 256):
            rows = (wide | {"number": f"{number}"} for number in range(first, first + 256))
            batch = [Message(TOPIC, b"x" * 64, keys=["AaAa"], properties=row, queue=0) for row in rows]
            outcomes = producer.send_many(batch, errors="return")
            assert not [one for one in outcomes if isinstance(one, Exception)]
        producer.send(TOPIC, b"traced", id="traced", queue=0)


class Adversary:
    """Its calls, each a search as a whole."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._gateway = gateway_pb2_grpc.GatewayStub(self._channel)
        self._offset = 0
        self.passed = 0

    def close(self) -> None:
        self._channel.close()

    def glance(self) -> None:
        """The cheapest call that a store answers, to compare with."""
        request = gateway_pb2.PullRequest(topic=TOPIC, max_count=1)
        assert self._gateway.Pull(request, timeout=CALL_TIMEOUT_S).messages

    def pull(self) -> None:
        request = gateway_pb2.PullRequest(topic=TOPIC, offset=self._offset, sql=SQL)
        answer = self._gateway.Pull(request, timeout=CALL_TIMEOUT_S)
        assert not answer.messages
        assert answer.next_offset > self._offset
        self.passed += answer.next_offset - self._offset
        self._offset = answer.next_offset % answer.max_offset

    def receive(self) -> None:
        request = consumer_pb2.ReceiveRequest(group="hostile", topic=TOPIC, sql=SQL)
        assert not self._gateway.Receive(request, timeout=CALL_TIMEOUT_S).messages
        self.reset()

    def reset(self) -> None:
        request = consumer_pb2.ResetGroupRequest(name="hostile", topic=TOPIC, at_ms=1)
        self._gateway.ResetGroup(request, timeout=CALL_TIMEOUT_S)

    def find(self) -> None:
        request = gateway_pb2.QueryMessagesRequest(topic=TOPIC, key="BBBB")
        assert not self._gateway.QueryMessages(request, timeout=CALL_TIMEOUT_S).messages

    def trace(self) -> None:
        request = consumer_pb2.TraceMessageRequest(id="traced")
        assert self._gateway.TraceMessage(request, timeout=CALL_TIMEOUT_S).events

    def list(self) -> None:
        self._gateway.ListTopics(gateway_pb2.ListTopicsRequest(), timeout=CALL_TIMEOUT_S)
        self._gateway.ListLanes(gateway_pb2.ListLanesRequest(), timeout=CALL_TIMEOUT_S)
        self._gateway.DescribeTopic(gateway_pb2.DescribeTopicRequest(name=TOPIC), timeout=CALL_TIMEOUT_S)


@contextmanager
def at_it(address: str, *names: str) -> Iterator[list[Adversary]]:
    """A thread for each named call, which repeats it until the end; it fails if its call does."""
    over, faults = threading.Event(), list[BaseException]()
    adversaries = [Adversary(address) for _ in names]

    def repeat(call: Call) -> None:
        try:
            while not over.is_set():
                try:
                    call()
                except grpc.RpcError as error:
                    # A search may be slower than the gateway waits: that is the adversary's own trouble.
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
        except BaseException as error:
            faults.append(error)

    threads = [
        threading.Thread(target=repeat, args=(getattr(adversary, name),))
        for adversary, name in zip(adversaries, names, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield adversaries
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for adversary in adversaries:
            adversary.close()
    assert faults == []


def tell(who: str, phase: Phase, **more: Any) -> None:
    figures = {"send_p50": phase.send_p50, "send_p99": phase.send_p99, "late_p50": phase.late_p50}
    told(beside=who, sent=phase.sent, **figures, late_p99=phase.late_p99, late_max=phase.late_max, **more)


@pytest.mark.proof
def test_a_costly_filter_delays_no_other(start: Callable[..., Rig]) -> None:
    rig = start()
    fill(rig.address, 2_048)
    with Bystander(rig.address) as beside:
        with at_it(rig.address, "glance", "glance"):
            beside.measure(1.0)
            cheap = beside.measure(2.0)
        tell("2 glance", cheap)
        with at_it(rig.address, "pull", "pull") as pullers:
            during = beside.measure(2.0)
        tell("2 pull", during, passed=sum(one.passed for one in pullers))
    assert during.errors == {}
    # Loosely, for machines that do much else: it was seconds.
    assert during.send_p50 < 5 * cheap.send_p50 + 100
    assert during.late_p50 < 5 * cheap.late_p50 + 250
    assert all(one.passed for one in pullers)


@pytest.mark.proof
@pytest.mark.timeout(480)
def test_searches_of_all_kinds_keep_nobody_waiting(start: Callable[..., Rig]) -> None:
    rig = start()
    fill(rig.address, 16_384)
    with Bystander(rig.address) as beside:
        tell("nobody", beside.measure(10.0))
        # As many callers of cheap calls: they take as much of the machine.
        with at_it(rig.address, *("glance",) * 8):
            beside.measure(2.0)
            cheap = beside.measure(10.0)
        tell("8 glance", cheap)
        phases = {}
        for names in (
            ("pull",),
            ("pull", "pull"),
            ("pull",) * 8,
            ("receive", "receive"),
            ("find", "find"),
            ("trace", "trace"),
            ("reset", "list"),
            ("pull", "pull", "receive", "find", "trace", "list"),
        ):
            who = " ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
            with at_it(rig.address, *names):
                beside.measure(2.0)
                phases[who] = beside.measure(10.0)
            metrics = rig.stores[0].metrics()
            tell(who, phases[who], scanned_s=metrics["duetime_store_scanning_seconds"])
    for who, phase in phases.items():
        assert phase.errors == {}, who
        assert phase.send_p50 <= 2 * cheap.send_p50 + 5, who
        assert phase.late_p50 <= 2 * cheap.late_p50 + 20, who
