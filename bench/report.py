"""Shows the last run again: its tables, also as Markdown and in docs/benchmarks.md, and its pictures."""

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from bench.any_time_tables import any_time_tables
from bench.lone_tables import lone_tables
from bench.model import modelled
from bench.rocketmq_tables import rocketmq_tables
from bench.tables import Table, losses, remarks, tables
from bench.webhook_tables import webhook_tables

LAST = Path(__file__).with_name("last.json")
DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PICTURES = {
    "rates": "Messages a second of each system, with the spread of the rounds",
    "lateness": "Lateness of each system, with the spread of the rounds",
    "ratios": "How much of each target is reached, with the spread of the rounds",
}
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def show(result: dict[str, Any], console: Console) -> None:
    """Prints the results of `bench.__main__`."""
    draw_tables(_all(result), console)
    for remark in remarks(result):
        console.print(remark, highlight=False)


def _all(result: dict[str, Any]) -> list[Table]:
    model = modelled(result)
    found = [
        *tables(result),
        *lone_tables(result.get("lone", {})),
        *any_time_tables(result.get("any_time", {})),
        *rocketmq_tables(result.get("rocketmq", {})),
        *webhook_tables(result.get("webhooks", {})),
    ]
    return [*found, *([model] if model.rows else [])]


def show_any_time(found: dict[str, Any], console: Console) -> None:
    """Prints the results of `bench.any_time`."""
    draw_tables(any_time_tables(found), console)


def keep_any_time(found: dict[str, Any]) -> None:
    """Adds results of `bench.any_time` to the last run, and prints them."""
    _keep("any_time", found)
    show_any_time(found, Console(width=None if sys.stdout.isatty() else 130))


def keep_webhooks(found: dict[str, Any]) -> None:
    """Adds results of `bench.webhooks` to the last run, and prints them."""
    _keep("webhooks", found)
    draw_tables(webhook_tables(found), Console(width=None if sys.stdout.isatty() else 130))


def _keep(part: str, found: dict[str, Any]) -> None:
    last = json.loads(LAST.read_text()) if LAST.exists() else {}
    last[part] = last.get(part, {}) | found
    LAST.write_text(json.dumps(last, indent=2) + "\n")


def draw_tables(found: list[Table], console: Console) -> None:
    """Prints tables."""
    for table in found:
        drawn = RichTable(title=table.title, title_justify="left")
        for number, heading in enumerate(table.headings):
            drawn.add_column(heading, justify="right" if number else "left")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)


def markdown(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    versions = [f"{system['title']}: {system['version']}" for system in result["systems"].values()]
    on = ", ".join(filter(None, result["machine"].values()))
    parts = [f"Measured on {result['cores']} cores: {on}.", "", *(f"- {version}" for version in versions), ""]
    for name, says in PICTURES.items():
        if (DOCUMENT.parent / "pictures" / f"{name}.svg").is_file():
            parts += [f"![{says}](pictures/{name}.svg)", ""]
    for table in _all(result):
        parts += [f"### {table.title[0].upper()}{table.title[1:]}", "", *_lines(table), ""]
    parts += ["### Where DueTime is behind", "", *_bullets(losses(result) or ["nowhere"]), ""]
    return "\n".join([*parts, "### Notes on these figures", "", *_bullets(remarks(result))])


def _bullets(texts: list[str]) -> list[str]:
    """Bullets wrapped like the documents' prose."""
    return [textwrap.fill(text, 100, initial_indent="- ", subsequent_indent="  ") for text in texts]


def _lines(table: Table) -> list[str]:
    rule = ["---", *("---:" for _ in table.headings[1:])]
    return [f"| {' | '.join(row)} |" for row in (table.headings, rule, *table.rows)]


def into(document: Path, text: str) -> None:
    """Replaces the text between the document's marks."""
    before = document.read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not pattern.search(before):
        raise SystemExit(f"{document} has no lines {BEGIN} and {END}")
    document.write_text(pattern.sub(lambda _: f"{BEGIN}\n{text}\n{END}", before))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--into", type=Path, nargs="?", const=DOCUMENT, help="write them into docs/benchmarks.md")
    parser.add_argument("--pictures", action="store_true", help="draw docs/pictures (needs matplotlib)")
    arguments = parser.parse_args()
    result = json.loads(LAST.read_text())
    if arguments.pictures:
        from bench.pictures import draw

        draw(result)
    if arguments.into:
        into(arguments.into, markdown(result))
    elif arguments.markdown:
        print(markdown(result))
    elif not arguments.pictures:
        show(result, Console(width=None if sys.stdout.isatty() else 130))
    return 0


if __name__ == "__main__":
    sys.exit(main())
