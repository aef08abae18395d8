"""The capacity of several shards and gateways, calculated from a run's processor time per message.

It is not measured: each process is assumed to have a core of its own, as fast as one here, and to share only the
network with others. A topic's queues are spread over all shards, and all gateways are used equally.
"""

from typing import Any

from bench.tables import Table

COUNTS = {"store": 4, "gateway": 4}
# The used share of a process's core; the rest absorbs uneven load.
SHARE = 0.7
# Loads, and the rows of processor times for their costs.
LOADS = {
    "accepted, batches of 256": "duetime batch",
    "delayed, sent and received": "duetime sustained",
    "received and acknowledged": "duetime received",
}
USED = {"store": "stores", "gateway": "gateways", "scheduler": "schedulers", "client": "clients"}


def modelled(result: dict[str, Any]) -> Table:
    """A row for each load with a measured cost; clients send or, in the last row, receive."""
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
