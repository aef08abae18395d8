"""Pictures of a run for docs/benchmarks.md, by matplotlib."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from bench import history
from bench.figures import FIGURES, ONE_PROCESS, PERCENTILES, RATES, TARGETS, Figure, ratio, value

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
COLOURS = {"duetime": "#d1495b", ONE_PROCESS: "#edae49", "postgres": "#336791", "echo": "#8d99ae"}
OTHERS = ("#edae49", "#66a182", "#8d6a9f")
RATE_FIGURES = ("accepted", "through", "sustained", "burst")
# Makes equal input give an equal file.
METADATA = {"Date": None}


def draw(result: dict[str, Any]) -> None:
    """Writes docs/pictures/*.svg."""
    FOLDER.mkdir(exist_ok=True)
    plt.rcParams |= {"svg.hashsalt": "duetime", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    systems = {"duetime": "DueTime", ONE_PROCESS: "DueTime, one process"}
    systems = {name: title for name, title in systems.items() if value(result, name, "accepted")}
    systems |= {name: one["title"] for name, one in result["systems"].items()}
    _save(_rates(result, systems), FOLDER / "rates.svg")
    _save(_lateness(result, systems), FOLDER / "lateness.svg")
    _save(_ratios(result), FOLDER / "ratios.svg")


def draw_history(runs: dict[str, dict[str, Any]], to: Path) -> None:
    """A panel for each figure: its ratio to PostgreSQL's in each run, whiskers for the spread of the rounds."""
    drawn, panels = plt.subplots(1, len(history.SHOWN), figsize=(2.2 * len(history.SHOWN), 3), squeeze=False)
    for panel, figure in zip(panels[0], history.SHOWN, strict=True):
        for system, title in history.SYSTEMS.items():
            spreads = history.rows(runs, figure, system)
            at = [number for number, spread in enumerate(spreads) if spread]
            found = [spread for spread in spreads if spread]
            if found:
                medians = [spread.median for spread in found]
                ends = [[one.median - one.low for one in found], [one.high - one.median for one in found]]
                panel.errorbar(at, medians, yerr=ends, marker="o", capsize=3, color=COLOURS[system], label=title)
                bound, _ = history.bound_of(figure, system)
                if bound is not None:
                    panel.axhline(bound, color=COLOURS[system], linewidth=1, linestyle=":")
        panel.set_title(history.NAMES[figure.name])
        panel.set_xticks(range(len(runs)), list(runs), rotation=40, ha="right")
        panel.set_ylim(bottom=0)
    panels[0][0].set_ylabel("share of PostgreSQL's figure")
    panels[0][0].legend()
    drawn.tight_layout()
    _save(drawn, to)


def _save(figure: Any, to: Path) -> None:
    figure.savefig(to, bbox_inches="tight", metadata=METADATA)
    plt.close(figure)


def _rates(result: dict[str, Any], systems: dict[str, str]) -> Any:
    """A panel for each rate; a bar for each system, its whisker the spread of the rounds."""
    titles = {
        "accepted": "accepted, batches of 256",
        "through": "50,000 with 1 s delay,\nSend to receive",
        "sustained": "delayed, sent and received\nwithout pause",
        "burst": "100,000 due, drained",
    }
    drawn, panels = plt.subplots(1, len(RATE_FIGURES), figsize=(11, 2.8))
    for panel, name in zip(panels, RATE_FIGURES, strict=True):
        _bars(panel, systems, [value(result, system, name) for system in systems], "thousand messages/s", 1000)
        panel.set_title(titles[name])
    drawn.tight_layout()
    return drawn


def _lateness(result: dict[str, Any], systems: dict[str, str]) -> Any:
    drawn, rows = plt.subplots(len(RATES), len(PERCENTILES), figsize=(9, 5))
    for row, rate in zip(rows, RATES, strict=True):
        for panel, name in zip(row, PERCENTILES, strict=True):
            spreads = [value(result, system, f"late {rate} {name}") for system in systems]
            _bars(panel, systems, spreads, "ms late", 1)
            panel.set_title(f"{rate:,}/s, {name}")
    drawn.tight_layout()
    return drawn


def _bars(panel: Any, systems: dict[str, str], spreads: list[Any], unit: str, divisor: int) -> None:
    for at, (name, spread) in enumerate(zip(systems, spreads, strict=True)):
        if spread is None:
            panel.text(at, 0, "not\nmeasured", ha="center", va="bottom", fontsize=7)
            continue
        ends = [[(spread.median - spread.low) / divisor], [(spread.high - spread.median) / divisor]]
        panel.bar(at, spread.median / divisor, yerr=ends, color=_colour(name, at), capsize=3, width=0.7)
    names = [title.removesuffix(" queue") for title in systems.values()]
    panel.set_xticks(range(len(systems)), names, rotation=40, ha="right")
    panel.set_ylabel(unit)


def _colour(name: str, at: int) -> str:
    return COLOURS.get(name) or OTHERS[at % len(OTHERS)]


def _ratios(result: dict[str, Any]) -> Any:
    """Each target's bound and DueTime's value, on a scale with better values to the right."""
    titles = {figure.name: figure for figure in FIGURES}
    rows = [
        (target, spread) for target in TARGETS if (spread := ratio(result, target.figure, target.other, target.system))
    ]
    drawn, panel = plt.subplots(figsize=(8, 0.34 * len(rows) + 0.8))
    for at, (target, spread) in enumerate(reversed(rows)):
        ends = sorted(_margin(target.at_most, target.bound, one) for one in (spread.low, spread.high))
        colour = "#3a7d44" if target.met(spread.median) else "#d1495b"
        panel.plot(ends, [at, at], color=colour, linewidth=3, alpha=0.4)
        panel.plot(_margin(target.at_most, target.bound, spread.median), at, "o", color=colour)
    panel.axvline(1.0, color="black", linewidth=1)
    panel.set_xscale("log", base=2)
    panel.set_yticks(range(len(rows)), [_row(titles[target.figure], target) for target, _ in reversed(rows)])
    panel.set_xlabel("share of the target that is reached; 1 and more: met")
    panel.xaxis.set_major_formatter(lambda at, _: f"{at:g}")
    return drawn


def _margin(at_most: bool, bound: float, measured: float) -> float:
    return bound / measured if at_most else measured / bound


def _row(figure: Figure, target: Any) -> str:
    title = figure.title.removesuffix(", messages/s").removesuffix(", ms")
    whose = "" if target.system == "duetime" else f" ({target.system})"
    return f"{title}: {'at most' if target.at_most else 'at least'} {target.bound:g} x {target.other}{whose}"
