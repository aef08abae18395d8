"""Low priority for a job that shares a machine with servers: see duetime_core.node.manners."""

from collections.abc import Sequence
from pathlib import Path

from duetime_core.node import manners
from duetime_format.hosts import is_loopback

from duetime_spark.java import is_submitted
from duetime_spark.shards.files import GRPC


def give_way(master: str | None, sources: Sequence[str]) -> None:
    """Gives a session on this machine only processor time left by other programs, and, if a source is served here, all
    cores but one. Applies to this process, its JVM and its workers until they end."""
    if is_submitted() or (master is not None and not master.startswith("local")):
        return
    manners.give_way(leave_a_core=any(is_served_here(source) for source in sources))


def is_served_here(source: str) -> bool:
    """Whether a process of this machine serves the shard, or the gateway, by its directory's lock or its address."""
    if source.startswith(GRPC):
        return is_loopback(source.removeprefix(GRPC).rpartition(":")[0])
    return "://" not in source and manners.is_served(Path(source))
