"""A shard of three store processes on this machine, whose copies can be killed and stopped one by one."""

import asyncio
import json
import os
import random
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from urllib.request import urlopen

from duetime.v1 import store_pb2, store_pb2_grpc
from duetime_core.rpc.serving import make_channel
from prometheus_client.parser import text_string_to_metric_families

MIB = 1024 * 1024
DEADLINE_S = 60.0
# Entries under way at any time, at most: the store's UNCOMMITTED_MAX.
BEHIND_MAX = 16
LEVELS = "1s 2s"
# Longer than a busy machine keeps a copy from its turn: without a fault the leader stays.
STEADY_ELECTION_MS = 3_000
QUICK = {"copies-election-ms": "1000"}


# Below the ports that systems give to clients: a copy opens its port only when it leads.
PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports without a listener. No other process of the tests gets them while this one runs."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().choice(PORTS)
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(f"\0duetime-test-port-{port}")
        except OSError:
            mark.close()
            continue
        # Open until the process ends.
        mark.detach()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
    return found


class Trio:
    """The processes, by the numbers of their copies, and a client of the one that leads.

    No supervisor restarts a copy after the loss of its leadership. So the election timeout is STEADY_ELECTION_MS;
    kills.py has QUICK, the store's default.
    """

    def __init__(self, root: Path, members: int = 3, *, rejoins: bool = False, **settings: str) -> None:
        """`rejoins`: copies with empty directories rejoin the group, under the numbers in `current`."""
        self.root, self.settings, self.rejoins = root, settings, rejoins
        self.current: dict[int, int] = {}
        self.numbers = list(range(1, members + 1))
        self.founded, self.group = members, "77"
        ports = free_ports(3 * members)
        self.peer_ports = dict(zip(self.numbers, ports[2 * members :], strict=True))
        self.ports = dict(zip(self.numbers, ports[:members], strict=True))
        self.probe_ports = dict(zip(self.numbers, ports[members : 2 * members], strict=True))
        self.processes: dict[int, Process] = {}
        # Ports of their metrics.
        self._metrics: dict[int, int] = {}

    @property
    def address(self) -> str:
        """All copies, as clients of the shard know them."""
        return "|".join(f"127.0.0.1:{port}" for port in self.ports.values())

    async def __aenter__(self) -> "Trio":
        await asyncio.gather(*(self.start(number) for number in self.numbers))
        self.channel = make_channel(self.address)
        self.stub = store_pb2_grpc.StoreStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        for number in list(self.processes):
            await self.kill(number)

    def copies_of(self, number: int) -> str:
        """The setting `copies` of a copy."""
        return ",".join(f"{member}=127.0.0.1:{port}" for member, port in self.peer_ports.items())

    def program_of(self, number: int) -> list[str]:
        return ["duetime_store"]

    def data(self, number: int) -> Path:
        return self.root / str(number)

    def address_of(self, number: int) -> str:
        """A copy's address for the others."""
        return f"127.0.0.1:{self.peer_ports[number]}"

    @property
    def copies(self) -> str:
        """All addresses, as operators know them."""
        return ",".join(f"{number}={self.address_of(number)}" for number in self.peer_ports)

    async def prepare(self, old: int = 0) -> int:
        """Starts a copy with a new number on an empty directory; at the service port of one that does not run, if that
        is to be replaced."""
        new = max(self.ports) + 1
        ports = free_ports(3)
        self.ports[new] = self.ports.get(old, ports[0])
        self.peer_ports[new], self.probe_ports[new] = ports[1:]
        self.numbers = [number for number in self.numbers if number != old] + [new]
        await self.start(new)
        return new

    async def start(self, number: int) -> None:
        """Starts a copy; it follows once this returns."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
        environment |= {"DUETIME_SUPERVISED": "1", "DUETIME_DELAY_LEVELS": LEVELS}
        settings = {
            "data-dir": str(self.data(number)),
            "port": str(self.ports[number]),
            "probe-port": str(self.probe_ports[number]),
            "copies": self.copies_of(number),
            "copy-number": str(number),
            "copies-group": self.group,
            "copies-join": str(number > self.founded).lower(),
            "copies-rejoin": str(self.rejoins).lower(),
            "advertise-port": str(self.ports[1]),
            "segment-bytes": str(MIB),
            "checkpoint-ms": "200",
            "copies-election-ms": str(STEADY_ELECTION_MS),
            "reserve-bytes": "0",
            "log-level": "WARNING",
            **self.settings,
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *self.program_of(number), *flags), env=environment, stdout=PIPE
        )
        self.processes[number] = process
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            self._metrics[number] = json.loads(await process.stdout.readline())["metrics_port"]

    async def kill(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Ends a copy, and returns when it has ended."""
        process = self.processes.pop(number)
        if process.returncode is None:
            process.send_signal(how)
        async with asyncio.timeout(DEADLINE_S):
            await process.wait()

    async def leader(self) -> int:
        """The number of a copy that serves; waits until there is one. After a handover use `leads`: the former leader
        serves until it has heard of it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for number in list(self.processes):
                    if await self.serves(number):
                        return number
                await asyncio.sleep(0.02)

    async def leads(self, number: int) -> None:
        """Returns once the copy serves, and no other one."""
        async with asyncio.timeout(DEADLINE_S):
            while [other for other in list(self.processes) if await self.serves(other)] != [number]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def is_heard(self, leader: int, number: int) -> bool:
        """Whether the leader hears the copy, which has nearly all entries. Blocking."""
        current = str(self.current.get(number, number))
        try:
            with urlopen(f"http://127.0.0.1:{self._metrics[leader]}/metrics", timeout=DEADLINE_S) as answer:
                families = text_string_to_metric_families(answer.read().decode())
        except OSError:
            return False
        else:
            found = {
                sample.name: sample.value
                for family in families
                for sample in family.samples
                if sample.name.startswith("duetime_store_copy") and sample.labels == {"copy": current}
            }
        return found.get("duetime_store_copy_heard") == 1 and found["duetime_store_copy_behind_entries"] < BEHIND_MAX

    async def revive(self) -> None:
        """Starts the copies that do not run, as a supervisor does."""
        ended = [number for number, process in self.processes.items() if process.returncode is not None]
        for number in ended:
            del self.processes[number]
        await asyncio.gather(*(self.start(number) for number in self.numbers if number not in self.processes))

    async def caught_up(self) -> None:
        """Ends the leader in good order, by which it hands over; then the others."""
        await self.kill(await self.leader(), signal.SIGTERM)

    async def serves(self, number: int) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.ports[number])
        except OSError:
            return False
        writer.close()
        return True

    async def describe(self) -> store_pb2.DescribeResponse:
        return await self.stub.Describe(store_pb2.DescribeRequest(), timeout=DEADLINE_S, wait_for_ready=True)
