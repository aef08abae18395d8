"""Results of `bench.lone` as tables."""

from typing import Any

from bench.tables import Table

HEADINGS = ["clients", "system", "messages/s", "p50, ms", "p99, ms", "client, µs", "server, µs", "switches"]
# (clients, figure, bound as a share of PostgreSQL's, whether it is an upper bound, title)
TARGETS = (
    ("1", "p50", 3.6, True, "p50 of 1 client"),
    ("8", "rate", 0.4, False, "messages/s of 8 clients"),
    ("32", "rate", 0.6, False, "messages/s of 32 clients"),
    ("32", "p99", 2.0, True, "p99 of 32 clients"),
)


def lone_tables(found: dict[str, Any]) -> list[Table]:
    """A table of all figures, and one of the ratios that have a target."""
    table = Table("one message at a time, synced before answered; processor time and switches per message", HEADINGS)
    for count, by_system in found.items():
        for name, one in by_system.items():
            cells = [f"{one['rate']:,.0f}", f"{one['p50']:.2f}", f"{one['p99']:.2f}"]
            cells += [f"{one[key]:.0f}" for key in ("client_us", "server_us")]
            table.rows.append([count, name, *cells, f"{one['switches']:.1f}"])
    beside = Table("one message at a time beside PostgreSQL", ["", "system", "ratio", "target"])
    for count, figure, bound, at_most, title in TARGETS:
        by_system = found.get(count, {})
        theirs = by_system.get("postgres", {}).get(figure)
        for name, one in by_system.items():
            if theirs and name != "postgres":
                ratio = one[figure] / theirs
                met = "met" if (ratio <= bound if at_most else ratio >= bound) else "MISSED"
                beside.rows.append([title, name, f"{ratio:.2f}", f"{'<=' if at_most else '>='} {bound:.2f} {met}"])
    return [one for one in (table, beside) if one.rows]
