"""The figures of a run, their targets, and ratios over rounds with their spread."""

import statistics
from dataclasses import dataclass
from typing import Any

# Above this share, a round shows the machine's other guests rather than the measured system.
STOLEN_SHARE_MAX = 0.10


@dataclass(frozen=True)
class Figure:
    """A figure measured in each round."""

    name: str
    title: str
    lower_is_better: bool = False


# DueTime's lane for messages for any time, beside the lanes of its levels.
ANY_TIME = "any time"
# DueTime in one process, the default of `duetime up`, beside the cluster of processes.
ONE_PROCESS = "one process"
RATES = (1_000, 5_000)
# Measured also at a lower rate if one of the systems may be too slow for these.
SLOW_RATE = 100
PERCENTILES = ("p50", "p99", "p99.9")
LATENESS = [
    Figure(f"late {rate} {percentile}", f"lateness at {rate:,}/s, {percentile}, ms", lower_is_better=True)
    for rate in (SLOW_RATE, *RATES)
    for percentile in PERCENTILES
]
FIGURES = [
    Figure("batch", "accepted to be read at once, batches of 256, messages/s"),
    Figure("pack", "the same as packs of 256 bodies, messages/s"),
    Figure("single", "single Sends, 64 in flight, messages/s"),
    Figure("producer", "accepted from AsyncProducer.send_many, 256 Message objects a call, messages/s"),
    Figure("bodies", "accepted from AsyncProducer.send_many, 256 bodies a call, messages/s"),
    Figure("tasks", "AsyncProducer.send from 1,024 tasks, messages/s"),
    Figure("threads", "Producer.send from 64 threads, messages/s"),
    Figure("transactions", "prepared and committed, batches of 256, transactions/s"),
    Figure("plain", "batches of 256 in turns with the next three, messages/s"),
    Figure("plain again", "the same once more: the noise of these ratios"),
    Figure("all or none", "batches of 256 that are stored all or none, messages/s"),
    Figure("without ids", "batches of 256 to a store without ids for repeats, messages/s"),
    Figure("received", "received and acknowledged, leases of 1,024, one group, messages/s"),
    Figure("received by ten", "the same by ten groups of one topic, deliveries/s"),
    Figure("handled", "handled by a Consumer's empty coroutine, messages/s"),
    Figure("run", "run by an App's empty coroutine of two arguments, messages/s"),
    Figure("accepted", "accepted with a delay, batches of 256, messages/s"),
    Figure("accepted messages", "the same, with Message objects built meanwhile, messages/s"),
    Figure("scattered", "the same, each with a delay of its own, messages/s"),
    Figure("through", "50,000 with 1 s delay, from first Send to last receive, messages/s"),
    Figure("through less delay", "the same, with the second of delay subtracted"),
    Figure("sustained", "delayed 1 s, sent and received without pause, delay subtracted, messages/s"),
    Figure("burst", "100,000 due, from release to last receive, messages/s"),
    *LATENESS,
]


@dataclass(frozen=True)
class Target:
    """A bound on a system's figure as a share of another's, in the same round."""

    figure: str
    other: str
    bound: float
    at_most: bool = False
    system: str = "duetime"

    def met(self, ratio: float) -> bool:
        return ratio <= self.bound if self.at_most else ratio >= self.bound


TARGETS = [
    Target("batch", "echo", 0.40),
    Target("single", "echo", 0.75),
    Target("single", "echo", 0.80, system=ONE_PROCESS),
    Target("sustained", "echo", 0.15),
    Target("received", "echo", 0.15),
    Target("transactions", "duetime", 0.25),
    Target("run", "duetime", 0.8),
    Target("all or none", "duetime", 1.0),
    # The ids may cost 5 %.
    Target("without ids", "duetime", 1 / 0.95, at_most=True),
    Target("accepted", "postgres", 1.0),
    Target("accepted", "postgres", 1.1, system=ONE_PROCESS),
    Target("through", "postgres", 1.2),
    Target("sustained", "postgres", 1.0),
    Target("sustained", "postgres", 1.25, system=ONE_PROCESS),
    Target("burst", "postgres", 0.8),
    Target("burst", "postgres", 0.9, system=ONE_PROCESS),
    *(
        Target(f"late {rate} {percentile}", "postgres", bound, at_most=True, system=system)
        for rate in RATES
        for percentile, system, bound in (
            *(("p50", "duetime", 1.5), ("p50", ONE_PROCESS, 1.3)),
            *(("p99", "duetime", 1.6), ("p99", ONE_PROCESS, 1.5)),
        )
    ),
    *(Target(name, "duetime", 0.9, system=ANY_TIME) for name in ("accepted", "scattered", "through less delay")),
    *(Target(name, "duetime", 0.9, system=ANY_TIME) for name in ("sustained", "burst")),
    *(
        Target(f"late {rate} {percentile}", "duetime", 1 / 0.9, at_most=True, system=ANY_TIME)
        for rate in RATES
        for percentile in ("p50", "p99")
    ),
]


@dataclass(frozen=True)
class Floor:
    """The lower bound of a figure that only DueTime has."""

    figure: str
    bound: float
    system: str = "duetime"
    # The bound scales with the machine: `bound` applies where PostgreSQL accepts this rate.
    where_accepted: float = 0.0

    def of(self, result: dict[str, Any]) -> float | None:
        """The bound on the machine of a run; None: unknown."""
        if not self.where_accepted:
            return self.bound
        accepted = value(result, "postgres", "accepted")
        return self.bound * accepted.median / self.where_accepted if accepted else None


# Figures of the SDK's ways in and out.
SDK_FIGURES = ("producer", "bodies", "tasks", "threads", "handled", "run", "received", "received by ten")
FLOORS = [
    Floor("threads", 15_000),
    Floor("handled", 60_000),
    Floor("received", 130_000, where_accepted=430_000),
    Floor("received", 180_000, ONE_PROCESS, where_accepted=430_000),
]
LATE_5000_MS_MAX = {"p50": 5.0, "p99": 20.0}
# The echo has no delay: figures of delayed messages are compared with its batches.
_OF_BATCHES = ("batch", "accepted messages", "producer", "received", "received by ten", "sustained")
_OF_PACKS = ("pack", "accepted", "bodies")
ECHO_FIGURES = dict.fromkeys(_OF_BATCHES, "batch") | dict.fromkeys(_OF_PACKS, "pack") | {"single": "single"}
# Figures of one system alone are compared with this.
_BESIDE_PLAIN = ("plain again", "all or none", "without ids")
BESIDE_BATCHES = ("transactions", *_BESIDE_PLAIN)
_SAME = {"transactions": "batch", "run": "handled"} | dict.fromkeys(_BESIDE_PLAIN, "plain")
# The highest cost of a delivery to one of ten groups, in multiples of one to the only group.
TEN_GROUPS_COST_MAX = 2.0


@dataclass(frozen=True)
class Spread:
    """A median and the range of its rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread | None":
        return cls(statistics.median(values), min(values), max(values)) if values else None


def value(result: dict[str, Any], system: str, figure: str) -> Spread | None:
    """A system's figure over the rounds; None: not measured."""
    found = [one["figures"].get(system, {}).get(figure) for one in result["rounds"]]
    return Spread.of([each for each in found if each is not None])


def counterpart(figure: str, other: str) -> str:
    """The other system's figure for the comparison."""
    return ECHO_FIGURES.get(figure, "") if other == "echo" else _SAME.get(figure, figure)


def ratio(result: dict[str, Any], figure: str, other: str, system: str = "duetime") -> Spread | None:
    """A system's figure as a share of another's, both of the same round; None: one of them was not measured."""
    ratios = []
    for one in result["rounds"]:
        ours = one["figures"].get(system, {}).get(figure)
        theirs = one["figures"].get(other, {}).get(counterpart(figure, other))
        if ours is not None and theirs:
            ratios.append(ours / theirs)
    return Spread.of(ratios)


def judged(result: dict[str, Any]) -> list[tuple[Target, Spread]]:
    """The measured targets, with their ratios."""
    pairs = [(target, ratio(result, target.figure, target.other, target.system)) for target in TARGETS]
    return [(target, spread) for target, spread in pairs if spread is not None]


def stolen_rounds(result: dict[str, Any]) -> list[int]:
    """The rounds, from 1, in which other guests of the host took too much processor time."""
    return [number for number, one in enumerate(result["rounds"], 1) if one["stolen"] > STOLEN_SHARE_MAX]
