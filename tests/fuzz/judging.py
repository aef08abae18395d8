"""Gives inputs to a target, and measures each: a finding names the input."""

import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.fuzz.target import TARGETS, Target

CORPUS = Path(__file__).parent / "corpus"
# Limit of processor time for one input of at most 64 KiB.
INPUT_S_MAX = 2.0
# Limit of memory growth by one input.
GROWTH_MB_MAX = 1_024


@dataclass
class Finding(Exception):
    """An input for which something does not hold."""

    target: str
    data: bytes
    why: str

    @property
    def name(self) -> str:
        return sha256(self.data).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.target}: {self.why}\n  input of {len(self.data)} bytes: {self.data[:200]!r}"

    def keep(self) -> Path:
        """Puts the input among those that are tried by every test run."""
        path = CORPUS / self.target / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def judge(target: Target, data: bytes) -> None:
    """Raises: Finding."""
    started, before = time.thread_time(), peak_mb()
    try:
        target.check(data)
        if target.seal is not None:
            target.check(target.seal(data))
    except Exception as error:
        raise Finding(target.name, data, f"{type(error).__name__}: {error}"[:500]) from error
    took_s, grown_mb = time.thread_time() - started, peak_mb() - before
    if grown_mb > GROWTH_MB_MAX:
        raise Finding(target.name, data, f"the process grew by {grown_mb} MiB")
    if took_s > INPUT_S_MAX:
        raise Finding(target.name, data, f"it took {took_s:.1f} s")


def judge_all(target: Target, inputs: Iterable[bytes]) -> int:
    """How many were given. Raises: Finding."""
    count = 0
    for data in inputs:
        judge(target, data)
        count += 1
    return count


def kept() -> list[tuple[str, Path]]:
    """The inputs that once were findings, by target."""
    return sorted((path.parent.name, path) for path in CORPUS.glob("*/*") if path.parent.name in TARGETS)


def peak_mb() -> int:
    """The most memory that the process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
