"""The rounds: each one measures every figure of every system in turn."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.clients import from_threads, handle, one_by_one, run_tasks
from bench.consume import consume, stock
from bench.consumer import Arrivals, Consumer, consumer
from bench.figures import ONE_PROCESS, PERCENTILES, RATES, SLOW_RATE
from bench.load import Send, Target, closed_loop, make, open_loop, produce, send_count
from bench.machine import Meanwhile
from bench.memory import CachedHoles
from bench.peers import BODY, BURST_DELAY_S, DELAY_S, FAR_DELAY_S, Peer, Sender
from bench.peers.anytime import AnyTime
from bench.peers.duetime import DueTime
from bench.processes import cpu_s
from bench.transactions import transact

BATCH = 256
BATCHES_IN_FLIGHT = 8
SINGLES_IN_FLIGHT = 64
# Concurrent senders of one message per call through the SDK.
SENDING_TASKS, SENDING_THREADS = 1_024, 64
# Turns of rates whose ratio must be exact to a few percent.
TURNS = 6
# A peer that accepts less than this gets proportionally fewer messages for the burst and for the 50,000.
ACCEPTED_MIN = 20_000
# The margin that a rate must leave.
HEADROOM = 1.5


@dataclass(frozen=True)
class Plan:
    """Durations and counts of a run."""

    rounds: int
    seconds: float
    sustained_seconds: float
    lateness_seconds: float
    through_count: int = 50_000
    burst_count: int = 100_000
    # Received and acknowledged: by one group, and by each of ten; by a Consumer.
    received_count: int = 200_000
    received_by_ten_count: int = 20_000
    handled_count: int = 100_000
    # Schedules due in a minute; 0: none are measured.
    schedules: int = 100_000
    # Messages posted by webhooks, for each rate; 0: none are measured.
    webhooks: int = 20_000
    # Queues of each topic. A reader has one long poll for all queues of a shard.
    queues: int = 1
    # Whether to fill memory before each measurement (memory.py), which takes up to a minute the first time.
    fills_memory: bool = True


# 30,000 messages at the lower rate: 30 of them are later than p99.9.
PLAN = Plan(rounds=3, seconds=2.0, sustained_seconds=3.0, lateness_seconds=30.0)
QUICK = Plan(
    rounds=1, seconds=1.0, sustained_seconds=1.0, lateness_seconds=2.0, schedules=0, webhooks=0, fills_memory=False
)


class WrongError(Exception):
    """Messages came early, twice or not at all: the rate is worthless."""


class Meter:
    """Processor time of this process and of others since its creation."""

    def __init__(self, others: dict[str, int]) -> None:
        self._pids = {"client": os.getpid(), **others}
        self._began = {name: cpu_s(pid) for name, pid in self._pids.items()}

    def us_each(self, count: int) -> dict[str, float]:
        """Microseconds per message."""
        return {name: (cpu_s(pid) - self._began[name]) / count * 1e6 for name, pid in self._pids.items()}


Figures = dict[str, float]


@dataclass
class Contest:
    """The systems, all started, and idle except for the measured one."""

    plan: Plan
    echo: tuple[str, int]
    duetime: DueTime
    # The other flush mode: measured in the first round, to show the cost of syncing.
    unsynced: DueTime
    # A cluster that stores no message ids.
    forgetful: DueTime
    # All services in one process.
    together: DueTime
    peers: list[Peer]
    memory: CachedHoles
    say: Callable[[str], None]
    cpu_us: dict[str, dict[str, float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def run(self) -> list[dict[str, Any]]:
        """Each round's figures by system, and its share of stolen processor time."""
        return [self._round(number) for number in range(self.plan.rounds)]

    def _round(self, number: int) -> dict[str, Any]:
        meanwhile = Meanwhile()
        found: dict[str, Figures] = {"echo": asyncio.run(self._echo())}
        extra = {"duetime async": self.unsynced} if number == 0 else {}
        clusters = {"duetime": self.duetime, ONE_PROCESS: self.together, **extra}
        for name, cluster in clusters.items():
            found[name] = asyncio.run(self._at_once(name, cluster, number))
        self.say("all or none, and without ids")
        found["duetime"] |= asyncio.run(self._in_turns())
        any_time = AnyTime(self.duetime)
        systems: dict[str, Peer] = {**clusters, **{peer.name: peer for peer in (any_time, *self.peers)}}
        # The order rotates: no system is always first after the pause, nor always after the same other.
        order = list(systems) if number % 2 == 0 else list(reversed(systems))
        for measure in (self._accepted, self._through, self._sustained, self._lateness, self._burst):
            for name in order:
                self.say(f"round {number + 1} of {self.plan.rounds}, {measure.__name__.strip('_')}: {name}")
                figures = found.setdefault(name, {})
                if measure != self._lateness:
                    # A peer too slow for a rate of lateness.
                    self._fill_memory()
                try:
                    figures |= measure(name, systems[name], number, figures)
                except WrongError as error:
                    if isinstance(systems[name], DueTime):
                        raise
                    self.faults.append(f"{name}, {measure.__name__.strip('_')}: {error}")
                systems[name].settle()
                # Its writes are flushed to the disk now, and not in another system's turn.
                os.sync()
        return {"stolen": meanwhile.stolen(), "figures": found}

    def _fill_memory(self) -> None:
        if self.plan.fills_memory:
            self.memory.fill()

    async def _echo(self) -> Figures:
        address, pid = self.echo
        target = Target(address, echo=True)
        figures = await self._calls("echo", target, {"echo": pid})
        await target.close()
        return figures

    async def _at_once(self, name: str, cluster: DueTime, number: int) -> Figures:
        """Messages without a delay, as for the echo."""
        self._fill_memory()
        address = cluster.cluster.address
        target = Target(address, echo=False)
        figures = await self._calls(name, target, cluster.cluster.pids())
        await target.close()
        figures["producer"] = await produce(
            address, "accepted", batch=BATCH, in_flight=BATCHES_IN_FLIGHT, seconds=self.plan.seconds
        )
        figures["bodies"] = await produce(
            address,
            "accepted",
            batch=BATCH,
            in_flight=BATCHES_IN_FLIGHT,
            seconds=self.plan.seconds,
            of_bodies=True,
        )
        figures["tasks"] = await one_by_one(address, "accepted", tasks=SENDING_TASKS, seconds=self.plan.seconds)
        figures["threads"] = await asyncio.to_thread(
            from_threads, address, "accepted", threads=SENDING_THREADS, seconds=self.plan.seconds
        )
        self.say(f"transactions: {name}")
        meter = Meter(cluster.cluster.pids())
        figures["transactions"], total = await transact(
            address, "accepted", batch=BATCH, in_flight=BATCHES_IN_FLIGHT, seconds=self.plan.seconds
        )
        self.cpu_us[f"{name} transactions"] = meter.us_each(total)
        return figures | await self._received(name, cluster, number)

    async def _in_turns(self) -> Figures:
        """Batches of one size without a delay, of several kinds: short turns of each, repeatedly."""
        topic, address = "accepted", self.duetime.cluster.address
        targets: dict[str, Target] = {
            "plain": Target(address, echo=False),
            "plain again": Target(address, echo=False),
            "all or none": Target(address, echo=False, whole=topic),
            "without ids": Target(self.forgetful.cluster.address, echo=False),
        }
        rates: dict[str, list[float]] = {name: [] for name in targets}
        for turn in range(TURNS):
            for name in sorted(targets, reverse=turn % 2 == 1):
                rate, _ = await closed_loop(
                    _sends(targets[name], topic),
                    batch=BATCH,
                    in_flight=BATCHES_IN_FLIGHT,
                    seconds=self.plan.seconds / 4,
                )
                rates[name].append(rate)
        for target in targets.values():
            await target.close()
        return {name: float(np.mean(found)) for name, found in rates.items()}

    async def _received(self, name: str, cluster: DueTime, number: int) -> Figures:
        """Leased and acknowledged; deliveries to all groups count."""
        figures = {}
        self.say(f"handled: {name}")
        topic = f"handled-{number}"
        cluster.make_topic(topic)
        await stock(cluster.cluster.address, topic, self.plan.handled_count)
        figures["handled"] = await handle(cluster.cluster.address, topic, count=self.plan.handled_count)
        self.say(f"run: {name}")
        topic = f"run-{number}"
        cluster.make_topic(topic)
        figures["run"] = await run_tasks(cluster.cluster.address, topic, count=self.plan.handled_count)
        for kind, groups, count in (
            ("received", 1, self.plan.received_count),
            ("received by ten", 10, self.plan.received_by_ten_count),
        ):
            self.say(f"{kind}: {name}")
            topic = f"{kind.replace(' ', '-')}-{number}"
            cluster.make_topic(topic)
            await stock(cluster.cluster.address, topic, count)
            meter = Meter(cluster.cluster.pids())
            figures[kind] = await consume(cluster.cluster.address, topic, count=count, groups=groups)
            self.cpu_us[f"{name} {kind}"] = meter.us_each(count * groups)
        return figures

    async def _calls(self, name: str, target: Target, pids: dict[str, int]) -> Figures:
        figures = {}
        for kind, batch, in_flight in (("batch", BATCH, BATCHES_IN_FLIGHT), ("single", 1, SINGLES_IN_FLIGHT)):
            self.say(f"{kind}: {name}")
            meter = Meter(pids)
            figures[kind], total = await closed_loop(
                lambda count: target.send(make("accepted", count)),
                batch=batch,
                in_flight=in_flight,
                seconds=self.plan.seconds,
            )
            self.cpu_us[f"{name} {kind}"] = meter.us_each(total)
        meter = Meter(pids)
        figures["pack"], total = await closed_loop(
            lambda count: target.send_bodies("accepted", [BODY] * count),
            batch=BATCH,
            in_flight=BATCHES_IN_FLIGHT,
            seconds=self.plan.seconds,
        )
        self.cpu_us[f"{name} pack"] = meter.us_each(total)
        return figures

    def _accepted(self, name: str, peer: Peer, number: int, figures: Figures) -> Figures:
        async def accepting(connecting: Awaitable[Sender]) -> float:
            sender = await connecting
            rate, _ = await closed_loop(
                lambda count: sender.send(count, FAR_DELAY_S),
                batch=peer.batch,
                in_flight=peer.in_flight,
                seconds=self.plan.seconds,
            )
            await sender.close()
            return rate

        found = {"accepted": asyncio.run(accepting(peer.sender("accepted")))}
        if isinstance(peer, DueTime):
            found["accepted messages"] = asyncio.run(accepting(peer.message_sender("accepted")))
            found["scattered"] = asyncio.run(accepting(peer.scattered_sender("accepted")))
        return found

    def _through(self, name: str, peer: Peer, number: int, figures: Figures) -> Figures:
        count, topic = _scaled(self.plan.through_count, figures), f"through-{name.replace(' ', '-')}-{number}"
        peer.make_topic(topic)
        with consumer(peer.receiver(topic)) as far_end:
            started, arrivals = asyncio.run(_send_all(peer, topic, count, DELAY_S, far_end))
        took_s = arrivals.last_at - started
        return {"through count": count, "through": count / took_s, "through less delay": count / (took_s - DELAY_S)}

    def _sustained(self, name: str, peer: Peer, number: int, figures: Figures) -> Figures:
        rate, cpu_us = sustained(peer, f"sustained-{name.replace(' ', '-')}-{number}", self.plan.sustained_seconds)
        if cpu_us:
            self.cpu_us[f"{name} sustained"] = cpu_us
        return {"sustained": rate}

    def _lateness(self, name: str, peer: Peer, number: int, figures: Figures) -> Figures:
        found: Figures = {}
        for rate in (SLOW_RATE, *RATES) if any(one.is_slow for one in self.peers) else RATES:
            if figures["accepted"] < rate * HEADROOM:
                self.faults.append(f"{name}: no lateness at {rate:,}/s, it accepts {figures['accepted']:,.0f}/s")
                continue
            late = lateness(peer, f"late-{rate}-{name.replace(' ', '-')}-{number}", rate, self.plan.lateness_seconds)
            found |= {f"late {rate} {percentile}": late_ms for percentile, late_ms in late.items()}
        return found

    def _burst(self, name: str, peer: Peer, number: int, figures: Figures) -> Figures:
        if not peer.bursts:
            return {}
        count, topic = _scaled(self.plan.burst_count, figures), f"burst-{name.replace(' ', '-')}-{number}"
        peer.make_topic(topic)
        peer.hold(BURST_DELAY_S)
        try:
            with consumer(peer.receiver(topic), held=not peer.holds) as far_end:
                asyncio.run(_send(peer, topic, count, BURST_DELAY_S))
                time.sleep(BURST_DELAY_S + DELAY_S / 4)
                started = time.monotonic()
                if peer.holds:
                    peer.release(BURST_DELAY_S)
                else:
                    far_end.release()
                arrivals = check(asyncio.run(far_end.all(count)), count)
        finally:
            peer.release(BURST_DELAY_S)
        return {"burst count": count, "burst": count / (arrivals.last_at - started)}


def _sends(target: Target, topic: str) -> Send:
    return lambda count: target.send(make(topic, count))


def sustained(peer: Peer, topic: str, seconds: float) -> tuple[float, dict[str, float]]:
    """(messages/s through the delayed path under constant load, DueTime's processor us per message by process)."""

    async def flood() -> tuple[float, int, Arrivals]:
        sender = await peer.sender(topic)
        started = time.monotonic()
        _, sent = await closed_loop(
            lambda count: sender.send(count, DELAY_S), batch=peer.batch, in_flight=peer.in_flight, seconds=seconds
        )
        await sender.close()
        return started, sent, check(await far_end.all(sent), sent)

    peer.make_topic(topic)
    with consumer(peer.receiver(topic)) as far_end:
        meter = Meter(peer.cluster.pids()) if isinstance(peer, DueTime) else None
        started, sent, arrivals = asyncio.run(flood())
        cpu_us = meter.us_each(sent) if meter else {}
    return sent / (arrivals.last_at - started - DELAY_S), cpu_us


def lateness(peer: Peer, topic: str, rate: int, seconds: float) -> dict[str, float]:
    """Percentiles of received minus due, in ms, at an open-loop rate."""

    async def steady() -> tuple[int, Arrivals]:
        sender = await peer.sender(topic)
        sent = await open_loop(lambda count: sender.send(count, DELAY_S), rate=rate, seconds=seconds)
        await sender.close()
        return sent, await far_end.all(sent)

    peer.make_topic(topic)
    with consumer(peer.receiver(topic), timed=True) as far_end:
        sent, arrivals = asyncio.run(steady())
        check(arrivals, sent)
    found = dict(zip(PERCENTILES, map(float, np.percentile(arrivals.late_ms, (50, 99, 99.9))), strict=True))
    found["max"] = max(arrivals.late_ms)
    if arrivals.stored_late_ms:
        stored = map(float, np.percentile(arrivals.stored_late_ms, (50, 99, 99.9)))
        found |= {f"stored {name}": late_ms for name, late_ms in zip(PERCENTILES, stored, strict=True)}
        found |= latest(np.array(arrivals.late_ms), np.array(arrivals.stored_late_ms))
    return found


def latest(late_ms: npt.NDArray[np.float64], stored_late_ms: npt.NDArray[np.int64]) -> dict[str, float]:
    """The time of the latest 0.1 % by part, and the number of their stalls: runs of messages in order of arrival, with
    gaps of less than 0.1 % of all between them."""
    count = max(len(late_ms) // 1_000, 1)
    worst = np.sort(np.argsort(late_ms)[-count:])
    stored = float(stored_late_ms[worst].mean())
    stalls = 1 + int(np.count_nonzero(np.diff(worst) > count))
    return {"latest stored": stored, "latest after": float(late_ms[worst].mean()) - stored, "latest stalls": stalls}


def check(arrivals: Arrivals, sent: int) -> Arrivals:
    """Raises WrongError unless each message came once and none early."""
    if arrivals.early or arrivals.doubled or arrivals.count != sent:
        raise WrongError(
            f"{sent} sent, {arrivals.count} received, {arrivals.doubled} of them twice, {arrivals.early} early"
        )
    return arrivals


async def _send_all(peer: Peer, topic: str, count: int, delay_s: float, far_end: Consumer) -> tuple[float, Arrivals]:
    """(time of the first send, arrivals)"""
    started = await _send(peer, topic, count, delay_s)
    return started, check(await far_end.all(count), count)


async def _send(peer: Peer, topic: str, count: int, delay_s: float) -> float:
    sender = await peer.sender(topic)
    # Connections are warm before the clock runs.
    started = time.monotonic()
    await send_count(lambda taken: sender.send(taken, delay_s), count, batch=peer.batch, in_flight=peer.in_flight)
    await sender.close()
    return started


def _scaled(count: int, figures: Figures) -> int:
    """A smaller count for a peer too slow for the full one."""
    share = min(1.0, figures["accepted"] / ACCEPTED_MIN)
    return max(BATCH, int(count * share) // BATCH * BATCH) if share < 1 else count
