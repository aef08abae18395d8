"""How a job behaves beside what serves messages on the same machine.

At 1,000 messages a second on two cores the lateness p99 was 5.8 ms without a job, 27 ms with one that took what no
other program wanted of both, 15 to 18 ms if it read by Export, and 10 ms with one that also left a core alone: the
kernel does not take a core from somebody in the middle of a system call, and a job makes long ones.
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from duetime_core.channels import is_loopback

from duetime_spark.files import GRPC
from duetime_spark.java import is_submitted

NICE_MAX = 19


def give_way(master: str | None, sources: Sequence[str]) -> None:
    """For a session on this machine: this process, its JVM and its workers get what no other program wants of the
    processors, and where a source is served here, one core less than there are. For good."""
    if is_submitted() or (master is not None and not master.startswith("local")):
        return
    if not hasattr(os, "SCHED_IDLE"):
        os.nice(NICE_MAX)
        return
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    cores = os.sched_getaffinity(0)
    if len(cores) > 1 and any(is_served_here(source) for source in sources):
        os.sched_setaffinity(0, cores - {min(cores)})


def is_served_here(source: str) -> bool:
    """Whether a process of this machine serves the shard, or the gateway, by its directory's lock or its address."""
    if source.startswith(GRPC):
        return is_loopback(source.removeprefix(GRPC).rpartition(":")[0])
    if "://" in source:
        return False
    try:
        lock = os.open(Path(source) / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # The second is what a broker holds.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
