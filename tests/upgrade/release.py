"""The last release: which commit it is, and how its tree is installed beside this one."""

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

VERSION = "0.1.0"
COMMIT = "814819448defe5415281ffcdbf86951cb13c783f"
PROJECT = Path(__file__).resolve().parents[2]
# Data of the release for every later version to open; see make_release.py.
FIXTURES = Path(__file__).parent / "fixtures" / VERSION
# Options for unpacking, since Python 3.11.4.
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


class NoRelease(Exception):
    """The release can't be had here; the text says why."""


def unpack_tree(directory: Path) -> Path:
    """Writes the release's tree to `directory`/tree, unless it is there; returns its path.

    Raises:
        NoRelease: the commit is not in this clone.
    """
    tree = directory / "tree"
    if tree.exists():
        return tree
    known = subprocess.run(["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=PROJECT, capture_output=True)
    if known.returncode:
        raise NoRelease(
            f"commit {COMMIT[:7]} of release {VERSION} is not in this clone, "
            "which may be shallow: git fetch --unshallow"
        )
    directory.mkdir(parents=True, exist_ok=True)
    archive = directory / "tree.tar"
    subprocess.run(["git", "archive", "--output", str(archive), COMMIT], cwd=PROJECT, check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(tree, **SAFELY)
    archive.unlink()
    return tree


def install(directory: Path) -> Path:
    """Installs the release into `directory`/venv, unless it is there; returns that environment's Python.

    Takes a minute or two, and packages from the index.

    Raises:
        NoRelease: the commit is not in this clone.
    """
    tree = unpack_tree(directory)
    python = directory / "venv" / "bin" / "python"
    if not (python.parent / "duetime").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory / "venv")], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(tree / "constraints.txt"), f"{tree}[server]"], check=True)
    return python
