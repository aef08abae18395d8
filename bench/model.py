"""What several shards and gateways would carry, by the processor time a message that a run measured.

Nothing of it is measured: each process has a core of its own, as fast as one here, and shares nothing with others but
the network. A topic's queues are spread over all shards, and all gateways are used alike.
"""

from typing import Any

from bench.tables import Table

COUNTS = {"store": 4, "gateway": 4}
# Of a core that a process uses, so that there is room for what comes unevenly.
SHARE = 0.7
# What is carried, and the row of processor times that tells its cost.
LOADS = {
    "accepted, batches of 256": "duetime batch",
    "delayed, sent and received": "duetime sustained",
    "received and acknowledged": "duetime received",
}
USED = {"store": "stores", "gateway": "gateways", "scheduler": "schedulers", "client": "clients"}


def modelled(result: dict[str, Any]) -> Table:
    """A row for each load that the run has the cost of; clients are those that send or, in the last row, receive."""
    shards, gateways = COUNTS.values()
    title = f"{shards} shards and {gateways} gateways by these costs, the busiest process at {SHARE:.0%} of its core"
    table = Table(title, ["", "first to fill", "messages/s", *(f"{name}, cores" for name in USED.values())])
    for load, row in LOADS.items():
        costs = result["cpu_us"].get(row, {})
        if costs.get("store") and costs.get("gateway"):
            limits = {name: count * SHARE / costs[name] * 1e6 for name, count in COUNTS.items()}
            first = min(limits, key=limits.__getitem__)
            cores = [limits[first] * costs.get(name, 0.0) / 1e6 for name in USED]
            table.rows.append([load, USED[first], f"{limits[first]:,.0f}", *(f"{used:.1f}" for used in cores)])
    return table
