"""What the machine did meanwhile: cores, and processor time taken by others on the same host."""

import os
from pathlib import Path

STEAL_FIELD = 7


class Steal:
    """The stolen share of processor time since it was made."""

    def __init__(self) -> None:
        self._start = _ticks()

    def share(self) -> float:
        total, stolen = (now - then for now, then in zip(_ticks(), self._start, strict=True))
        return stolen / total if total else 0.0


def core_count() -> int:
    return len(os.sched_getaffinity(0))


def _ticks() -> tuple[int, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    # The last two are parts of the first two.
    return sum(fields[:8]), fields[STEAL_FIELD]
