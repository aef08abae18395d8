"""The seed of random rounds: rounds differ between commits, and repeat for one commit."""

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def seed() -> int:
    """DUETIME_TEST_SEED, else the first 32 bits of the commit's hash; 0 without a repository."""
    if given := os.environ.get("DUETIME_TEST_SEED"):
        return int(given)
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(found[:8], 16)


if __name__ == "__main__":
    print(seed())
