"""Fetches the console's third-party files, by version and hash, from the npm registry: `make console-vendor`."""

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "console" / "duetime_console" / "static" / "vendor"


class Package(NamedTuple):
    """A package of the registry; `files`: the files to take, and their names here."""

    name: str
    version: str
    sha256: str
    files: dict[str, str]


PACKAGES = (
    Package(
        "uplot",
        "1.6.32",
        "4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
        {
            "dist/uPlot.iife.min.js": "uPlot.iife.min.js",
            "dist/uPlot.min.css": "uPlot.min.css",
            "LICENSE": "uPlot.LICENSE",
        },
    ),
    Package(
        "htmx.org",
        "2.0.11",
        "165a2655073e9e6e55e307a7c74e8ebcdb76afb7701f9c16cfd106a13add408e",
        {"dist/htmx.min.js": "htmx.min.js", "LICENSE": "htmx.LICENSE"},
    ),
)


def fetch(package: Package) -> None:
    """Writes a package's files. Raises: SystemExit: its hash has changed."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
        name = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
        data = (Path(folder) / name).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != package.sha256:
        sys.exit(f"{package.name} {package.version} has the hash {found}, not {package.sha256}")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for inside, name in package.files.items():
            member = archive.extractfile(f"package/{inside}")
            assert member is not None, f"{inside} is not a file"
            (FOLDER / name).write_bytes(member.read())


for each in PACKAGES:
    fetch(each)
