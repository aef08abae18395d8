"""Builds both distributions into dist/: sources, the client for any platform, and both compiled.

    python deploy/wheels.py [PYTHON ...]      default: each of python3.11 to python3.14 on the path

Compiled wheels are built from the source archive, like an install, and made manylinux wheels: they run with every
version of the C library from the one that auditwheel determines.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
DIST = PROJECT / "dist"
PLACES = {"duetime": PROJECT / "sdk", "duetime_server": PROJECT}
MINORS = range(11, 15)


def run(*command: str | Path, **environment: str) -> None:
    subprocess.run([str(part) for part in command], check=True, env={**os.environ, **environment})


def pythons() -> list[str]:
    """The versions on the path that run."""
    names = [f"python3.{minor}" for minor in MINORS]
    return [name for name in names if shutil.which(name) and _runs(name)]


def _runs(name: str) -> bool:
    """Whether it is a Python: a shim of pyenv only prints a hint if its version is not selected."""
    return not subprocess.run([name, "-c", ""], stderr=subprocess.DEVNULL).returncode


def sources() -> dict[str, Path]:
    """The source archive of each distribution."""
    for place in PLACES.values():
        run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, place)
    return {name: max(DIST.glob(f"{name}-[0-9]*.tar.gz"), key=lambda path: path.stat().st_mtime) for name in PLACES}


def compiled(python: str, archives: dict[str, Path]) -> None:
    """Wheels for one Python of this platform."""
    with tempfile.TemporaryDirectory() as folder:
        for archive in archives.values():
            run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, archive)
        for wheel in sorted(Path(folder).glob("*.whl")):
            if wheel.name.endswith("-none-any.whl"):
                raise SystemExit(
                    f"{python}: {wheel.name} has nothing compiled: it needs a C compiler and Python's headers, "
                    "on Debian and Ubuntu: apt-get install gcc libc6-dev python3-dev"
                )
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", DIST, wheel, PATH=path)


def main() -> None:
    DIST.mkdir(exist_ok=True)
    archives = sources()
    run(sys.executable, "-m", "build", "--wheel", "--outdir", DIST, PLACES["duetime"], DUETIME_PURE="1")
    for python in sys.argv[1:] or pythons():
        print(f"compiling the server's wheel for {python}", flush=True)
        compiled(python, archives)
    for path in sorted(DIST.glob("duetime*")):
        print(path.relative_to(PROJECT))


if __name__ == "__main__":
    main()
