"""The compiled twins under AddressSanitizer and UndefinedBehaviorSanitizer: built apart, tested, and fuzzed.

    python -m tests.fuzz.sanitize FOLDER [PYTEST OPTIONS]

FOLDER gets a copy of the sources, so that other runs keep their fast modules. A read beyond a buffer ends the process
and shows its location; without the sanitizers it may give any result, or none that shows.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
TOOLS = ["cython", "hatchling", "setuptools"]
COPIED = ["format", "sdk", "core", "shard", "services", "spark", "tests", "bench", "pyproject.toml"]
INPUTS = "4000"
# Its process has other memory than it asks for here.
LEFT_OUT = ["--deselect", "tests/fuzz/test_targets.py::test_judge_finds_errors_and_growth"]
OPTIONS = {
    # Python does not free all that it has when it ends.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    # Each object is a block of its own, with a guarded edge.
    "PYTHONMALLOC": "malloc",
    "DUETIME_TEST_REQUIRE_COMPILED": "1",
    "FUZZ_INPUTS": INPUTS,
}


def copied(folder: Path) -> Path:
    """Copies the sources without their build products."""
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "node_modules"))
        else:
            shutil.copy(source, tree / name)
    return tree


def build(folder: Path, tree: Path) -> None:
    tools = folder / "tools"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    if not tools.is_dir():
        subprocess.run([*pip, "--target", tools, "-c", PROJECT / "constraints.txt", *TOOLS], check=True)
    program = f"import pathlib, hatch_build; hatch_build.compile_twins(pathlib.Path('.'), flags={FLAGS!r})"
    environment = os.environ | {"PYTHONPATH": f"{tools}:sdk"}
    subprocess.run([sys.executable, "-c", program], cwd=tree, env=environment, check=True)


def tests_of_twins(tree: Path) -> list[str]:
    """Test files that name the twins, and the targets of fuzzing."""
    found = [path for path in sorted(tree.glob("tests/*/test_*.py")) if "compiled(" in path.read_text()]
    return [str(path.relative_to(tree)) for path in found] + ["tests/fuzz/test_targets.py"]


def main(folder: Path, options: list[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    tree = copied(folder)
    build(folder, tree)
    services = (f"services/{path.name}" for path in (tree / "services").iterdir())
    roots = ["format", "sdk", "core", "shard", "spark", *services]
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    places = ":".join(str(tree / root) for root in roots)
    environment = os.environ | OPTIONS | {"PYTHONPATH": places, "LD_PRELOAD": library.stdout.strip()}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "1200", *LEFT_OUT, *options]
    return subprocess.run([*command, *tests_of_twins(tree)], cwd=tree, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
