"""Makes `.venv`: this tree, its packages, and its compiled hot loops.

    python deploy/environment.py -e './sdk[cli]' -e .         requirements for pip

Needs only Python: this runs before anything is installed. A C compiler is used if there is one.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
VENV = PROJECT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
SPARK = "spark/duetime_spark"
BUILDERS = ["cython", "editables", "hatchling", "setuptools"]
# Modules are compiled to byte code at their first import: most are never imported.
PIP: list[str] = ["-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
CONSTRAINTS = ["-c", str(PROJECT / "constraints.txt")]
# Packages whose extension modules contain debug symbols: 25 MB of 36. Others are unchanged: extension modules repaired
# by auditwheel, such as numpy's, do not always survive stripping.
WITH_SYMBOLS = ("lz4", "sqlalchemy", "uvloop")


def new_environment() -> None:
    """Makes an empty environment with pip, unless a working one exists.

    pip installs itself from the wheel that comes with Python, in a quarter of the time of ensurepip.
    """
    if PYTHON.exists() and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return
    wheel = _wheel_of_pip()
    if wheel is None:
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", VENV], check=True)
    subprocess.run([PYTHON, wheel / "pip", *PIP[2:], "--quiet", "--no-index", "--no-deps", wheel], check=True)


def _wheel_of_pip() -> Path | None:
    try:
        import ensurepip
    except ImportError:
        _install_venv()
        return None
    # Debian's path.
    folders = [Path(ensurepip.__file__).with_name("_bundled"), Path("/usr/share/python-wheels")]
    return next((wheel for folder in folders for wheel in folder.glob("pip-*.whl")), None)


def _install_venv() -> None:
    """Installs venv, which Debian separates from Python.

    Raises:
        SystemExit: only root could install it.
    """
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise SystemExit("python3-venv is missing: apt-get install python3-venv")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "python3-venv"]):
        subprocess.run(["apt-get", "-qq", *command], env=environment, check=True, stdout=subprocess.DEVNULL)


def run_pip(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    """Runs `PYTHON *command`; on a terminal, one line shows pip's present step.

    Raises:
        CalledProcessError
    """
    line = [str(PYTHON), *map(str, command)]
    if not sys.stdout.isatty():
        subprocess.run([*line, "--quiet"], cwd=PROJECT, env=environment, check=True)
        return
    columns = shutil.get_terminal_size().columns
    with subprocess.Popen(line, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True) as pip:
        for text in pip.stdout or ():
            step = text.strip()
            if not step.startswith(("Collecting", "Downloading", "Building", "Preparing", "Installing")):
                continue
            if step.startswith("Installing collected packages"):
                step = f"Installing {step.count(',') + 1} packages"
            print(f"\r\033[K  {step}"[: columns + 3], end="", flush=True)
    print("\r\033[K", end="", flush=True)
    if pip.returncode:
        raise subprocess.CalledProcessError(pip.returncode, line)


def slim() -> None:
    """Removes the packages' own tests and debug symbols: a fifth of the environment, never read here.

    RECORDs still list the tests; pip ignores missing files when it replaces a package.
    """
    (packages,) = (
        [PYTHON.parents[1] / "Lib/site-packages"] if os.name == "nt" else VENV.glob("lib/python*/site-packages")
    )
    for tests in [path for path in packages.rglob("tests") if path.is_dir()]:
        shutil.rmtree(tests, ignore_errors=True)
    modules = [str(module) for name in WITH_SYMBOLS for module in (packages / name).rglob("*.so")]
    if modules and (strip := shutil.which("strip")) and sys.platform == "linux":
        subprocess.run([strip, "--strip-debug", *modules], stderr=subprocess.DEVNULL, check=False)


def compile_all() -> None:
    """Compiles the packages and the tree to byte code. Tests start hundreds of processes, often without permission to
    write it (PYTHONDONTWRITEBYTECODE): each would compile its imports, and start three times as slowly."""
    # Some packages contain templates that are not valid Python.
    subprocess.run([PYTHON, "-m", "compileall", "-qq", "-j", "0", PROJECT], check=False)


def main(*requirements: str) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - the user may have an older one
        raise SystemExit(
            f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}: make PYTHON=python3.12 ..."
        )
    began = time.monotonic()
    new_environment()
    with tempfile.TemporaryDirectory() as builders:
        # pip's byte code is useless afterwards: 6 MB. An option, since -E ignores the environment.
        elsewhere = ["-X", f"pycache_prefix={Path(builders) / 'bytecode'}"]
        run_pip(*elsewhere, *PIP, *CONSTRAINTS, "--target", builders, *BUILDERS)
        building = os.environ | {"PYTHONPATH": builders}
        compile_loops = [str(PYTHON), str(PROJECT / "sdk" / "hatch_build.py")]
        if not any("spark" in each for each in requirements):
            compile_loops.append(SPARK)
        log = Path(builders) / "log"
        with log.open("wb") as opened:
            compiling = subprocess.Popen(compile_loops, env=building, stdout=opened, stderr=subprocess.STDOUT)
            # The loops are compiled in place, so builds must not repeat it.
            building["DUETIME_PURE"] = "1"
            # -E: only builds see the builders; pip would count them and their requirements as installed.
            install = ["-E", *elsewhere, *PIP, *CONSTRAINTS, "--no-build-isolation", *requirements]
            try:
                run_pip(*install, environment=building)
            finally:
                if compiling.poll() is None:
                    print("  compiling the hot loops")
                failed = compiling.wait()
        if failed:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            print(
                "no C compiler or no Python headers: hot loops run in Python, at a third of the speed (see README)",
                *last,
                sep="\n",
                file=sys.stderr,
            )
    # The images' packages (Dockerfile) are known to run without these; packages for tests and checks stay whole.
    if any("dev" in each for each in requirements):
        print("  compiling to byte code")
        compile_all()
    else:
        slim()
    print(f"installed in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"exit code {error.returncode}: {shlex.join(map(str, error.cmd))}") from None
