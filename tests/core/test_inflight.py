"""Limit of concurrent calls, with the last tenth reserved for hosts that have few."""

import pytest
from duetime_core.errors import Overloaded
from duetime_core.limits.inflight import InFlightCalls


def test_a_greedy_host_leaves_the_last_tenth_to_others() -> None:
    calls = InFlightCalls(1_000)
    for number in range(900):
        assert calls.enter(f"ipv4:10.0.0.1:{number}") == "ipv4:10.0.0.1"
    with pytest.raises(Overloaded, match=r"900 calls of ipv4:10.0.0.1 are in flight, and the last tenth of 1000"):
        calls.enter("ipv4:10.0.0.1:5")
    for host in range(2, 12):
        for number in range(10):
            calls.enter(f"ipv4:10.0.0.{host}:{number}")
    with pytest.raises(Overloaded, match="1000 calls are in flight, the limit"):
        calls.enter("ipv4:10.0.0.99:1")
    calls.leave("ipv4:10.0.0.2")
    assert calls.enter("ipv4:10.0.0.99:1") == "ipv4:10.0.0.99"


def test_nodes_of_this_process_take_the_last_tenth_too() -> None:
    calls = InFlightCalls(20)
    for _ in range(20):
        calls.enter("within:gateway:1")
    with pytest.raises(Overloaded, match="20 calls are in flight"):
        calls.enter("within:gateway:1")


def test_calls_of_the_cluster_count_for_the_callers_that_they_are_made_for() -> None:
    calls = InFlightCalls(1_000)
    for peer in ("ipv4:10.0.0.1:1", "within:gateway:1"):
        for _ in range(450):
            assert calls.enter(peer, "user greedy") == "user greedy"
    for peer in ("ipv4:10.0.0.1:1", "within:gateway:1"):
        with pytest.raises(Overloaded, match="900 calls of user greedy are in flight"):
            calls.enter(peer, "user greedy")
        assert calls.enter(peer, "user other") == "user other"


def test_few_places_are_all_for_anybody() -> None:
    calls = InFlightCalls(2)
    held = [calls.enter("ipv4:10.0.0.1:1") for _ in range(2)]
    with pytest.raises(Overloaded):
        calls.enter("ipv4:10.0.0.1:1")
    for host in held:
        calls.leave(host)
    assert calls.enter("ipv6:%5B::1%5D:1") == "ipv6:%5B::1%5D"
