"""Log files of `duetime up` stay short while processes write to them."""

import resource
import subprocess
import sys
from pathlib import Path

from duetime.cli.rotation import rotate

BYTES_MAX = 10_000
WRITER = """
import sys
for line in sys.stdin:
    print(line.strip(), file=sys.stderr, flush=True)
    print("written", flush=True)
"""


def test_a_log_is_cut_while_its_process_runs(tmp_path: Path) -> None:
    path = tmp_path / "store.log"
    with path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdin is not None
    assert process.stdout is not None

    def write(number: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number:0100}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "written\n"

    cuts = 0
    for number in range(1_000):
        write(number)
        cuts += rotate(path, BYTES_MAX)
        assert path.stat().st_size <= BYTES_MAX + 101
    process.communicate(timeout=60)
    assert cuts == 10
    numbers = [int(line) for line in (*lines(tmp_path / "store.log.1"), *lines(path))]
    assert numbers == list(range(1_000 - len(numbers), 1_000))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["store.log", "store.log.1"]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_log_is_cut_even_without_space_for_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "store.log"
    path.write_bytes(b"x" * (BYTES_MAX + 1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES_MAX // 2, limits[1]))
    try:
        assert rotate(path, BYTES_MAX)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(one.name, one.stat().st_size) for one in tmp_path.iterdir()] == [("store.log", 0)]


def test_short_and_missing_logs_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.log"
    assert not rotate(path, BYTES_MAX)
    path.write_bytes(b"x" * BYTES_MAX)
    assert not rotate(path, BYTES_MAX)
    assert path.stat().st_size == BYTES_MAX
