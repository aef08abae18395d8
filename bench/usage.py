"""Processor time and memory of a process and its descendants, by the kernel's counters."""

import os
import threading
from collections import defaultdict
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# utime, stime, and those of ended children.
_TIMES = slice(11, 15)
_PARENT, _RESIDENT = 1, 21
_PERIOD_S = 0.25


class Tree:
    """A process and its descendants."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peaks: dict[str, int] = defaultdict(int)

    def cpu_s(self) -> float:
        """Processor time of running descendants, and of ended ones that were waited for."""
        return sum(sum(map(int, fields[_TIMES])) for _, fields in self._members()) / _TICKS_PER_S

    def watch_memory(self) -> None:
        """Starts to sample memory, four times a second."""

        def look() -> None:
            while True:
                sums: dict[str, int] = defaultdict(int)
                for name, fields in self._members():
                    sums[name] += int(fields[_RESIDENT]) * _PAGE_BYTES
                for name, size in sums.items():
                    self._peaks[name] = max(self._peaks[name], size)
                never.wait(_PERIOD_S)

        never = threading.Event()
        threading.Thread(target=look, name="memory", daemon=True).start()

    def memory_mb(self) -> dict[str, int]:
        """The peak of resident memory, by name of the program."""
        return {name: size // 1_000_000 for name, size in self._peaks.items()}

    def _members(self) -> list[tuple[str, list[str]]]:
        """(name, fields of /proc/PID/stat behind it)"""
        known: dict[int, tuple[str, list[str]]] = {}
        children: dict[int, list[int]] = defaultdict(list)
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                try:
                    head, _, rest = (path / "stat").read_text().rpartition(")")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                fields = rest.split()
                known[int(path.name)] = head.partition("(")[2], fields
                children[int(fields[_PARENT])].append(int(path.name))
        found, todo = [], [self._pid]
        while todo:
            pid = todo.pop()
            if pid in known:
                found.append(known[pid])
            todo += children[pid]
        return found
