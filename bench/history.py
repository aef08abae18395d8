"""Several runs in a row: how each figure of DueTime stood to PostgreSQL's of its own run, as a table and a picture."""

import json
from pathlib import Path
from typing import Any

from bench.figures import FIGURES, ONE_PROCESS, PERCENTILES, RATES, TARGETS, Figure, Spread, ratio
from bench.tables import Table

OTHER = "postgres"
SYSTEMS = {"duetime": "cluster", ONE_PROCESS: ONE_PROCESS}
# What is shown, and its title in the picture.
NAMES = {name: name for name in ("accepted", "sustained", "burst")} | {
    f"late {rate} {percentile}": f"late {percentile}, {rate:,}/s" for percentile in PERCENTILES[:2] for rate in RATES
}
SHOWN = [figure for name in NAMES for figure in FIGURES if figure.name == name]


def read(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """Runs as bench/last.json has them, by the names of their files, in the order given.

    Raises:
        ValueError: a file is no run.
    """
    runs: dict[str, dict[str, Any]] = {}
    for path in paths:
        run = json.loads(path.read_text())
        if not isinstance(run, dict) or "rounds" not in run:
            raise ValueError(f"{path} is no run: it has no rounds")
        name = path.stem if path.stem not in runs else str(path)
        runs[name] = run
    return runs


def rows(runs: dict[str, dict[str, Any]], figure: Figure, system: str) -> list[Spread | None]:
    """The ratio in each run; None: one of both was not measured."""
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
    """The target's bound, and whether it is the most that may be."""
    for target in TARGETS:
        if (target.figure, target.other, target.system) == (figure.name, OTHER, system):
            return target.bound, target.at_most
    return None, False
