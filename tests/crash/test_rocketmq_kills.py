"""RocketMQ's official clients while gateways and stores are killed with kill -9: no message is early or lost, no
rolled-back one is delivered, and no acknowledged one is redelivered.

The gate sends a few hundred by Python's; `make clients-kills` 20,000 by Python's and, where there is Go, by Go's, to a
group of push consumers too.
"""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import product
from pathlib import Path

import pytest
from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel

from tests.clients.fleet import GATEWAYS, Fleet
from tests.clients.ledger import TOPIC, Got, Kind, Ledger, Sent
from tests.tidy.sources import PROJECT

MESSAGES = int(os.environ.get("DUETIME_TEST_MESSAGES", "300"))
IS_LONG = MESSAGES > 1_000
PYTHON = (sys.executable, "-m", "tests.clients.killed")
GROUPS = ("simple", "push") if IS_LONG else ("simple",)
STORE_SETTINGS = {
    "transaction_timeout_ms": 2_000,
    "transaction_check_interval_ms": 1_000,
    # A producer may first answer several times that the outcome is unknown: unanswered sends take long.
    "transaction_checks_max": 60,
    "segment_bytes": 16 * 1024 * 1024,
}
KILLS_MIN = 4
DRAIN_S = 300.0
# Messages leased by a killed gateway are redelivered: a simple consumer's within a minute.
REST_S = 75.0 if IS_LONG else 17.0


class Clients:
    """The processes of clients, and their output."""

    def __init__(self, ledger: Ledger, home: Path, count: int) -> None:
        """`count`: of messages that each producer sends."""
        self._count = count
        self._ledger = ledger
        self._home = home
        self._heard = asyncio.Event()
        self._readers: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def running(self, program: Sequence[str], address: str, role: str, seed: int) -> AsyncIterator[None]:
        command = (*program, address, role, str(self._count), str(seed))
        decisions = self._home / "decisions"
        decisions.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "HOME": str(self._home), "CLIENTS_DECISIONS": str(decisions)}
        with (self._home / f"{role}-{seed}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=PROJECT, env=environment, stdout=PIPE, stderr=log
            )
        reader = asyncio.create_task(self._read(process))
        self._readers.append(reader)
        try:
            yield
        finally:
            # It may wait for a gateway for long, and has nothing to lose.
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reader

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):
                self._ledger.take(json.loads(line))
                self._heard.set()

    async def until(self, deadline_s: float, *, done: int) -> None:
        """Waits until `count` producers are done, and all messages have arrived. Raises: TimeoutError."""
        async with asyncio.timeout(deadline_s):
            while self._ledger.done_count < done or self._ledger.missing():
                self._heard.clear()
                await self._heard.wait()


async def kill(fleet: Fleet, dice: random.Random, ledger: Ledger, producers: int) -> Counter[str]:
    """Until all is sent, and some times at least."""
    killed: Counter[str] = Counter()
    while ledger.done_count < producers or killed.total() < KILLS_MIN:
        await fleet.pause(dice.choice([0.0, dice.uniform(0.0, 1.0), dice.uniform(1.0, 4.0)]))
        name = dice.choice(fleet.victims)
        await fleet.kill(name)
        killed[name] += 1
        print(name, "killed after", len(ledger.sent), "sends", flush=True)
    return killed


def go_program(folder: Path) -> Sequence[str]:
    """Go's client, built."""
    binary = folder / "go-client"
    subprocess.run(["go", "build", "-mod=readonly", "-o", binary, "."], cwd=PROJECT / "tests/clients/go", check=True)
    return (str(binary),)


async def make_topic(fleet: Fleet) -> None:
    async with make_channel(fleet.gateways[0].address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        await stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=4), timeout=60)


@pytest.mark.proof
@pytest.mark.timeout(240 + MESSAGES // 10)
async def test_kills_lose_nothing_of_official_clients(tmp_path: Path, dice: random.Random) -> None:
    ledger = Ledger(GROUPS)
    programs = [PYTHON, *([go_program(tmp_path)] if IS_LONG and shutil.which("go") else [])]
    producers = len(programs) * GATEWAYS
    clients = Clients(ledger, tmp_path / "clients", MESSAGES // producers)
    async with Fleet(tmp_path / "fleet", STORE_SETTINGS) as fleet:
        await make_topic(fleet)
        async with AsyncExitStack() as stack:
            for program, gateway, role in product(programs, fleet.gateways, ("produce", *GROUPS)):
                client = clients.running(program, gateway.address, role, dice.getrandbits(31))
                await stack.enter_async_context(client)
            killed = await kill(fleet, dice, ledger, producers)
            with suppress(TimeoutError):
                await clients.until(DRAIN_S, done=producers)
            await fleet.pause(REST_S)
    print(dict(killed), ledger.figures())
    assert ledger.missing() == {}
    faults = ledger.faults()
    assert not faults, f"{len(faults)} faults: {faults[:40]}"


def test_a_ledger_finds_violations() -> None:
    def taken(*lines: tuple[object, ...]) -> Ledger:
        ledger = Ledger(["simple"])
        for line in lines:
            ledger.take(list(line))
        return ledger

    sent = Sent("a", 100, Kind.DELAYED, ok=True)
    assert taken(sent).missing() == {"simple": [sent]}
    good = taken(sent, Got("simple", "a", 1, 100), Got("simple", "a", 2, 110), ("simple", "a", 120, "acked"))
    assert (good.missing(), good.faults()) == ({}, [])
    assert taken(sent, Got("simple", "a", 1, 99)).faults() == ["a came 1 ms early"]
    assert taken(Got("simple", "a", 1, 99)).faults() == ["a came, and was never sent"]
    rolled_back = Sent("a", 0, Kind.ROLLED_BACK, ok=True)
    assert taken(rolled_back, Got("simple", "a", 1, 99)).faults() == ["a came, and was rolled back"]
    not_begun = Sent("a", 0, Kind.COMMITTED, ok=False)
    assert taken(not_begun, Got("simple", "a", 1, 99)).faults() == ["a came, and was rolled back"]
    (again,) = taken(
        sent, Got("simple", "a", 1, 100), ("simple", "a", 110, "acked"), Got("simple", "a", 2, 120)
    ).faults()
    assert "after it was acknowledged" in again
