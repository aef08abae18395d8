"""The machine during a run: its cores, and processor time used by others than the benchmark."""

import os
import platform
import re
import resource
from importlib.metadata import version
from pathlib import Path

IDLE_FIELDS = (3, 4)  # idle, waiting for a disk
STEAL_FIELD = 7


class Meanwhile:
    """Shares of the machine's processor time since its creation."""

    def __init__(self) -> None:
        self._total, self._busy, self._stolen = _ticks()
        self._ours = _our_ticks()

    def shares(self) -> dict[str, float]:
        """`stolen` by other guests of the host; used by `others`, programs beside the benchmark.

        Ask after all processes of the benchmark have ended: their time is unknown before.
        """
        total, busy, stolen = _ticks()
        length = max(total - self._total, 1)
        others = (busy - self._busy) - (_our_ticks() - self._ours)
        return {"stolen": (stolen - self._stolen) / length, "others": max(others, 0.0) / length}

    def stolen(self) -> float:
        total, _, stolen = _ticks()
        return (stolen - self._stolen) / max(total - self._total, 1)


def core_count() -> int:
    return len(os.sched_getaffinity(0))


def machine() -> dict[str, str]:
    """The machine of the measurement."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "processor": cpu.group(1) if cpu else platform.machine(),
        "memory": f"{int(memory.group(1)) / 2**20:.0f} GiB" if memory else "",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"Python {platform.python_version()}",
        "grpcio": f"grpcio {version('grpcio')}",
    }


def _ticks() -> tuple[int, int, int]:
    """(all, busy, stolen)"""
    # The later fields are parts of the first two.
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = sum(fields[field] for field in IDLE_FIELDS)
    return sum(fields), sum(fields) - idle - fields[STEAL_FIELD], fields[STEAL_FIELD]


def _our_ticks() -> float:
    """Ticks of this process and its ended descendants."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used) * float(os.sysconf("SC_CLK_TCK"))
