"""Writes requirements-*.txt: the contents of images, by constraints.txt, with the hashes of the packages' files.

    servers    packages of the four servers
    spark      those, and packages of the pipeline
    build      packages that build the wheel
    native     packages that build the wheels in Rust

The hashes are the package index's for every file of a version, so that each platform finds its own.
"""

import os
import subprocess
import sys
from pathlib import Path

EXTRAS = {
    "servers": ("otel", "rocketmq"),
    "spark": ("spark", "otel", "rocketmq"),
    "build": ("build",),
    "native": ("native",),
}
HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
OPTIONS = "--quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate".split()
# Mirrors and local wheels are settings of this machine.
PLAIN = [*OPTIONS, "--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links"]
HEAD = "# Made by `make requirements` of both pyproject.toml and constraints.txt.\n"


def lock(name: str) -> None:
    asked = subprocess.run(
        [sys.executable, HERE / "requirements.py", *EXTRAS[name]],
        cwd=PROJECT,
        check=True,
        capture_output=True,
        text=True,
    )
    path = HERE / f"requirements-{name}.txt"
    # Local wheels beside the index have hashes that the index lacks.
    environment = {key: value for key, value in os.environ.items() if key != "PIP_FIND_LINKS"}
    command = [sys.executable, "-m", "piptools", "compile", *PLAIN, "-c", PROJECT / "constraints.txt", "-o", path, "-"]
    subprocess.run(command, cwd=PROJECT, check=True, input=asked.stdout, text=True, env=environment)
    path.write_text(HEAD + path.read_text())


if __name__ == "__main__":
    for each in EXTRAS:
        lock(each)
