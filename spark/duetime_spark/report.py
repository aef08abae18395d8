"""The page of a result: one self-contained file, light or dark like the reader's screen."""

import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from duetime_spark.charts import PAGES
from duetime_spark.charts.parts import NOTHING, Cell, Chart, ChartPage, Grid, Tile, moment

_TEMPLATE = Path(__file__).with_name("report.html")
_LINES = 200


def page(found: dict[str, Any]) -> str:
    """HTML of a result, given as in JSON."""
    made: ChartPage = PAGES[found["job"]](found)
    charts = {}
    body = ['<div class="tiles">', *map(_tile, made.tiles), "</div>"]
    for number, part in enumerate(made.parts):
        name = f"part-{number}"
        if isinstance(part, Chart):
            figure = json.loads(part.figure.to_json())
            charts[name] = {"data": figure["data"], "layout": figure["layout"]}
            body.append(_section(part, f'<div class="chart" id="{name}"></div>'))
        else:
            body.append(_section(part, _table(part)))
    if found["findings"]:
        rows = [(one["path"], one["position"], Cell(one["words"], "words")) for one in found["findings"]]
        grid = Grid("Damage", "Skipped; the rest is counted.", ("file", "#byte", "damage"), rows)
        body.append(_section(grid, _table(grid)))
    shards = ", ".join(f"shard {one['shard']} of {one['name']}" for one in found["shards"])
    about = f"At {moment(found['snapshot_at_ms'])} UTC (the last record): {shards}. All times are UTC."
    return Template(_TEMPLATE.read_text()).substitute(
        title=escape(f"DueTime: {made.heading}"),
        heading=escape(made.heading),
        about=escape(about),
        body="\n".join(body),
        # No text of the data may end the script.
        charts=json.dumps(charts).replace("</", "<\\/"),
        plotly=get_plotlyjs(),
    )


def _tile(tile: Tile) -> str:
    return f'<div class="tile {tile.mood}"><b>{escape(tile.value)}</b><span>{escape(tile.words)}</span></div>'


def _section(part: Chart | Grid, inside: str) -> str:
    words = f"<p>{escape(part.words)}</p>" if part.words else ""
    return f"<section><h2>{escape(part.title)}</h2>{words}{inside}</section>"


def _table(grid: Grid) -> str:
    def mark(head: str) -> str:
        return ' class="number"' if head.startswith("#") else ""

    heads = "".join(f"<th{mark(head)}>{escape(head.lstrip('#'))}</th>" for head in grid.heads)
    rows = []
    for row in grid.rows[:_LINES]:
        cells = [_cell(value, mark(head)) for value, head in zip(row, grid.heads, strict=True)]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    left = len(grid.rows) - _LINES
    more = f"<p>and {left:,} more rows: --json has all</p>" if left > 0 else ""
    return f'<div class="scroll"><table><tr>{heads}</tr>{"".join(rows)}</table></div>{more}'


def _cell(value: Any, mark: str) -> str:
    if isinstance(value, Cell):
        return f'<td class="{value.kind}">{escape(value.text)}</td>'
    text = f"{value:,}" if isinstance(value, int) and mark else NOTHING if value is None else str(value)
    return f"<td{mark}>{escape(text)}</td>"
