"""Relays that are killed: every message of a committed transaction enters its topic once, all others never."""

import random
import signal
import subprocess
import sys
import threading
from typing import IO

import pytest
from duetime import Message
from duetime_core.testing import LocalCluster

from tests.outbox.killed import OPTIONS, STEPS
from tests.outbox.shop import SOON_S, Shop, doubled, new_topic, stored
from tests.rounds import one_by_one
from tests.seeds import seed

KILLS_COUNT = 4
# How long a process that is killed at random has worked.
LIFE_S_MAX = 0.4


def start(shop: Shop, server: str, step: str) -> "subprocess.Popen[str]":
    url = shop.engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "tests.outbox.killed", url, server, step]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output: IO[str] | None = process.stdout
    assert output is not None
    assert output.readline() == "running\n", process.communicate(timeout=SOON_S)[1]
    return process


def drained(shop: Shop, server: str) -> None:
    """Another relay gets a dead one's rows once their leases end."""
    while shop.status().waiting:
        with shop.engine.begin() as connection:
            connection.execute(shop.outbox.table.update().values(next_at_ms=0))
        shop.drain(server, **OPTIONS)


@pytest.mark.parametrize("step", one_by_one(STEPS))
def test_relay_killed_at_a_step_leaves_nothing_out_and_doubles_nothing(
    shop: Shop, cluster: LocalCluster, step: str
) -> None:
    topic = new_topic()
    bodies = [b"%d" % n for n in range(170)]
    shop.order(*(Message(topic, body) for body in bodies))
    process = start(shop, cluster.address, step)
    _, errors = process.communicate(timeout=SOON_S)
    assert process.returncode == -signal.SIGKILL, errors
    assert 50 <= len(shop.rows()) <= 120
    drained(shop, cluster.address)
    found = stored(cluster, topic)
    assert doubled(found) == []
    assert sorted(found) == sorted(bodies)


@pytest.mark.proof
def test_relays_killed_at_random_leave_nothing_out_and_double_nothing(shop: Shop, cluster: LocalCluster) -> None:
    chance = random.Random(seed())
    topic, committed, enough, over = new_topic(), [], threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            bodies = [b"%d" % (number + n) for n in range(chance.randint(1, 20))]
            number += len(bodies)
            with shop.engine.connect() as connection, connection.begin() as transaction:
                shop.outbox.send_many(connection, [Message(topic, body, sharding_key="k") for body in bodies])
                if number % 3:
                    transaction.commit()
                    committed.extend(bodies)
                    if len(committed) > 100:
                        enough.set()
                else:
                    transaction.rollback()
            over.wait(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    lives = random.Random(seed() + 1)
    try:
        for _ in range(KILLS_COUNT):
            relays = [start(shop, cluster.address, "never") for _ in range(2)]
            for relay in relays:
                over.wait(lives.uniform(0, LIFE_S_MAX))
                relay.kill()
            for relay in relays:
                relay.communicate(timeout=SOON_S)
        # The kills may be over before on a slow machine.
        assert enough.wait(SOON_S)
    finally:
        over.set()
        writer.join()
    drained(shop, cluster.address)
    found = stored(cluster, topic)
    assert doubled(found) == []
    # All have one key, and one writer.
    assert found == committed
