"""Wheels of the tree, and environments that have them and nothing else of it."""

import os
import subprocess
import sys
import venv
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def build(place: Path, folder: Path, **environment: str) -> Path:
    """The wheel of a distribution."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", folder, place]
    pinned = {"PIP_CONSTRAINT": str(PROJECT / "constraints.txt")}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | pinned | environment, check=False)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment_with(folder: Path, *requirements: str | Path) -> Path:
    """The Python of a new environment with these."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *requirements], check=True)
    return python
