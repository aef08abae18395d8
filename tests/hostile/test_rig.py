"""The rig itself: a bystander alone has low latencies, and a process that dies is told."""

import signal
from collections.abc import Callable

import pytest

from bench.processes import wait_until
from tests.hostile.bystander import Bystander
from tests.hostile.rig import DESCRIPTORS, Rig


@pytest.mark.proof
def test_a_bystander_alone_is_served_and_accounted_for(start: Callable[..., Rig]) -> None:
    rig = start()
    with Bystander(rig.address) as beside:
        phase = beside.measure(2.0)
    assert phase.errors == {}
    assert phase.sent > 20
    assert phase.early == 0
    store = rig.stores[0]
    assert 0 < store.open_files < DESCRIPTORS
    assert 0 < store.rss_mb <= store.peak_mb
    assert any(name.startswith("duetime_store_") for name in store.metrics())


@pytest.mark.proof
def test_an_exited_process_is_reported(start: Callable[..., Rig]) -> None:
    rig = start()
    assert rig.dead() == []
    rig.retry.send(signal.SIGKILL)
    wait_until(lambda: not rig.retry.alive, 10, "the retry service ends")
    assert len(rig.dead()) == 1
    rig.retry.restart()
    assert rig.dead() == []
