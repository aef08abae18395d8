"""Several runs in a row: the ratio of each DueTime figure to PostgreSQL's of the same run, as a table and a picture."""

import json
from pathlib import Path
from typing import Any

from bench.figures import FIGURES, ONE_PROCESS, PERCENTILES, RATES, TARGETS, Figure, Spread, ratio
from bench.tables import Table

OTHER = "postgres"
SYSTEMS = {"duetime": "cluster", ONE_PROCESS: ONE_PROCESS}
# The shown figures, with their titles in the picture.
NAMES = {name: name for name in ("accepted", "sustained", "burst")} | {
    f"late {rate} {percentile}": f"late {percentile}, {rate:,}/s" for percentile in PERCENTILES[:2] for rate in RATES
}
SHOWN = [figure for name in NAMES for figure in FIGURES if figure.name == name]


def read(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """Runs in the form of bench/last.json, by file name, in the order given.

    Raises:
        ValueError: a file is not a run.
    """
    runs: dict[str, dict[str, Any]] = {}
    for path in paths:
        run = json.loads(path.read_text())
        if not isinstance(run, dict) or "rounds" not in run:
            raise ValueError(f"{path} is not a run: it has no rounds")
        name = path.stem if path.stem not in runs else str(path)
        runs[name] = run
    return runs


def rows(runs: dict[str, dict[str, Any]], figure: Figure, system: str) -> list[Spread | None]:
    """The ratio in each run; None: one of the two was not measured."""
    return [ratio(run, figure.name, OTHER, system) for run in runs.values()]


def table_of(runs: dict[str, dict[str, Any]]) -> Table:
    """A row for each figure of each of DueTime's systems, a column for each run."""
    table = Table("DueTime's figures as shares of PostgreSQL's in the same run", ["", *runs, "target"])
    for system, title in SYSTEMS.items():
        for figure in SHOWN:
            spreads = rows(runs, figure, system)
            if any(spreads):
                cells = [f"{spread.median:.2f}" if spread else "-" for spread in spreads]
                bound, at_most = bound_of(figure, system)
                target = "" if bound is None else f"{'<=' if at_most else '>='} {bound:.2f}"
                table.rows.append([f"{figure.title} ({title})", *cells, target])
    return table


def bound_of(figure: Figure, system: str) -> tuple[float | None, bool]:
    """The target's bound, and whether it is an upper bound."""
    for target in TARGETS:
        if (target.figure, target.other, target.system) == (figure.name, OTHER, system):
            return target.bound, target.at_most
    return None, False
