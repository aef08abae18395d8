"""`make copies`: many lives of groups with copies. SEED and RUNS by the environment; half of the seeds per process."""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import structlog

from tests.copies.lives import live
from tests.copies.simulator import Violation

PROCESSES = 2
CHUNK = 50


def lives(first: int, count: int) -> tuple[int, int, int, str]:
    """(answered entries, faults, repaired ranges, the first violation)."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    answered = faults = repaired = 0
    for seed in range(first, first + count):
        try:
            group = live(seed)
        except Violation as error:
            return answered, faults, repaired, str(error)
        answered += len(group.truth.answered)
        faults += group.faults
        repaired += group.repaired
    return answered, faults, repaired, ""


def main() -> None:
    runs = int(os.environ.get("RUNS") or 10_000)
    seed = int(os.environ.get("SEED") or time.time_ns() % 1_000_000_000)
    firsts = range(seed, seed + runs, CHUNK)
    counts = [min(CHUNK, seed + runs - first) for first in firsts]
    print(f"seed {seed}: {runs} lives", flush=True)
    answered = faults = repaired = 0
    with ProcessPoolExecutor(PROCESSES) as pool:
        for done in pool.map(lives, firsts, counts):
            answered, faults, repaired = answered + done[0], faults + done[1], repaired + done[2]
            if done[3]:
                pool.shutdown(cancel_futures=True)
                sys.exit(f"FAILED: {done[3]}")
    print(f"{runs} lives with {faults} faults: {answered} answered entries, none lost; {repaired} ranges repaired")


if __name__ == "__main__":
    main()
